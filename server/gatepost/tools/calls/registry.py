"""Register offers, and find those that a caller can see."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import TypeVar, cast
from weakref import WeakKeyDictionary

from gatepost.storage.errors import StoreUnavailable
from gatepost.tools.calls.tool_search import search_tools
from gatepost.tools.offers.offer import OFFER_NAME, WORDS, Offer, OfferKind, Tool
from gatepost.tools.offers.offer_kinds import (
    Completer,
    Prompt,
    ResourceOffer,
    Skill,
    Template,
    derived_of,
)
from gatepost.tools.offers.offer_set import OfferSet, of_kind
from gatepost.tools.offers.tenant_offers import OfferSource, TenantOffers, entries_of
from gatepost.tools.offers.uri_template import is_uri
from gatepost.tools.offers.visible_offers import OfferIndex, VisibleOffers
from gatepost_authz.caller import TenantContext

# A permission set is a set of scopes. The cache is bounded, because an issuer might put a new scope
# into every token.
REMEMBERED_SETS = 1024

MANY_OFFERS = 200
"""Of a tenant with more offers, what its callers see is found out in a thread."""

Required = frozenset[str]
AnyOffer = TypeVar("AnyOffer", bound=Offer)


class Unknown(Exception):
    """The caller cannot reach an offer of this name, whether or not it exists."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class UnknownTool(Unknown):
    """The caller cannot reach a tool of this name."""


