"""What the settings allow, and whom they hold to it."""

import math
from collections.abc import Hashable, Iterable, Mapping
from typing import Literal, Protocol

import msgspec

from gatepost.limits.settings import NamedToolAllowance, TenantAllowance, ToolAllowance
from gatepost.stores.allowance import Slot
from gatepost_authz.caller import TenantContext

SECONDS_AT_ONCE = 2.0
"""A burst that nobody has set lets so many seconds' calls come at once."""
ANY = math.inf
LINE = (Slot("line", 0),)
"""Where processes count together how many of a tenant's calls wait for room; it has no bound."""

Kind = Literal["caller", "tenant", "tool", "server"]
"""Which limit has refused a call; "server" is this process with all its places taken."""
Principal = tuple[str, str, str, str]
"""A caller: tenant, issuer, kind and subject; see `TenantContext.principal_key`."""


class Bound(msgspec.Struct, frozen=True):
    """What somebody may do: a bucket (``rate`` 0: none) and how many calls may run at once."""

    rate: float = 0.0
    burst: float = 0.0
    most: float = ANY


class Settings(Protocol):
    """The part of `[limits]` that says what callers, tenants and tools may do."""

    @property
    def requests_per_second(self) -> float: ...
    @property
    def burst(self) -> int: ...
    @property
    def tenant(self) -> TenantAllowance: ...
    @property
    def tool(self) -> ToolAllowance: ...
    @property
    def tools(self) -> Mapping[str, NamedToolAllowance]: ...


class Terms(msgspec.Struct, frozen=True):
    """The bounds of every caller, every tenant and every tool of a tenant."""

    caller: Bound = Bound()
    tenant: Bound = Bound()
    tool: Bound = Bound()
    tools: Mapping[str, Bound] = {}


def terms_of(settings: Settings) -> Terms:
    """What these settings allow."""
    tool = settings.tool
    named = {
        name: _bound(
            tool.requests_per_second
            if own.requests_per_second is None
            else own.requests_per_second,
            tool.burst if own.burst is None else own.burst,
            tool.concurrency if own.concurrency is None else own.concurrency,
        )
        for name, own in settings.tools.items()
    }
    return Terms(
        caller=_bound(settings.requests_per_second, settings.burst, 0),
        tenant=_of(settings.tenant),
        tool=_of(tool),
        tools=named,
    )


def _of(allowance: TenantAllowance | ToolAllowance) -> Bound:
    return _bound(allowance.requests_per_second, allowance.burst, allowance.concurrency)


def _bound(rate: float, burst: float, concurrency: int) -> Bound:
    most = concurrency or ANY
    if not rate:
        return Bound(most=most)
    burst = burst or max(1.0, rate * SECONDS_AT_ONCE)
    return Bound(rate=rate, burst=burst, most=most)


class Row(msgspec.Struct, frozen=True):
    """Somebody with a bound, and its names at the relay and here."""

    kind: Kind
    name: str
    """The tool's name, the caller's subject, or nothing: the tenant's."""
    shared: str
    here: Hashable
    bound: Bound


def rows_of(
    terms: Terms, tenant: str, tools: Iterable[str], principals: Iterable[Principal]
) -> list[Row]:
    """These callers of a tenant, itself, and these tools of it."""
    rows = [
        Row("caller", principal[3], named(principal), principal, terms.caller)
        for principal in principals
    ]
    rows.append(Row("tenant", "", "tenant", tenant, terms.tenant))
    rows += [
        Row("tool", tool, f"tool {tool}", (tenant, tool), terms.tools.get(tool, terms.tool))
        for tool in tools
    ]
    return rows


def named(principal: Principal) -> str:
    """A caller's name within its tenant; kinds and issuers cannot run into each other."""
    _, issuer, kind, subject = principal
    return f"{kind} {len(issuer)} {issuer} {subject}"


def bucket_of(caller: TenantContext) -> str:
    """The name of a caller's bucket at the relay."""
    return named(caller.principal_key)
