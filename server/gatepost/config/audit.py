"""The settings of `[audit]`."""

from typing import Literal

from gatepost.config.settings_table import SettingsTable


class AuditSettings(SettingsTable, frozen=True, kw_only=True):
    """What the audit log records and for how long, and what happens during an outage."""

    enabled: bool = True
    """Whether calls, refusals and decisions are recorded."""
    calls: Literal["all", "changes"] = "all"
    """
    `changes` leaves out successful calls of tools that are declared read-only, and of resources,
    prompts and skills.
    """
    arguments: Literal["redacted", "none"] = "redacted"
    """Whether arguments are recorded, with secrets redacted."""
    max_argument_bytes: int = 4096
    """Maximum recorded size of a call's arguments, in bytes."""
    peers: bool = True
    """Whether the network address of a caller, approver or sign-in is recorded."""
    on_failure: Literal["refuse", "go_on"] = "refuse"
    """
    While the database does not answer: `refuse` calls before they run, or `go_on` and write the
    records later, as many as fit in memory.
    """
    durability: Literal["group", "relaxed"] = "group"
    """
    Whether an answer waits until its record is on the disk: `group` waits for one write with the
    calls that end at the same time. `relaxed` does not wait, so a killed process loses the records
    of its last moments.
    """
    batch_ms: float = 2.0
    """Maximum time, in milliseconds, that a record waits to be written together with others."""
    checkpoint_s: float = 300.0
    """Seconds between signed checkpoints of new records; 0: only at a stop."""
    checkpoint_records: int = 10_000
    """Number of new records after which a checkpoint is signed sooner."""
    retention_days: int = 0
    """Records older than this number of days are removed; 0: records are kept forever."""
