"""Find what the callers of one tenant can reach: the enabled offers, then the tenant's own."""

from collections.abc import Iterable, Mapping

from gatepost.tools.offers.app_calls import app_tools, with_own_pages
from gatepost.tools.offers.offer import WORDS, Offer, OfferKind, Tool
from gatepost.tools.offers.offer_kinds import ResourceOffer, Template
from gatepost.tools.offers.offer_set import OfferSet
from gatepost.tools.offers.server_instructions import joined_instructions
from gatepost.tools.offers.template_index import TemplateIndex
from gatepost.tools.offers.tenant_offers import Agent, OwnedOffer, TenantOffers, by_weight
from gatepost_authz.caller import TenantContext

REMEMBERED_SETS = 256
"""Permission sets of one snapshot whose lists are kept."""
MAX_COMPARED = 100
"""A page whose URI begins as more templates do counts as the page of all their servers."""


class OfferIndex:
    """Offers by kind and name or URI; templates by how specific they are."""

    __slots__ = ("by_key", "entries", "template_keys", "templates")

    def __init__(self, entries: Iterable[OwnedOffer]) -> None:
        self.entries = tuple(entries)
        self.by_key: dict[OfferKind, dict[str, OwnedOffer]] = {kind: {} for kind in WORDS}
        for entry in self.entries:
            if not isinstance(entry.offer, Template):
                self.by_key[entry.offer.kind][entry.offer.key] = entry
        self.template_keys = set[str]()
        self.templates = TemplateIndex[tuple[OwnedOffer, Template]]()
        """The most specific ones first."""
        for entry in sorted(self.entries, key=by_weight):
            if isinstance(entry.offer, Template):
                self.template_keys.add(entry.offer.key)
                self.templates.add(entry.offer.template, (entry, entry.offer))

    def conflicts(self, offer: Offer) -> bool:
        """Return whether an offer here has the name or the URIs of *offer*."""
        if isinstance(offer, Template):
            return offer.key in self.template_keys
        if offer.key in self.by_key[offer.kind]:
            return True
        return isinstance(offer, ResourceOffer) and self.matches(offer.uri)

    def matches(self, uri: str) -> bool:
        """Return whether one of the templates matches."""
        return next(self.templates.matching(uri), None) is not None


def owners(uri: str, *indexes: OfferIndex) -> list[str]:
    """Return the ids of the servers that may answer a URI; empty for the configuration."""
    for index in indexes:
        document = index.by_key["document"].get(uri)
        entries = [document] if document is not None else []
        if document is None:
            entries = [entry for entry, _ in index.templates.matching(uri, MAX_COMPARED)]
        if entries:
            return [entry.offer.origin.server_id if entry.offer.origin else "" for entry in entries]
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
        tenant_index = OfferIndex(
            entry
            for entry in tenant_offers.entries
            if not enabled.conflicts(entry.owner)
            and not (isinstance(entry.offer, Tool) and entry.offer.name in search)
        )
        entries = with_own_pages(
            tenant_index.entries, lambda uri: owners(uri, enabled, tenant_index)
        )
        self._tenant_index = (
            tenant_index if entries == tenant_index.entries else OfferIndex(entries)
        )
        self._apps = app_tools(self._tenant_index.entries)
        self._agents, self._ttl_ms = tenant_offers.agents, tenant_offers.ttl_ms
        self._instructions = tenant_offers.instructions
        self._all = sorted(
            (*enabled.entries, *self._tenant_index.entries), key=lambda entry: entry.offer.key
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
            entry = self._tenant_index.by_key[kind].get(key)
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
        if name in self._enabled.by_key["tool"] or name in self._tenant_index.by_key["tool"]:
            return name
        agent = self.agent_of(caller)
        keys = [entry.offer.key for entry in self._apps[name] if self._shows(entry, caller, agent)]
        return keys[0] if len(keys) == 1 else name

    def _document(
        self, uri: str, caller: TenantContext, agent: Agent | None, *, is_taken: bool
    ) -> Offer | None:
        """Return the most specific template that matches, or the tenant's resource."""
        for entry, template in self._enabled.templates.matching(uri):
            is_taken = True
            if self._shows(entry, caller, agent):
                return template
        if is_taken:
            return None
        document = self._tenant_index.by_key["document"].get(uri)
        if document is not None and self._shows(document, caller, agent):
            return document.offer
        for entry, template in self._tenant_index.templates.matching(uri):
            if self._shows(entry, caller, agent):
                return template
        return None

    def _shows(self, entry: OwnedOffer, caller: TenantContext, agent: Agent | None) -> bool:
        if agent is not None and entry.capability not in agent.capabilities:
            return False
        return self._obtainable is None or self.hidden_by(entry.offer) <= caller.scopes

    def visible(self, caller: TenantContext, *, every_tool: bool = False) -> OfferSet:
        """
        Return what the caller can see; the same object for the same permissions.

        With *every_tool*, agents with the mode `search` get all tools that they reach.
        """
        agent = self.agent_of(caller)
        key = (caller.scopes & self._deciding, agent, every_tool)
        visible = self._visible.get(key)
        if visible is None:
            reached = [entry.offer for entry in self._all if self._shows(entry, caller, agent)]
            servers = {offer.origin.server_id for offer in reached if offer.origin is not None}
            instructions = joined_instructions(
                entry for entry in self._instructions if entry.server_id in servers
            )
            if agent is not None and agent.mode == "search" and not every_tool:
                reached = [offer for offer in reached if not isinstance(offer, Tool)]
                reached = [*self._search.values(), *reached]
            if len(self._visible) >= REMEMBERED_SETS:
                self._visible.pop(next(iter(self._visible)))
            visible = self._visible[key] = OfferSet(
                reached, ttl_ms=self._ttl_ms, instructions=instructions
            )
        return visible

    def tool(self, name: str) -> Tool | None:
        """Return the tenant's own tool of that name, for all of its callers alike."""
        entry = self._tenant_index.by_key["tool"].get(name)
        return entry.offer if entry is not None and isinstance(entry.offer, Tool) else None

    def tools(self) -> list[Tool]:
        """Return the tenant's own tools, for all of its callers alike."""
        return [
            entry.offer for entry in self._tenant_index.entries if isinstance(entry.offer, Tool)
        ]
