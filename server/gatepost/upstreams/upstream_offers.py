"""Keep the offers of the tenants that this process serves, as snapshots of the store."""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from gatepost.storage.errors import StoreUnavailable
from gatepost.tools.api import Offer
from gatepost.tools.offers import ResourceOffer, Template
from gatepost.tools.server_instructions import ServerInstructions
from gatepost.tools.tenant_offers import Agent, TenantOffers
from gatepost.upstreams.agents import AgentRegistration
from gatepost.upstreams.catalogue import Catalogue, LeftOut, same_content
from gatepost.upstreams.cleaning import shown
from gatepost.upstreams.offered_names import tool_prefix
from gatepost.upstreams.plan import Principal
from gatepost.upstreams.server_offers import OfferCalls, ServerOffers, server_offers
from gatepost.upstreams.store import UpstreamStore
from gatepost.upstreams.upstream_server import UpstreamServer
from gatepost.upstreams.watch import ChangeWatch
from gatepost_authz.caller import TenantContext

MAX_TENANTS = 500
"""The number of tenants whose offers are kept in memory."""
MAX_CALLERS = 2_000
"""The number of callers, of all tenants, with catalogues of their own in memory."""
RETRY_S = 1.0
"""How long an outdated snapshot may be used while the store does not answer."""
AGAIN_S = 0.1
"""How long a snapshot may be used that became outdated while it was read."""
NO_OFFERS = TenantOffers()

Built = tuple[UpstreamServer, Catalogue, ServerOffers]
Key = TypeVar("Key", str, tuple[str, Principal])

log = logging.getLogger("gatepost.upstreams")


class Wanted:
    """Receives the source's reports on its callers; `CatalogueRefresher` acts on them."""

    def used(self, tenant: str) -> None:
        """Note that a tenant's offers are used."""

    def want(self, server: UpstreamServer, principal: Principal | None) -> None:
        """Note that a catalogue is missing, or that this caller uses its own."""


class _Snapshot:
    """The snapshot of a tenant, or of one of its callers."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.offers: TenantOffers | None = None
        self.stale = True
        self.retry_at = 0.0
        self.personal: tuple[UpstreamServer, ...] = ()
        """The servers that show each caller different offers."""
        self.left_out: dict[str, tuple[LeftOut, ...]] = {}
        self.built: dict[str, Built] = {}


class UpstreamOffers:
    """Implements `OfferSource` for upstreams and agents; reads only the store."""

    def __init__(
        self,
        store: UpstreamStore,
        watch: ChangeWatch,
        calls: OfferCalls,
        *,
        own: Iterable[Offer] = (),
        in_use: Wanted | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make the source; *own* are the configuration's offers, which no upstream replaces."""
        self._store, self._watch, self._calls, self._clock = store, watch, calls, clock
        self._own = tuple(own)
        self._in_use = in_use or Wanted()
        self._tenants: OrderedDict[str, _Snapshot] = OrderedDict()
        self._callers: OrderedDict[tuple[str, Principal], _Snapshot] = OrderedDict()
        watch.tell(self._changed)

    def at_hand(self, caller: TenantContext) -> TenantOffers | None:
        """Implement `OfferSource`."""
        tenant = caller.tenant_id
        kept = self._tenants.get(tenant)
        if kept is None or kept.offers is None or self._is_outdated(kept):
            return None
        self._tenants.move_to_end(tenant)
        self._in_use.used(tenant)
        if not kept.personal:
            return kept.offers
        own = self._callers.get((tenant, caller.principal_key))
        if own is None or self._is_outdated(own):
            return None
        self._callers.move_to_end((tenant, caller.principal_key))
        return own.offers

    async def load(self, caller: TenantContext) -> TenantOffers:
        """Implement `OfferSource`."""
        tenant = caller.tenant_id
        kept = self._kept(self._tenants, tenant, MAX_TENANTS)
        shared = await self._loaded(tenant, kept, None)
        self._in_use.used(tenant)
        if not kept.personal:
            return shared
        key = (tenant, caller.principal_key)
        own = self._kept(self._callers, key, MAX_CALLERS)
        return await self._loaded(tenant, own, caller.principal_key)

    def outdate(self, tenant: str) -> None:
        """Read the offers of a tenant anew before they are used again."""
        self._changed(tenant)

    def left_out(self, tenant: str, server_id: str) -> tuple[LeftOut, ...]:
        """Return what of a server's catalogue is not offered, as far as this process knows."""
        kept = self._tenants.get(tenant)
        return () if kept is None else kept.left_out.get(server_id, ())

    def _is_outdated(self, kept: _Snapshot) -> bool:
        return kept.stale and kept.retry_at <= self._clock()

    def _kept(self, kept: "OrderedDict[Key, _Snapshot]", key: Key, most: int) -> _Snapshot:
        if key not in kept:
            kept[key] = _Snapshot()
            while len(kept) > most:
                gone, _ = kept.popitem(last=False)
                if isinstance(gone, str):
                    self._watch.forget(gone)
        kept.move_to_end(key)
        return kept[key]

    def _changed(self, tenant: str) -> None:
        if (kept := self._tenants.get(tenant)) is not None:
            kept.stale = True
        for key, own in self._callers.items():
            if key[0] == tenant:
                own.stale = True

    async def _loaded(
        self, tenant: str, kept: _Snapshot, principal: Principal | None
    ) -> TenantOffers:
        async with kept.lock:
            now = self._clock()
            if kept.offers is not None and (not kept.stale or kept.retry_at > now):
                return kept.offers
            try:
                await self._watch.track(tenant)
                kept.stale = False  # a change from now on makes it stale again
                await self._rebuild(tenant, kept, principal)
                # The waiting callers must find it, even if it became outdated meanwhile.
                kept.retry_at = self._clock() + AGAIN_S if kept.stale else 0.0
            except StoreUnavailable:
                kept.stale = True
                if kept.offers is None:
                    raise
                kept.retry_at = now + RETRY_S
            return kept.offers if kept.offers is not None else NO_OFFERS

    async def _rebuild(self, tenant: str, kept: _Snapshot, principal: Principal | None) -> None:
        servers = [one for one in await self._store.servers(tenant) if one.status == "active"]
        agents = await self._store.agents(tenant)
        kept.personal = tuple(one for one in servers if one.catalogue == "person")
        catalogues: list[tuple[UpstreamServer, Catalogue]] = []
        for server in servers:
            own = principal if server.catalogue == "person" else None
            if server.catalogue == "person" and principal is None:
                continue
            catalogue = await self._store.catalogues.get(tenant, server.id, own)
            if catalogue is not None:
                catalogues.append((server, catalogue))
            if catalogue is None or own is not None:
                self._in_use.want(server, own)
        # A caller's snapshot shares the offers of the servers that show all callers the same.
        known = {**self._tenants[tenant].built} if tenant in self._tenants else {}
        kept.built = await asyncio.to_thread(self._built, {**known, **kept.built}, catalogues)
        built = [one for _, _, one in kept.built.values()]
        offers, left_out = merged(built, self._own)
        kept.left_out = left_out
        ttl_ms = min((one.ttl_ms for _, one in catalogues), default=None)
        made = TenantOffers(
            offers,
            agents=_agents(agents),
            ttl_ms=ttl_ms,
            instructions=tuple(
                ServerInstructions(
                    server.id, shown(server.name), tool_prefix(server.name), catalogue.instructions
                )
                for server, catalogue in catalogues
                if catalogue.instructions
            ),
        )
        if kept.offers is None or not _same(kept.offers, made):
            kept.offers = made

    def _built(
        self,
        known: Mapping[str, Built],
        catalogues: Sequence[tuple[UpstreamServer, Catalogue]],
    ) -> dict[str, Built]:
        """Return the offers of each server; those that did not change stay the same objects."""
        built: dict[str, Built] = {}
        for server, catalogue in catalogues:
            before = known.get(server.id)
            if before is not None and before[0] == server and same_content(before[1], catalogue):
                built[server.id] = before
            else:
                offers = server_offers(server, catalogue, self._calls)
                built[server.id] = (server, catalogue, offers)
        return built


