"""Check `[stdio]`."""

from collections.abc import Iterator

from gatepost.config.settings import Config, StdioSettings
from gatepost_authz.config import TENANT_ID, Problem

NOT_FOR_STDIO = frozenset({"config.E006", "config.E008", "config.E017", "authz.E010"})
"""Ids of problems of HTTP servers and tokens, which do not apply to `gatepost stdio`."""

HINT = '[stdio] tenant = "acme", subject = "alice", scopes = [...]'


def problems(config: Config, *, required: bool = False) -> Iterator[Problem]:
    """Yield the problems of the caller; with *required*, also that there is none."""
    caller = config.stdio
    if caller == StdioSettings() and not required:
        return
    for setting, value in (("tenant", caller.tenant), ("subject", caller.subject)):
        if not value:
            yield Problem(
                "config.E045",
                f"`[stdio]` does not set the caller's {setting}",
                HINT,
                setting=f"stdio.{setting}",
            )
    if caller.tenant and not TENANT_ID.fullmatch(caller.tenant):
        yield Problem(
            "config.E046",
            f"{caller.tenant!r} is not a tenant id",
            "use at most 63 characters of a-z, 0-9, _ and -, starting with a letter or digit",
            setting="stdio.tenant",
        )