class Registry:
    """
    All enabled offers, as an immutable snapshot, and those of tenants that *source* knows.

    A caller can reach an offer if its token has all the offer's scopes, or lacks only scopes that
    it can step up to (*obtainable*; None means all scopes of the offers). To the caller, every
    other offer does not exist. A tenant's offer never takes the name of an enabled one. If the
    tenant has an agent for the caller's client, the caller reaches only the offers of the agent's
    capabilities. Raises ValueError for invalid and duplicate names.
    """

    def __init__(
        self,
        offers: Iterable[Offer],
        *,
        obtainable: frozenset[str] | None = None,
        source: OfferSource | None = None,
    ) -> None:
        ordered = sorted(offers, key=lambda offer: offer.key)
        self.source = source
        self.tools = _checked(of_kind(Tool, ordered))
        self.documents = _checked(of_kind(ResourceOffer, ordered))
        self.templates = _checked(of_kind(Template, ordered))
        self.prompts = _checked(of_kind(Prompt, ordered))
        self.skills = _checked(of_kind(Skill, ordered))
        self.declared = frozenset[str]().union(*(offer.scopes for offer in ordered))
        """All scopes that an offer needs."""
        self.obtainable = self.declared if obtainable is None else obtainable
        # The scopes that a caller must already have to reach each offer.
        self._offers: dict[OfferKind, dict[str, tuple[Offer, Required]]] = {
            kind: {} for kind in WORDS
        }
        derived = [offer for owner in ordered for offer in derived_of(owner)]
        self._all = [(offer, offer.scopes - self.obtainable) for offer in (*ordered, *derived)]
        for offer, required in self._all:
            if not isinstance(offer, Template):
                self._offers[offer.kind][offer.key] = offer, required
        self.completes = any(
            offer.suggests for offer, _ in self._all if isinstance(offer, Completer)
        )
        """Whether any offer has suggestions."""
        by_weight = sorted(self.templates.values(), key=lambda offer: -offer.template.weight)
        self._templates = [(offer, offer.scopes - self.obtainable) for offer in by_weight]
        self._deciding = frozenset[str]().union(*(required for _, required in self._all))
        self._visible: dict[frozenset[str], OfferSet] = {}
        self._limited = obtainable
        self._search = {} if source is None else search_tools(self.searchable)
        self._enabled = OfferIndex(entries_of(tuple(ordered)) if source is not None else ())
        # Cached by snapshot, so that the cached objects are dropped with it.
        self._visible_offers: WeakKeyDictionary[TenantOffers, VisibleOffers] = WeakKeyDictionary()
        self._making: dict[TenantOffers, asyncio.Task[None]] = {}
        """What is found out in a thread now."""

    @property
    def offers(self) -> list[Offer]:
        """
        Return all offers that can be called, including completers and listers, but no tenant's own.
        """
        return [*(offer for offer, _ in self._all), *self._search.values()]

    async def prepare(self, caller: TenantContext) -> None:
        """
        Load the offers of the caller's tenant, unless they are at hand; raises StoreUnavailable.

        Await this before you ask for offers. Without it, the other methods raise StoreUnavailable.
        """
        if self.source is None:
            return
        tenant_offers = self.source.at_hand(caller) or await self.source.load(caller)
        if len(tenant_offers.entries) > MANY_OFFERS and tenant_offers not in self._visible_offers:
            making = self._making.get(tenant_offers)
            if making is None:  # else another caller of the tenant waits for the same
                work = self._make_in_thread(tenant_offers)
                making = self._making[tenant_offers] = asyncio.create_task(work)
            await asyncio.shield(making)

    def offer(self, kind: OfferKind, key: str, caller: TenantContext) -> Offer:
        """Return the offer of that name or URI if the caller can reach it; raises Unknown."""
        if self.source is not None:
            return self._of_tenant(kind, key, caller)
        entry = self._offers[kind].get(key)
        if entry is not None and entry[1] <= caller.scopes:
            return entry[0]
        if kind == "document":
            # The most specific template that the caller can reach and that matches.
            for template, required in self._templates:
                if required <= caller.scopes and template.template.match(key) is not None:
                    return template
        raise UnknownTool(key) if kind == "tool" else Unknown(key)

    def find(self, caller: TenantContext, name: str) -> Tool:
        """Return the tool of that name if the caller can reach it; raises UnknownTool."""
        if self.source is not None:
            return cast("Tool", self._of_tenant("tool", name, caller))
        entry = self._offers["tool"].get(name)
        if entry is None or not entry[1] <= caller.scopes:
            raise UnknownTool(name)
        return self.tools[name]

    async def called_name(self, caller: TenantContext, name: str) -> str:
        """
        Return the name of the tool that a call means: *name*, unless the page of an App made it.

        Raises StoreUnavailable.
        """
        if self.source is None or name in self.tools:
            return name
        await self.prepare(caller)
        return self._visible_to(self._at_hand(caller)).called_name(name, caller)

    def tool_of_tenant(self, caller: TenantContext, name: str) -> Tool | None:
        """
        Return the tool of that name if the caller's tenant has it; this caller may not see it.

        None also if the tenant's offers are not at hand.
        """
        tool = self.tools.get(name)
        if tool is None and self.source is not None:
            tenant_offers = self.source.at_hand(caller)
            return None if tenant_offers is None else self._visible_to(tenant_offers).tool(name)
        return tool

    def known_tools(self, caller: TenantContext) -> list[Tool]:
        """Return the tools that the caller's tenant has; this caller may not see all."""
        if self.source is None:
            return [*self.tools.values()]
        return [*self.tools.values(), *self._visible_to(self._at_hand(caller)).tools()]

    def withheld(self, tool: Tool, caller: TenantContext) -> frozenset[str]:
        """Return the missing scopes that hide a tool from the caller; empty if it is not hidden."""
        if self._limited is None:
            return frozenset()
        return tool.scopes - self._limited - caller.scopes

    def visible(self, caller: TenantContext) -> OfferSet:
        """Return what this caller can see; the same object for the same permissions."""
        if self.source is not None:
            return self._visible_to(self._at_hand(caller)).visible(caller)
        scopes = caller.scopes & self._deciding
        visible = self._visible.get(scopes)
        if visible is None:
            if len(self._visible) >= REMEMBERED_SETS:
                self._visible.pop(next(iter(self._visible)))
            visible = OfferSet(offer for offer, required in self._all if required <= scopes)
            self._visible[scopes] = visible
        return visible

    def searchable(self, caller: TenantContext) -> OfferSet:
        """Return what this caller can see, with all tools of agents with the mode `search`."""
        return self._visible_to(self._at_hand(caller)).visible(caller, every_tool=True)

    def _of_tenant(self, kind: OfferKind, key: str, caller: TenantContext) -> Offer:
        offer = self._visible_to(self._at_hand(caller)).offer(kind, key, caller)
        if offer is None:
            raise UnknownTool(key) if kind == "tool" else Unknown(key)
        return offer

    def _at_hand(self, caller: TenantContext) -> TenantOffers:
        tenant_offers = None if self.source is None else self.source.at_hand(caller)
        if tenant_offers is None:
            # Without the tenant's agents, the caller could see what it must not.
            raise StoreUnavailable("the tenant's offers are not loaded")
        return tenant_offers

    def _visible_to(self, tenant_offers: TenantOffers) -> VisibleOffers:
        visible = self._visible_offers.get(tenant_offers)
        if visible is None:
            visible = self._visible_offers[tenant_offers] = self._make_visible(tenant_offers)
        return visible

    async def _make_in_thread(self, tenant_offers: TenantOffers) -> None:
        try:
            visible = await asyncio.to_thread(self._make_visible, tenant_offers)
            self._visible_offers[tenant_offers] = visible
        finally:
            del self._making[tenant_offers]

    def _make_visible(self, tenant_offers: TenantOffers) -> VisibleOffers:
        return VisibleOffers(
            self._enabled, tenant_offers, search=self._search, obtainable=self._limited
        )


def _checked(offers: tuple[AnyOffer, ...]) -> dict[str, AnyOffer]:
    counted = Counter(offer.key for offer in offers)
    noun = WORDS[offers[0].kind] if offers else ""
    if doubled := [key for key, count in counted.items() if count > 1]:
        raise ValueError(f"several {noun}s have the same name: {', '.join(doubled)}")
    for offer in offers:
        if isinstance(offer, Tool | Prompt) and not OFFER_NAME.fullmatch(offer.name):
            raise ValueError(f"{noun} names must be 1 to 64 of a-z, 0-9 and _: {offer.name}")
        if isinstance(offer, ResourceOffer) and not is_uri(offer.uri):
            raise ValueError(f"{offer.uri} is not a URI")
    return {offer.key: offer for offer in offers}
