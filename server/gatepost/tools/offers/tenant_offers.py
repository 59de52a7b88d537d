"""Add a tenant's own offers to those of the configuration, and filter them for each agent."""

from collections.abc import Mapping
from typing import Literal, Protocol

import msgspec

from gatepost.tools.offers.offer import OFFER_NAME, Offer, Tool
from gatepost.tools.offers.offer_kinds import Prompt, Template, derived_of
from gatepost.tools.offers.server_instructions import ServerInstructions
from gatepost_authz.caller import TenantContext

UPSTREAM_PREFIX = "mcp_"
"""
The prefix of the names of upstreams' tools and packs. A configuration may name them although it
enables none of them.
"""
UPSTREAM_SEPARATOR = "__"
"""The separator between the name of an upstream and that of its tool."""


def is_upstream_name(name: str) -> bool:
    """Return whether a name has the form of an upstream's tools, which no pack may use."""
    return name.startswith(UPSTREAM_PREFIX) and UPSTREAM_SEPARATOR in name[len(UPSTREAM_PREFIX) :]


def capability_of(offer: Offer) -> str:
    """Return the capability that an agent needs to reach an offer."""
    return f"pack:{offer.pack}" if offer.origin is None else f"mcp:{offer.origin.server_id}"


class Agent(msgspec.Struct, frozen=True):
    """The offers that the callers of one client id see: those of these capabilities."""

    capabilities: frozenset[str]
    """`pack:{name}` for a pack, `mcp:{uuid}` for an upstream."""
    mode: Literal["list", "search"] = "list"
    """`search`: the caller sees `find_tools` and `call_tool` instead of all tools."""


class OwnedOffer(msgspec.Struct, frozen=True):
    """An offer, and the offer that it belongs to: itself, or the owner of a completer or lister."""

    offer: Offer
    owner: Offer
    capability: str
    """The capability of the owner."""


def entries_of(offers: tuple[Offer, ...]) -> tuple[OwnedOffer, ...]:
    """Return the entries of offers and of their completers and listers."""
    return tuple(
        OwnedOffer(offer, owner, capability_of(owner))
        for owner in offers
        for offer in (owner, *derived_of(owner))
    )


def by_weight(entry: OwnedOffer) -> int:
    """Sort the most specific templates first."""
    return -entry.offer.template.weight if isinstance(entry.offer, Template) else 0


class TenantOffers:
    """
    An immutable snapshot; a change makes a new one, so that it can be the key of a cache.

    If several offers have the same kind and name, the first one counts. A tool or a prompt with an
    invalid name is left out.
    """

    __slots__ = ("__weakref__", "agents", "entries", "instructions", "offers", "ttl_ms")

    def __init__(
        self,
        offers: tuple[Offer, ...] = (),
        *,
        agents: Mapping[str, Agent] | None = None,
        ttl_ms: int | None = None,
        instructions: tuple[ServerInstructions, ...] = (),
    ) -> None:
        first: dict[tuple[str, str], Offer] = {}
        for offer in offers:
            if isinstance(offer, Tool | Prompt) and not OFFER_NAME.fullmatch(offer.name):
                continue
            first.setdefault((offer.kind, offer.key), offer)
        self.offers = tuple(first.values())
        self.entries = entries_of(self.offers)
        self.agents = agents or {}
        """By client id; other clients see everything that their scopes reach."""
        self.instructions = instructions
        self.ttl_ms = ttl_ms
        """The shortest time that a list of these offers stays fresh; None: no upstream says."""


class OfferSource(Protocol):
    """
    Knows the offers of tenants; the registry asks it beside its own.

    A change replaces the snapshot at hand. If a snapshot is dropped instead, a request that is
    about to use it is answered with 503.
    """

    def at_hand(self, caller: TenantContext) -> TenantOffers | None:
        """Return what the caller's tenant has, or None if it has to be loaded first."""

    async def load(self, caller: TenantContext) -> TenantOffers:
        """
        Load it from the store, never from an upstream; raises StoreUnavailable.

        Many requests may await this at once. When it returns, the snapshot is at hand.
        """
