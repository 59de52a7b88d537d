"""Check `[audit]`."""

from collections.abc import Iterator

from gatepost.config.settings import Config
from gatepost_authz.config import Problem

MAX_ARGUMENT_BYTES = 1_000_000
MAX_BATCH_MS = 1_000


def problems(config: Config) -> Iterator[Problem]:
    """Yield invalid settings, and settings that an auditor will question."""
    audit = config.audit
    bounds = (
        ("max_argument_bytes", audit.max_argument_bytes, 0, MAX_ARGUMENT_BYTES),
        ("batch_ms", audit.batch_ms, 0, MAX_BATCH_MS),
        ("checkpoint_s", audit.checkpoint_s, 0, 86_400),
        ("checkpoint_records", audit.checkpoint_records, 1, 1_000_000),
        ("retention_days", audit.retention_days, 0, 36_500),
    )
    for name, value, low, high in bounds:
        if not low <= value <= high:
            yield Problem(
                "config.E085",
                f"`audit.{name}` is {value:g}, but must be from {low} to {high}",
                "choose a value in this range",
                setting=f"audit.{name}",
            )
    if not audit.enabled and not config.development:
        yield Problem(
            "config.W085",
            "the audit log is disabled",
            "set audit.enabled = true, unless another system records every call",
            "warning",
            "audit.enabled",
        )
    if audit.enabled and audit.durability == "relaxed" and not config.development:
        yield Problem(
            "config.W123",
            "calls are answered before their audit records are on the disk, so a killed process "
            "loses the records of its last moments",
            'remove audit.durability = "relaxed", unless you accept that',
            "warning",
            "audit.durability",
        )
