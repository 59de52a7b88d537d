"""What is wrong with how the record is kept."""

from collections.abc import Iterator

from gatepost.settings import Config
from gatepost_authz.config import Problem

MOST_ARGUMENT_BYTES = 1_000_000
MOST_BATCH_MS = 1_000


def problems(config: Config) -> Iterator[Problem]:
    """Settings that cannot be, and those that an auditor will ask about."""
    audit = config.audit
    bounds = (
        ("max_argument_bytes", audit.max_argument_bytes, 0, MOST_ARGUMENT_BYTES),
        ("batch_ms", audit.batch_ms, 0, MOST_BATCH_MS),
        ("checkpoint_s", audit.checkpoint_s, 0, 86_400),
        ("checkpoint_records", audit.checkpoint_records, 1, 1_000_000),
        ("retention_days", audit.retention_days, 0, 36_500),
    )
    for name, value, least, most in bounds:
        if not least <= value <= most:
            yield Problem(
                "config.E085",
                f"`audit.{name}` is {value:g}, and may be {least} to {most}",
                "take a number between them",
                setting=f"audit.{name}",
            )
    if not audit.enabled and not config.development:
        yield Problem(
            "config.W085",
            "nothing is put on record",
            "set audit.enabled = true, unless somebody else records every call",
            "warning",
            "audit.enabled",
        )
