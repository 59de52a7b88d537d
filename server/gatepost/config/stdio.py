"""Judges who calls over standard input and output."""

from collections.abc import Iterator

from gatepost.settings import Config, StdioSettings
from gatepost_authz.config import TENANT_ID, Problem

BESIDE = frozenset({"config.E006", "config.E008", "config.E017", "authz.E010"})
"""Problems of whoever listens and reads tokens; `gatepost stdio` does neither."""

HINT = '[stdio] tenant = "acme", subject = "alice", scopes = [...]'


def problems(config: Config, *, wanted: bool = False) -> Iterator[Problem]:
    """What is wrong with the caller; with *wanted* also that there is none."""
    named = config.stdio
    if named == StdioSettings() and not wanted:
        return
    for setting, value in (("tenant", named.tenant), ("subject", named.subject)):
        if not value:
            yield Problem(
                "config.E045",
                f"`[stdio]` does not say the caller's {setting}, and nothing else could",
                HINT,
                setting=f"stdio.{setting}",
            )
    if named.tenant and not TENANT_ID.fullmatch(named.tenant):
        yield Problem(
            "config.E046",
            f"{named.tenant!r} is not a tenant id",
            "a-z, 0-9, _ and -, beginning with a letter or digit, at most 63",
            setting="stdio.tenant",
        )
