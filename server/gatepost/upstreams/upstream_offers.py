"""Keep the offers of the tenants that this process serves, as snapshots of the store."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from gatepost.storage.errors import StoreUnavailable
from gatepost.tools.offers.offer import Offer
from gatepost.tools.offers.offer_kinds import ResourceOffer, Template
from gatepost.tools.offers.server_instructions import ServerInstructions
from gatepost.tools.offers.template_index import TemplateIndex
from gatepost.tools.offers.tenant_offers import Agent, TenantOffers
from gatepost.upstreams.agents import AgentRegistration
from gatepost.upstreams.catalogue import Catalogue, LeftOut, same_content
from gatepost.upstreams.cleaning import visible_line
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

MAX_COMPARED = 100
"""A resource whose URI begins as more templates of another server do belongs to that server."""

Built = tuple[UpstreamServer, Catalogue, ServerOffers]
MergedOffers = tuple[tuple[Offer, ...], dict[str, tuple[LeftOut, ...]]]
"""The offers of several servers together, and what of each server is left out."""
Key = TypeVar("Key", str, tuple[str, Principal])


class CatalogueDemandListener:
    """Receives the source's reports on its callers; `CatalogueRefresher` acts on them."""

    def used(self, tenant: str) -> None:
        """Note that a tenant's offers are used."""

    def request_catalogue(self, server: UpstreamServer, principal: Principal | None) -> None:
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
        in_use: CatalogueDemandListener,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._watch, self._calls, self._clock = store, watch, calls, clock
        self._in_use = in_use
        self._tenants: OrderedDict[str, _Snapshot] = OrderedDict()
        self._callers: OrderedDict[tuple[str, Principal], _Snapshot] = OrderedDict()
        watch.notify(self._changed)

    def at_hand(self, caller: TenantContext) -> TenantOffers | None:
        """Implement `OfferSource`."""
        tenant = caller.tenant_id
        snapshot = self._tenants.get(tenant)
        if snapshot is None or snapshot.offers is None or self._is_outdated(snapshot):
            return None
        self._tenants.move_to_end(tenant)
        self._in_use.used(tenant)
        if not snapshot.personal:
            return snapshot.offers
        snapshot_of_caller = self._callers.get((tenant, caller.principal_key))
        if snapshot_of_caller is None or self._is_outdated(snapshot_of_caller):
            return None
        self._callers.move_to_end((tenant, caller.principal_key))
        return snapshot_of_caller.offers

    async def load(self, caller: TenantContext) -> TenantOffers:
        """Implement `OfferSource`."""
        tenant = caller.tenant_id
        snapshot = self._snapshot_of(self._tenants, tenant, MAX_TENANTS)
        shared = await self._loaded(tenant, snapshot, None)
        self._in_use.used(tenant)
        if not snapshot.personal:
            return shared
        key = (tenant, caller.principal_key)
        snapshot_of_caller = self._snapshot_of(self._callers, key, MAX_CALLERS)
        return await self._loaded(tenant, snapshot_of_caller, caller.principal_key)

    def outdate(self, tenant: str) -> None:
        """Read the offers of a tenant anew before they are used again."""
        self._changed(tenant)

    def left_out(self, tenant: str, server_id: str) -> tuple[LeftOut, ...]:
        """Return what of a server's catalogue is not offered, as far as this process knows."""
        snapshot = self._tenants.get(tenant)
        return () if snapshot is None else snapshot.left_out.get(server_id, ())

    def _is_outdated(self, snapshot: _Snapshot) -> bool:
        return snapshot.stale and snapshot.retry_at <= self._clock()

    def _snapshot_of(
        self, snapshots: "OrderedDict[Key, _Snapshot]", key: Key, limit: int
    ) -> _Snapshot:
        if key not in snapshots:
            snapshots[key] = _Snapshot()
            while len(snapshots) > limit:
                evicted, _ = snapshots.popitem(last=False)
                if isinstance(evicted, str):
                    self._watch.forget(evicted)
        snapshots.move_to_end(key)
        return snapshots[key]

    def _changed(self, tenant: str) -> None:
        if (snapshot := self._tenants.get(tenant)) is not None:
            snapshot.stale = True
        for key, caller_snapshot in self._callers.items():
            if key[0] == tenant:
                caller_snapshot.stale = True

    async def _loaded(
        self, tenant: str, snapshot: _Snapshot, principal: Principal | None
    ) -> TenantOffers:
        async with snapshot.lock:
            now = self._clock()
            if snapshot.offers is not None and (not snapshot.stale or snapshot.retry_at > now):
                return snapshot.offers
            try:
                await self._watch.track(tenant)
                snapshot.stale = False  # a change from now on makes it stale again
                await self._rebuild(tenant, snapshot, principal)
                # The waiting callers must find it, even if it became outdated meanwhile.
                snapshot.retry_at = self._clock() + AGAIN_S if snapshot.stale else 0.0
            except StoreUnavailable:
                snapshot.stale = True
                if snapshot.offers is None:
                    raise
                snapshot.retry_at = now + RETRY_S
            return snapshot.offers if snapshot.offers is not None else NO_OFFERS

    async def _rebuild(self, tenant: str, snapshot: _Snapshot, principal: Principal | None) -> None:
        servers = [
            server for server in await self._store.servers(tenant) if server.status == "active"
        ]
        agents = await self._store.agents(tenant)
        snapshot.personal = tuple(server for server in servers if server.catalogue == "person")
        catalogues: list[tuple[UpstreamServer, Catalogue]] = []
        for server in servers:
            catalogue_owner = principal if server.catalogue == "person" else None
            if server.catalogue == "person" and principal is None:
                continue
            catalogue = await self._store.catalogues.get(tenant, server.id, catalogue_owner)
            if catalogue is not None:
                catalogues.append((server, catalogue))
            if catalogue is None or catalogue_owner is not None:
                self._in_use.request_catalogue(server, catalogue_owner)
        # A caller's snapshot shares the offers of the servers that show all callers the same.
        built_before = {**self._tenants[tenant].built} if tenant in self._tenants else {}
        snapshot.built, (offers, snapshot.left_out) = await asyncio.to_thread(
            self._built, {**built_before, **snapshot.built}, catalogues
        )
        ttl_ms = min((catalogue.ttl_ms for _, catalogue in catalogues), default=None)
        rebuilt = TenantOffers(
            offers,
            agents=_agents(agents),
            ttl_ms=ttl_ms,
            instructions=tuple(
                ServerInstructions(
                    server.id,
                    visible_line(server.name),
                    tool_prefix(server.name),
                    catalogue.instructions,
                )
                for server, catalogue in catalogues
                if catalogue.instructions
            ),
        )
        if snapshot.offers is None or not _are_equal(snapshot.offers, rebuilt):
            snapshot.offers = rebuilt

    def _built(
        self,
        built_before: Mapping[str, Built],
        catalogues: Sequence[tuple[UpstreamServer, Catalogue]],
    ) -> tuple[dict[str, Built], MergedOffers]:
        """
        Return the offers of each server, and those of all together.

        Offers that did not change stay the same objects.
        """
        built: dict[str, Built] = {}
        for server, catalogue in catalogues:
            before = built_before.get(server.id)
            if before is not None and before[0] == server and same_content(before[1], catalogue):
                built[server.id] = before
            else:
                offers = server_offers(server, catalogue, self._calls)
                built[server.id] = (server, catalogue, offers)
        return built, merged(of_server for _, _, of_server in built.values())


