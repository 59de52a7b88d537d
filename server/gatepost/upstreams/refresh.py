"""Refresh catalogues in the background: new, stale, busy and changed ones."""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Set
from contextlib import asynccontextmanager
from functools import partial

from gatepost.background import during, reason_of, started
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.leases import Leases
from gatepost.storage.shared_store import Wakeable
from gatepost.upstreams.catalogue import Catalogue
from gatepost.upstreams.catalogue_store import catalogue_key
from gatepost.upstreams.connection import ConnectionFailure
from gatepost.upstreams.plan import (
    PlannedCatalogue,
    Principal,
    is_followed,
    planned_servers,
    retry_in,
)
from gatepost.upstreams.store import UpstreamStore
from gatepost.upstreams.subscription import UpstreamSubscription
from gatepost.upstreams.update import FETCH_S, CatalogueUpdate
from gatepost.upstreams.upstream_offers import CatalogueDemandListener
from gatepost.upstreams.upstream_server import UpstreamServer
from gatepost.upstreams.watch import ChangeWatch

TICK_S = 1.0
MAX_FETCHES = 32
"""The number of fetches that run at once in this process."""
MAX_TENANT_FETCHES = 8
"""The number of these fetches that one tenant may have."""
MAX_PERSONS = 500
"""The number of callers of a tenant whose own catalogues this process keeps fresh."""
MAX_FOLLOWED = 500
"""The number of servers whose notifications this process follows at most."""
USED_S = 86_400.0
"""How long after its last use a tenant's catalogues are kept fresh."""
LEASE_S = FETCH_S + 30.0
"""How long a replica may take to fetch a catalogue before another one tries."""
RECHECK_S = 15.0
"""How long to wait before checking again for a catalogue that another replica fetches."""
RANDOM = random.SystemRandom()

log = logging.getLogger(__name__)


