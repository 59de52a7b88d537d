"""The configured limits, and the keys under which they are counted."""

import math
from collections.abc import Hashable, Iterable, Mapping
from functools import lru_cache
from typing import Protocol

import msgspec

from gatepost.config.limits import NamedToolLimitSettings, TenantLimitSettings, ToolLimitSettings
from gatepost.execution.failure import FailureLimit
from gatepost.storage.rate_limits import ConcurrencyLimit
from gatepost_authz.caller import TenantContext

SECONDS_AT_ONCE = 2.0
"""The default burst, in seconds of the rate."""
ANY = math.inf
IN_QUEUE = (ConcurrencyLimit("queue", 0),)
"""The shared counter of a tenant's waiting calls; it has no maximum."""

DAY_S = 86_400.0
PrincipalKey = tuple[str, str, str, str]
"""A caller: tenant, issuer, kind and subject, as in `TenantContext.principal_key`."""


class Bound(msgspec.Struct, frozen=True):
    """A rate limit (``rate`` 0: none) and a concurrency limit."""

    rate: float = 0.0
    burst: float = 0.0
    concurrency: float = ANY


# Callers share this object, because each of them has a bucket with these numbers.
@lru_cache(maxsize=256)
def seconds_of(bound: Bound) -> tuple[float, float]:
    """Return the seconds in which a bucket regains a token, and those in which it becomes full."""
    return 1 / bound.rate, bound.burst / bound.rate


class LimitSettings(Protocol):
    """The part of `[limits]` with the limits of callers, tenants and tools."""

    @property
    def requests_per_second(self) -> float: ...
    @property
    def burst(self) -> int: ...
    @property
    def tenant(self) -> TenantLimitSettings: ...
    @property
    def tool(self) -> ToolLimitSettings: ...
    @property
    def tools(self) -> Mapping[str, NamedToolLimitSettings]: ...
    @property
    def audit_bytes_per_day(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...


class LimitRules(msgspec.Struct, frozen=True):
    """The limits of each caller, each tenant and each tool of a tenant."""

    caller: Bound = Bound()
    tenant: Bound = Bound()
    tool: Bound = Bound()
    tools: Mapping[str, Bound] = {}
    caller_audit: Bound = Bound()
    tenant_audit: Bound = Bound()
    """Bytes of audit records, a second and in a full bucket."""
    cached_tokens: int = 0
    """The number of tokens whose callers may be cached."""


def rules_of(settings: LimitSettings, *, audits: bool = True) -> LimitRules:
    """
    Return the limits that these settings define.

    Without an audit log (*audits*), no record uses up the quotas of records, so there are none.
    """
    tool = settings.tool
    named = {
        name: _bound(
            tool.requests_per_second
            if named_tool.requests_per_second is None
            else named_tool.requests_per_second,
            tool.burst if named_tool.burst is None else named_tool.burst,
            tool.concurrency if named_tool.concurrency is None else named_tool.concurrency,
        )
        for name, named_tool in settings.tools.items()
    }
    return LimitRules(
        caller=_bound(settings.requests_per_second, settings.burst, 0),
        tenant=_of(settings.tenant),
        tool=_of(tool),
        tools=named,
        caller_audit=_a_day(settings.audit_bytes_per_day if audits else 0),
        tenant_audit=_a_day(settings.tenant.audit_bytes_per_day if audits else 0),
        cached_tokens=settings.cached_tokens,
    )


def _a_day(amount: int) -> Bound:
    return Bound(rate=amount / DAY_S, burst=amount)


def _of(settings: TenantLimitSettings | ToolLimitSettings) -> Bound:
    return _bound(settings.requests_per_second, settings.burst, settings.concurrency)


def _bound(rate: float, burst: float, concurrency: int) -> Bound:
    max_running = concurrency or ANY
    if not rate:
        return Bound(concurrency=max_running)
    burst = burst or max(1.0, rate * SECONDS_AT_ONCE)
    return Bound(rate=rate, burst=burst, concurrency=max_running)


class BoundKey(msgspec.Struct, frozen=True):
    """A limited caller, tenant or tool, with its keys at the shared store and in this process."""

    kind: FailureLimit
    name: str
    """The tool's name or the caller's subject; empty for the tenant."""
    shared: str
    local: Hashable
    bound: Bound


def rows_of(
    rules: LimitRules, tenant: str, tools: Iterable[str], principals: Iterable[PrincipalKey]
) -> list[BoundKey]:
    """Return the keys of these callers of a tenant, of the tenant and of these tools."""
    rows = [
        BoundKey("caller", principal[3], named(principal), principal, rules.caller)
        for principal in principals
    ]
    rows.append(BoundKey("tenant", "", "tenant", tenant, rules.tenant))
    rows += [
        BoundKey("tool", tool, f"tool {tool}", (tenant, tool), rules.tools.get(tool, rules.tool))
        for tool in tools
    ]
    return rows


def named(principal: PrincipalKey) -> str:
    """Return a name that is unique to a caller within its tenant."""
    _, issuer, kind, subject = principal
    return f"{kind} {len(issuer)} {issuer} {subject}"


def bucket_of(caller: TenantContext) -> str:
    """Return the name of a caller's bucket at the shared store."""
    return named(caller.principal_key)
