"""Check `[limits]` for tenants and tools."""

import difflib
from collections.abc import Iterator

from gatepost.check.pack_loading import Toolbox
from gatepost.config.limits import NamedToolLimitSettings, TenantLimitSettings, ToolLimitSettings
from gatepost.config.settings import Config
from gatepost.tools.offers.tenant_offers import UPSTREAM_PREFIX
from gatepost_authz.config import Problem


def problems(config: Config, toolbox: Toolbox) -> Iterator[Problem]:
    """Yield invalid numbers, and limits of unknown tools."""
    limits = config.limits
    numbers: dict[str, float | None] = {
        "limits.concurrency": limits.concurrency,
        "limits.queue": limits.queue,
        "limits.queue_s": limits.queue_s,
        "limits.stored_bytes": limits.stored_bytes,
        "limits.tenant.stored_bytes": limits.tenant.stored_bytes,
        "limits.audit_bytes_per_day": limits.audit_bytes_per_day,
        "limits.tenant.audit_bytes_per_day": limits.tenant.audit_bytes_per_day,
    }
    tables: dict[str, TenantLimitSettings | ToolLimitSettings | NamedToolLimitSettings] = {
        "limits.tenant": limits.tenant,
        "limits.tool": limits.tool,
        **{f"limits.tools.{name}": rate for name, rate in limits.tools.items()},
    }
    for table, settings in tables.items():
        numbers[f"{table}.requests_per_second"] = settings.requests_per_second
        numbers[f"{table}.burst"] = settings.burst
        numbers[f"{table}.concurrency"] = settings.concurrency
    for setting, number in numbers.items():
        if number is not None and not 0 <= number < float("inf"):
            yield Problem(
                "config.E088",
                f"`{setting}` must be a number of at least 0",
                "0 means no limit",
                setting=setting,
            )
    tools = {offer.name for offer in toolbox.offers if offer.kind == "tool"}
    for name in limits.tools.keys() - tools:
        if name.startswith(UPSTREAM_PREFIX):
            continue
        similar = difflib.get_close_matches(name, tools, n=1, cutoff=0.5)
        yield Problem(
            "config.E089",
            f"no tool is named {name!r}, so these limits have no effect",
            f"did you mean {similar[0]!r}?" if similar else "`gatepost tools` lists the names",
            setting=f"limits.tools.{name}",
        )