def merged(servers: Iterable[ServerOffers]) -> MergedOffers:
    """
    Return the offers of several servers together, and what of each is left out.

    Names and URIs belong to the server that is registered longest. A template takes no URIs that
    could be another server's. Offers of the configuration come before all of them
    (`VisibleOffers`).
    """
    owners: dict[tuple[str, str], str] = {}
    templates = TemplateIndex[str]()
    offers: list[Offer] = []
    left_out: dict[str, tuple[LeftOut, ...]] = {}
    names: set[str] = set()
    for of_server in servers:
        problems = list(of_server.left_out)
        name = of_server.server.name
        accepted: list[Offer] = []
        for offer in of_server.offers if name not in names else ():
            owner = owners.get((offer.kind, offer.key)) or _owner(offer, templates)
            if owner is not None:
                problems.append(_left_out(offer, owner))
                continue
            owners[offer.kind, offer.key] = name
            accepted.append(offer)
        if name in names:
            reason = "another server of this name is in the configuration"
            problems.append(LeftOut(section="tools", key="", reason=reason))
        names.add(name)
        for offer in accepted:
            if isinstance(offer, Template):
                templates.add(offer.template, name)
        offers += accepted
        left_out[of_server.server.id] = tuple(problems)
    return tuple(offers), left_out


def _owner(offer: Offer, templates: TemplateIndex[str]) -> str | None:
    """Return the other server with a template that has the same URIs, or None."""
    if isinstance(offer, ResourceOffer):
        return next(templates.matching(offer.uri, MAX_COMPARED), None)
    return (
        next(templates.related(offer.template.head), None) if isinstance(offer, Template) else None
    )


def _left_out(offer: Offer, owner: str) -> LeftOut:
    section = {"tool": "tools", "prompt": "prompts"}.get(offer.kind, "resources")
    if isinstance(offer, Template):
        section = "templates"
    key = visible_line(offer.origin.key if offer.origin is not None else offer.key)
    reason = f"{owner} has this name or URI already"
    return msgspec.convert({"section": section, "key": key, "reason": reason}, LeftOut)


def _agents(agents: Iterable[AgentRegistration]) -> Mapping[str, Agent]:
    agents_by_client: dict[str, Agent] = {}
    for agent in agents:
        for client_id in agent.client_ids:
            # The configuration comes first.
            agents_by_client.setdefault(client_id, Agent(frozenset(agent.capabilities), agent.mode))
    return agents_by_client


def _are_equal(before: TenantOffers, after: TenantOffers) -> bool:
    if len(before.offers) != len(after.offers) or before.ttl_ms != after.ttl_ms:
        return False
    if before.instructions != after.instructions:
        return False
    identical = all(old is new for old, new in zip(before.offers, after.offers, strict=True))
    return identical and before.agents == after.agents
