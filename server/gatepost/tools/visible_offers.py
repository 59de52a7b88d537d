"""Find what the callers of one tenant can reach: the enabled offers, then the tenant's own."""

from collections.abc import Iterable, Mapping, Sequence

from gatepost.tools.api import WORDS, Offer, OfferKind, Tool
from gatepost.tools.app_calls import app_tools, with_own_pages
from gatepost.tools.offer_set import OfferSet
from gatepost.tools.offers import ResourceOffer, Template
from gatepost.tools.server_instructions import joined_instructions
from gatepost.tools.tenant_offers import Agent, OwnedOffer, TenantOffers, by_weight
from gatepost_authz.caller import TenantContext

REMEMBERED_SETS = 256
"""Permission sets of one snapshot whose lists are kept."""


class OfferIndex:
    """Offers by kind and name or URI; templates by how specific they are."""

    __slots__ = ("by_key", "entries", "templates")

    def __init__(self, entries: Iterable[OwnedOffer]) -> None:
        self.entries = tuple(entries)
        self.by_key: dict[OfferKind, dict[str, OwnedOffer]] = {kind: {} for kind in WORDS}
        for entry in self.entries:
            if not isinstance(entry.offer, Template):
                self.by_key[entry.offer.kind][entry.offer.key] = entry
        templates = [one for one in self.entries if isinstance(one.offer, Template)]
        self.templates: Sequence[tuple[OwnedOffer, Template]] = [
            (one, one.offer)
            for one in sorted(templates, key=by_weight)
            if isinstance(one.offer, Template)
        ]

    def takes(self, offer: Offer) -> bool:
        """Return whether an offer here has the name or the URIs of *offer*."""
        if isinstance(offer, Template):
            return any(one.key == offer.key for _, one in self.templates)
        if offer.key in self.by_key[offer.kind]:
            return True
        return isinstance(offer, ResourceOffer) and self.matches(offer.uri)

    def matches(self, uri: str) -> bool:
        """Return whether one of the templates matches."""
        return any(one.template.match(uri) is not None for _, one in self.templates)


def owners(uri: str, *indexes: OfferIndex) -> list[str]:
    """Return the ids of the servers that may answer a URI; empty for the configuration."""
    for index in indexes:
        named = index.by_key["document"].get(uri)
        found = [named] if named is not None else []
        if named is None:
            found = [one for one, offer in index.templates if offer.template.match(uri)]
        if found:
            return [one.offer.origin.server_id if one.offer.origin else "" for one in found]
    return []