def merged(
    servers: Iterable[ServerOffers], own: Iterable[Offer]
) -> tuple[tuple[Offer, ...], dict[str, tuple[LeftOut, ...]]]:
    """
    Return the offers of several servers together, and what of each is left out.

    Names and URIs belong to the configuration first, then to the server that is registered
    longest. A template takes no URIs that could be another owner's.
    """
    taken: dict[tuple[str, str], str] = {(one.kind, one.key): "Gatepost" for one in own}
    templates = [("Gatepost", one) for one in own if isinstance(one, Template)]
    documents = [("Gatepost", one) for one in own if isinstance(one, ResourceOffer)]
    offers: list[Offer] = []
    left_out: dict[str, tuple[LeftOut, ...]] = {}
    names: set[str] = set()
    for each in servers:
        problems = list(each.left_out)
        name = each.server.name
        kept: list[Offer] = []
        for offer in each.offers if name not in names else ():
            owner = taken.get((offer.kind, offer.key)) or _owner(offer, name, templates)
            if owner is not None:
                problems.append(_left_out(offer, owner))
                continue
            taken[offer.kind, offer.key] = name
            kept.append(offer)
        if name in names:
            reason = "another server of this name is in the configuration"
            problems.append(LeftOut(section="tools", key="", reason=reason))
        names.add(name)
        templates += [(name, one) for one in kept if isinstance(one, Template)]
        documents += [(name, one) for one in kept if isinstance(one, ResourceOffer)]
        offers += kept
        left_out[each.server.id] = tuple(problems)
    return tuple(offers), left_out


def _owner(offer: Offer, name: str, templates: Sequence[tuple[str, Template]]) -> str | None:
    """Return the other owner of a template that has the same URIs, or None."""
    for owner, template in templates:
        if owner == name:
            continue
        if isinstance(offer, ResourceOffer) and template.template.match(offer.uri) is not None:
            return owner
        if isinstance(offer, Template):
            heads = offer.template.head, template.template.head
            if heads[0].startswith(heads[1]) or heads[1].startswith(heads[0]):
                return owner
    return None


def _left_out(offer: Offer, owner: str) -> LeftOut:
    section = {"tool": "tools", "prompt": "prompts"}.get(offer.kind, "resources")
    if isinstance(offer, Template):
        section = "templates"
    key = shown(offer.origin.key if offer.origin is not None else offer.key)
    reason = f"{owner} has this name or URI already"
    return msgspec.convert({"section": section, "key": key, "reason": reason}, LeftOut)


def _agents(agents: Iterable[AgentRegistration]) -> Mapping[str, Agent]:
    found: dict[str, Agent] = {}
    for one in agents:
        for client_id in one.client_ids:
            # The configuration comes first.
            found.setdefault(client_id, Agent(frozenset(one.capabilities), one.mode))
    return found


def _same(before: TenantOffers, after: TenantOffers) -> bool:
    if len(before.offers) != len(after.offers) or before.ttl_ms != after.ttl_ms:
        return False
    if before.instructions != after.instructions:
        return False
    identical = all(one is other for one, other in zip(before.offers, after.offers, strict=True))
    return identical and before.agents == after.agents