class CatalogueRefresher(CatalogueDemandListener):
    """
    Keeps the catalogues of the tenants that this process serves fresh.

    One replica at a time fetches a catalogue, and one follows its server's notifications. The
    others read the result from the store. A slow server delays no other.
    """

    def __init__(  # noqa: PLR0913  # the composition root hands over each part by name
        self,
        store: UpstreamStore,
        update: CatalogueUpdate,
        watch: ChangeWatch,
        leases: Leases,
        subscription: UpstreamSubscription,
        *,
        clock: Callable[[], float] = time.time,
        suspended: Callable[[], Set[str]] = frozenset,
    ) -> None:
        self._suspended = suspended
        self._store, self._update, self._watch, self._leases = store, update, watch, leases
        self._subscription, self._clock = subscription, clock
        self._used: dict[str, float] = {}
        self._unplanned: set[str] = set()
        self._plans: dict[str, dict[str, PlannedCatalogue]] = {}
        self._tasks: dict[tuple[str, str], asyncio.Task[Catalogue]] = {}
        self._following: dict[tuple[str, str], tuple[UpstreamServer, asyncio.Task[None]]] = {}
        self._refreshing: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._wakeable = Wakeable()
        watch.notify(self._replan)

    def used(self, tenant: str) -> None:
        """Implement `CatalogueDemandListener`."""
        if tenant not in self._used:
            self._replan(tenant)
        self._used[tenant] = self._clock()

    def request_catalogue(self, server: UpstreamServer, principal: Principal | None) -> None:
        """Implement `CatalogueDemandListener`."""
        key = catalogue_key(server.id, principal)
        plan = self._plans.setdefault(server.tenant, {})
        if key not in plan:
            plan[key] = PlannedCatalogue(server, principal)
            persons = [
                person_key for person_key, planned in plan.items() if planned.principal is not None
            ]
            for person_key in persons[:-MAX_PERSONS]:
                del plan[person_key]
        self.used(server.tenant)
        self._wakeable.wake()

    def called(self, tenant: str, server_id: str) -> None:
        """Count a call, so that a busy server is refreshed before its catalogue is stale."""
        if (planned := self._plans.get(tenant, {}).get(server_id)) is not None:
            planned.calls += 1

    def end(self, tenant: str) -> None:
        """Fetch nothing more for a tenant, and follow none of its servers, until it is used."""
        if tenant in self._used:
            self._forget(tenant)

    async def refresh(
        self, tenant: str, server_id: str, principal: Principal | None = None
    ) -> Catalogue:
        """
        Fetch a catalogue now and return it.

        A fetch that runs already may have asked before the change that the caller wants to see:
        the next one begins when it ends, one for all who wait.

        Raises LookupError if there is no such server, ConnectionFailure if it does not answer
        within `FETCH_S`, and StoreUnavailable.
        """
        server = await self._store.server(tenant, server_id)
        if server is None:
            raise LookupError(server_id)
        self.used(tenant)
        running = self._tasks.get((tenant, catalogue_key(server_id, principal)))
        if running is not None:
            await asyncio.wait([running])
        # A caller that stops waiting does not end the fetch of the others.
        return await asyncio.shield(self._fetch(PlannedCatalogue(server, principal)))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Refresh during the block."""
        for tenant in self._store.configured_tenants - self._suspended():
            self.used(tenant)
        async with during("upstream_catalogues", self._run):
            try:
                yield
            finally:
                following = [task for _, task in self._following.values()]
                tasks = [*following, *self._tasks.values(), *self._refreshing.values()]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def start_due(self) -> None:
        """Plan new catalogues, and start due fetches; raises StoreUnavailable."""
        now = self._clock()
        for tenant in [tenant for tenant, at in self._used.items() if at + USED_S < now]:
            if tenant not in self._store.configured_tenants:
                self._forget(tenant)
        while self._unplanned:
            tenant = self._unplanned.pop()
            try:
                await self._plan(tenant)
            except StoreUnavailable:
                self._unplanned.add(tenant)
                raise
        for plan in list(self._plans.values()):
            for key, planned in list(plan.items()):
                if planned.is_due(now):
                    self._start(key, planned)

    async def wait_idle(self) -> None:
        """Return once the fetches that were started in the background have ended."""
        if self._refreshing:
            await asyncio.wait(self._refreshing.values())

    async def _run(self) -> None:
        while True:
            try:
                await self.start_due()
            except StoreUnavailable as outage:
                log.debug("catalogues_not_planned", extra={"reason": str(outage)})
            await self._wakeable.wait(TICK_S * RANDOM.uniform(0.8, 1.2))

    def _replan(self, tenant: str) -> None:
        self._unplanned.add(tenant)
        self._wakeable.wake()

    def _forget(self, tenant: str) -> None:
        del self._used[tenant]
        self._plans.pop(tenant, None)
        self._unplanned.discard(tenant)
        self._follow_only(tenant, {})

    async def _plan(self, tenant: str) -> None:
        if tenant not in self._used or tenant in self._suspended():
            return
        await self._watch.track(tenant)
        servers = [
            server for server in await self._store.servers(tenant) if server.status == "active"
        ]
        catalogues = {
            server.id: await self._store.catalogues.get(tenant, server.id)
            for server in servers
            if server.catalogue == "shared"
        }
        before = self._plans.get(tenant, {})
        self._plans[tenant] = planned_servers(servers, catalogues, before)
        followed = {
            server.id: server
            for server in servers
            if (catalogue := catalogues.get(server.id)) is not None and is_followed(catalogue)
        }
        self._follow_only(tenant, followed)

    def _follow_only(self, tenant: str, servers: dict[str, UpstreamServer]) -> None:
        for key, (server, task) in list(self._following.items()):
            if key[0] == tenant and servers.get(key[1]) != server:
                task.cancel()
                del self._following[key]
        for server_id, server in servers.items():
            key = (tenant, server_id)
            if key not in self._following and len(self._following) < MAX_FOLLOWED:
                follow = partial(
                    self._subscription.follow, server, self._relisted, self._unfollowed
                )
                self._following[key] = (server, started("upstream_subscription", follow))

    def _relisted(self, server: UpstreamServer) -> None:
        """Fetch a server's catalogue again, because it says that a list changed."""
        plan = self._plans.get(server.tenant, {})
        if (planned := plan.get(server.id)) is not None:
            planned.is_announced = True
            self._wakeable.wake()

    def _unfollowed(self, server: UpstreamServer, *, is_polled: bool) -> None:
        plan = self._plans.get(server.tenant, {})
        if (planned := plan.get(server.id)) is not None:
            planned.is_polled = is_polled

    def _start(self, key: str, planned: PlannedCatalogue) -> None:
        tenant = planned.server.tenant
        of_tenant = sum(refreshing_tenant == tenant for refreshing_tenant, _ in self._refreshing)
        if (tenant, key) in self._refreshing or (tenant, key) in self._tasks:
            return
        if len(self._refreshing) >= MAX_FETCHES or of_tenant >= MAX_TENANT_FETCHES:
            return
        # Not in a `TaskSet`: after an error the next fetch waits, and the log names the server.
        task = asyncio.create_task(self._refreshed(key, planned))
        self._refreshing[tenant, key] = task
        task.add_done_callback(lambda task: self._refreshed_once(key, planned, task))

    def _refreshed_once(
        self, key: str, planned: PlannedCatalogue, task: "asyncio.Task[None]"
    ) -> None:
        self._refreshing.pop((planned.server.tenant, key), None)
        if not task.cancelled() and task.exception() is not None:
            # Without a pause, an unexpected error would return at once.
            self._pause(planned)
            log.error(
                "catalogue_refresh_failed", extra={"server": planned.server.name, **reason_of(task)}
            )

    def _pause(self, planned: PlannedCatalogue) -> None:
        planned.attempts += 1
        planned.due_at = self._clock() + retry_in(planned.attempts)

    async def _refreshed(self, key: str, planned: PlannedCatalogue) -> None:
        tenant, lease = planned.server.tenant, f"fetch/{key}"
        try:
            if not await self._leases.take(tenant, lease, LEASE_S):
                planned.due_at = self._clock() + RECHECK_S * RANDOM.uniform(0.8, 1.2)
                return
            try:
                await self._fetch_if_due(planned)
            finally:
                await self._leases.release(tenant, lease)
        except (ConnectionFailure, StoreUnavailable):
            self._pause(planned)

    async def _fetch_if_due(self, planned: PlannedCatalogue) -> None:
        server = planned.server
        stored = await self._store.catalogues.get(server.tenant, server.id, planned.principal)
        if (
            stored is not None
            and stored.fetched_at > planned.fetched_at
            and not planned.is_announced
        ):
            planned.take(stored)
            if not stored.failure and not planned.is_due(self._clock()):
                return  # another replica fetched it
        planned.is_announced = False
        catalogue = await self._fetch(planned)
        if catalogue.failure:
            self._pause(planned)

    def _fetch(self, planned: PlannedCatalogue) -> "asyncio.Task[Catalogue]":
        server = planned.server
        key = (server.tenant, catalogue_key(server.id, planned.principal))
        task = self._tasks.get(key)
        if task is None or task.done():
            task = asyncio.create_task(self._fetched(planned, key[1]))
            self._tasks[key] = task
            task.add_done_callback(lambda task: self._on_task_end(key, task))
        return task

    async def _fetched(self, planned: PlannedCatalogue, key: str) -> Catalogue:
        catalogue = await self._update.run(planned.server, planned.principal)
        current = self._plans.get(planned.server.tenant, {}).get(key)
        planned.take(catalogue)
        if current is not None and current is not planned and current.server == planned.server:
            current.take(catalogue)
        return catalogue

    def _on_task_end(self, key: tuple[str, str], task: "asyncio.Task[Catalogue]") -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
        if not task.cancelled():
            task.exception()  # a failed fetch that no caller waits for is no error of ours
