"""What the settings allow, worked out once for all calls."""

import math
from collections.abc import Mapping
from typing import Protocol

import msgspec

from gatepost.limits.settings import NamedToolAllowance, TenantAllowance, ToolAllowance
from gatepost_authz.caller import TenantContext

SECONDS_AT_ONCE = 2.0
"""A burst that nobody has set lets so many seconds' calls come at once."""
ANY = math.inf


class Bound(msgspec.Struct, frozen=True):
    """What somebody may do: a bucket (``rate`` 0: none) and how many calls may run at once."""

    rate: float = 0.0
    burst: float = 0.0
    most: float = ANY
    each_s: float = 0.0
    """Seconds that one call takes out of the bucket."""
    room_s: float = 0.0
    """Seconds until an empty bucket is full."""


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
    return Bound(rate=rate, burst=burst, most=most, each_s=1 / rate, room_s=burst / rate)


CALLER, TENANT, TOOL = range(3)


class Shape(msgspec.Struct, frozen=True):
    """
    What one kind of call takes, worked out before any comes: each entry begins with whose it is
    (`CALLER`, `TENANT` or `TOOL`).
    """

    buckets: tuple[tuple[int, float, float], ...]
    """Each with the seconds that a call takes out of it, and those until it is full from empty."""
    places: tuple[tuple[int, float], ...]
    """Each with the most that there are."""
    rates: tuple[tuple[int, float, float], ...]
    """The same buckets with rate and burst."""
    usual: tuple[float, float, float] | None = None
    """
    Of a call that takes from its caller's bucket and has a place of its tenant, and no more: the
    bucket's two numbers, and the most places.
    """


Shapes = tuple[Shape, Shape]
"""Of a call that a client makes, and of one that another call's tool makes."""


def shapes_of(terms: Terms, tool: Bound) -> Shapes:
    """What calls of a tool with this bound take."""
    bounds = ((CALLER, terms.caller), (TENANT, terms.tenant), (TOOL, tool))
    held = [(whose, bound) for whose, bound in bounds if bound.rate]
    own = tuple((whose, bound.most) for whose, bound in bounds[TOOL:] if bound.most != ANY)
    # A tenant's calls are counted although any number may run: turns depend on it.
    outer = Shape(
        buckets=tuple((whose, bound.each_s, bound.room_s) for whose, bound in held),
        places=((TENANT, terms.tenant.most), *own),
        rates=tuple((whose, bound.rate, bound.burst) for whose, bound in held),
    )
    inner = msgspec.structs.replace(outer, places=own)
    if not own and [whose for whose, _ in held] == [CALLER]:
        caller = terms.caller
        usual = (caller.each_s, caller.room_s, terms.tenant.most)
        outer = msgspec.structs.replace(outer, usual=usual)
    return outer, inner


def bucket_of(caller: TenantContext) -> str:
    """The bucket of a caller within its tenant; kinds and issuers cannot run into each other."""
    return f"{caller.subject_kind} {len(caller.issuer)} {caller.issuer} {caller.subject}"