class VisibleOffers:
    """
    Decides what each caller of a tenant reaches, for one snapshot of the tenant's offers.

    *enabled* are the offers of the configuration. No offer of the tenant takes the name of one of
    them, even if the caller cannot reach that one. *search* are the tools that agents with the mode
    `search` see instead of all others. *obtainable* are the scopes that callers can step up to;
    None means all of them.
    """

    def __init__(
        self,
        enabled: OfferIndex,
        tenant_offers: TenantOffers,
        *,
        search: Mapping[str, Tool],
        obtainable: frozenset[str] | None,
    ) -> None:
        self._enabled, self._search, self._obtainable = enabled, search, obtainable
        own = OfferIndex(
            one
            for one in tenant_offers.entries
            if not enabled.takes(one.owner)
            and not (isinstance(one.offer, Tool) and one.offer.name in search)
        )
        entries = with_own_pages(own.entries, lambda uri: owners(uri, enabled, own))
        self._own = own if entries == own.entries else OfferIndex(entries)
        self._apps = app_tools(self._own.entries)
        self._agents, self._ttl_ms = tenant_offers.agents, tenant_offers.ttl_ms
        self._instructions = tenant_offers.instructions
        self._all = sorted(
            (*enabled.entries, *self._own.entries), key=lambda entry: entry.offer.key
        )
        hidden = (self.hidden_by(entry.offer) for entry in self._all)
        self._deciding = frozenset[str]().union(*hidden)
        self._visible: dict[tuple[frozenset[str], Agent | None, bool], OfferSet] = {}

    def hidden_by(self, offer: Offer) -> frozenset[str]:
        """Return the scopes that a caller must have to see an offer."""
        return frozenset() if self._obtainable is None else offer.scopes - self._obtainable

    def agent_of(self, caller: TenantContext) -> Agent | None:
        """Return the agent for the caller's client."""
        return self._agents.get(caller.client_id or "") if self._agents else None

    def offer(self, kind: OfferKind, key: str, caller: TenantContext) -> Offer | None:
        """Return the offer of that name or URI if the caller can reach it."""
        agent = self.agent_of(caller)
        if agent is not None and agent.mode == "search" and kind == "tool" and key in self._search:
            return self._search[key]
        entry = self._enabled.by_key[kind].get(key)
        if entry is None and kind != "document":
            entry = self._own.by_key[kind].get(key)
        if entry is not None and self._shows(entry, caller, agent):
            return entry.offer
        if kind != "document":
            return None
        return self._document(key, caller, agent, is_taken=entry is not None)

    def called_name(self, name: str, caller: TenantContext) -> str:
        """
        Return the name of the tool that a call means.

        That is *name* itself, unless no tool has it and it is one server's own name for a tool that
        the caller can reach, and that server has pages of MCP Apps. If two servers have such a
        tool, the call means neither of them.
        """
        if name not in self._apps or name in self._search:
            return name
        if name in self._enabled.by_key["tool"] or name in self._own.by_key["tool"]:
            return name
        agent = self.agent_of(caller)
        meant = [one.offer.key for one in self._apps[name] if self._shows(one, caller, agent)]
        return meant[0] if len(meant) == 1 else name

    def _document(
        self, uri: str, caller: TenantContext, agent: Agent | None, *, is_taken: bool
    ) -> Offer | None:
        """Return the most specific template that matches, or the tenant's resource."""
        for entry, template in self._enabled.templates:
            if template.template.match(uri) is not None:
                is_taken = True
                if self._shows(entry, caller, agent):
                    return template
        if is_taken:
            return None
        own = self._own.by_key["document"].get(uri)
        if own is not None and self._shows(own, caller, agent):
            return own.offer
        for entry, template in self._own.templates:
            if self._shows(entry, caller, agent) and template.template.match(uri) is not None:
                return template
        return None

    def _shows(self, entry: OwnedOffer, caller: TenantContext, agent: Agent | None) -> bool:
        if agent is not None and entry.capability not in agent.capabilities:
            return False
        return self._obtainable is None or self.hidden_by(entry.offer) <= caller.scopes

    def visible(self, caller: TenantContext, *, whole: bool = False) -> OfferSet:
        """
        Return what the caller can see; the same object for the same permissions.

        With *whole*, agents with the mode `search` get all tools that they reach.
        """
        agent = self.agent_of(caller)
        key = (caller.scopes & self._deciding, agent, whole)
        visible = self._visible.get(key)
        if visible is None:
            reached = [one.offer for one in self._all if self._shows(one, caller, agent)]
            servers = {one.origin.server_id for one in reached if one.origin is not None}
            instructions = joined_instructions(
                one for one in self._instructions if one.server_id in servers
            )
            if agent is not None and agent.mode == "search" and not whole:
                reached = [one for one in reached if not isinstance(one, Tool)]
                reached = [*self._search.values(), *reached]
            if len(self._visible) >= REMEMBERED_SETS:
                self._visible.pop(next(iter(self._visible)))
            visible = self._visible[key] = OfferSet(
                reached, ttl_ms=self._ttl_ms, instructions=instructions
            )
        return visible

    def tool(self, name: str) -> Tool | None:
        """Return the tenant's own tool of that name, for all of its callers alike."""
        entry = self._own.by_key["tool"].get(name)
        return entry.offer if entry is not None and isinstance(entry.offer, Tool) else None

    def tools(self) -> list[Tool]:
        """Return the tenant's own tools, for all of its callers alike."""
        return [one.offer for one in self._own.entries if isinstance(one.offer, Tool)]
