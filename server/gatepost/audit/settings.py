"""What is put on record, and for how long."""

from typing import Literal

from gatepost.table import Table


class AuditSettings(Table, frozen=True, kw_only=True):
    """What is put on record, for how long, and what happens when it cannot be."""

    enabled: bool = True
    """Whether calls, refusals and decisions are put on record."""
    calls: Literal["all", "changes"] = "all"
    """
    `changes` leaves out successful calls of tools that declare that they only read, and of
    resources, prompts and skills.
    """
    arguments: Literal["redacted", "none"] = "redacted"
    """Whether arguments are kept, without secrets."""
    max_argument_bytes: int = 4096
    """How much of a call's arguments is kept."""
    peers: bool = True
    """Whether the network address of whoever called, decided or signed in is kept."""
    on_failure: Literal["refuse", "go_on"] = "refuse"
    """
    While the database does not answer: `refuse` calls before they run, or `go_on` and write the
    records later, as far as there is room for them.
    """
    batch_ms: float = 2.0
    """How long a record waits at most while other calls end one after another, to go with them."""
    checkpoint_s: float = 300.0
    """Seconds after which new records get a signed checkpoint; 0: only at a stop."""
    checkpoint_records: int = 10_000
    """How many records get one sooner."""
    retention_days: int = 0
    """Records older than this are removed; 0: none is."""
