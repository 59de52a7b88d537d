"""What a tenant has beside the offers of the configuration, and what each of its agents sees."""

from collections.abc import Mapping
from typing import Literal, Protocol

import msgspec

from gatepost.tools.api import Offer
from gatepost_authz.caller import TenantContext


class Agent(msgspec.Struct, frozen=True):
    """What the callers of one client id see: the offers of these capabilities."""

    capabilities: frozenset[str]
    """`pack:{name}` for a pack, `mcp:{uuid}` for an upstream."""
    mode: Literal["list", "search"] = "list"
    """`search`: the caller sees `find_tools` and `call_tool` instead of all tools."""


class TenantOffers:
    """An immutable snapshot; a change makes a new one, so that it can be the key of a cache."""

    __slots__ = ("agents", "offers", "ttl_ms")

    def __init__(
        self,
        offers: tuple[Offer, ...] = (),
        *,
        agents: Mapping[str, Agent] | None = None,
        ttl_ms: int | None = None,
    ) -> None:
        self.offers = offers
        self.agents = agents or {}
        """By client id; other clients see everything that their scopes reach."""
        self.ttl_ms = ttl_ms
        """The shortest time that a list of these offers stays fresh; None: no upstream says."""


class OfferSource(Protocol):
    """Knows the offers of tenants; the registry asks it beside its own."""

    def at_hand(self, caller: TenantContext) -> TenantOffers | None:
        """Return what the caller's tenant has, or None if it has to be loaded first."""

    async def load(self, caller: TenantContext) -> TenantOffers:
        """Load it from the store, never from an upstream; raises StoreUnavailable."""
