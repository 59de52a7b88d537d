"""The objects that manage and serve upstreams in one process, and reload them."""

import logging
from collections.abc import AsyncIterator, Callable, Sequence, Set
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

from gatepost.audit.writer import AuditWriter
from gatepost.background import TaskSet
from gatepost.config.settings import Config
from gatepost.credentials.credential import CredentialDenied, CredentialUnavailable
from gatepost.credentials.tenant_credentials import CredentialRegistry
from gatepost.credentials.token_client import CredentialServices
from gatepost.mcp.change_notifications import ChangePubSub
from gatepost.outbound.http_client import OutboundClient
from gatepost.runtime.closing import close_all
from gatepost.runtime.upstream_metrics import UpstreamMetrics
from gatepost.secrets.cache import SecretCache
from gatepost.secrets.keyring import KeyRing
from gatepost.secrets.store import SecretUnreadable
from gatepost.storage.change_poller import ChangePoller
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.leases import Leases
from gatepost.storage.records import Records
from gatepost.storage.shared_store import SharedStore
from gatepost.telemetry.metric_families import OTHER
from gatepost.tools.calls.redaction import Redaction
from gatepost.tools.calls.registry import Registry, Unknown
from gatepost.tools.context.interfaces import ListName, SignedHeaders
from gatepost.tools.offers.offer import CallContext, ToolFailure
from gatepost.upstreams.administration import UpstreamAdministration
from gatepost.upstreams.agent_administration import AgentAdministration
from gatepost.upstreams.calls.calls import UpstreamCalls
from gatepost.upstreams.catalogue import Catalogue
from gatepost.upstreams.change_counter import SUBJECT, ChangeCounter
from gatepost.upstreams.configured import ConfiguredUpstreams
from gatepost.upstreams.management_audit import ManagementAudit
from gatepost.upstreams.refresh import CatalogueRefresher
from gatepost.upstreams.sealed_headers import SealedHeaders
from gatepost.upstreams.server_credentials import UpstreamCredentials
from gatepost.upstreams.store import UpstreamStore, configured_id
from gatepost.upstreams.subscription import UpstreamSubscription
from gatepost.upstreams.transport.connections import UpstreamConnections
from gatepost.upstreams.transport.stdio_program import ProgramServices
from gatepost.upstreams.update import CatalogueUpdate
from gatepost.upstreams.upstream_offers import UpstreamOffers
from gatepost.upstreams.upstream_server import UpstreamServer
from gatepost.upstreams.watch import ChangeWatch
from gatepost_authz.caller import TenantContext

log = logging.getLogger(__name__)


class UpstreamParts(Protocol):
    """The services of the process that the management of upstreams uses."""

    records: Records
    shared_store: SharedStore
    changes: ChangePoller
    secrets: SecretCache
    keyring: KeyRing
    outbound: OutboundClient
    audit_writer: AuditWriter
    registry: Registry


class ClientNotifications:
    """
    Notifies the clients of a tenant, at all replicas, of changes; a command (None) has no clients.
    """

    def __init__(self, pubsub: ChangePubSub | None = None) -> None:
        self._pubsub = pubsub

    async def relisted(self, tenant: str, lists: frozenset[ListName]) -> None:
        """Tell of changed lists."""
        if self._pubsub is not None:
            for name in sorted(lists):
                await self._pubsub.notifier_for(tenant).listed(name)

    async def updated(self, tenant: str, uri: str) -> None:
        """Tell of new content of a resource."""
        if self._pubsub is not None:
            await self._pubsub.notifier_for(tenant).updated(uri)


class UpstreamServices:
    """
    The registry of upstreams, their credentials and offers, and their administration.

    Nothing is fetched in the background unless the services are `running`.
    """

    def __init__(
        self,
        parts: UpstreamParts,
        config: Config,
        *,
        clients: ClientNotifications | None = None,
        suspended: Callable[[], Set[str]] = frozenset,
    ) -> None:
        self._parts, self.keyring, self._suspended = parts, parts.keyring, suspended
        self._ending = TaskSet()
        self._redaction = Redaction(parts.secrets)
        self.configured = ConfiguredUpstreams(config)
        self.registry = CredentialRegistry(
            CredentialServices(
                records=parts.records,
                shared_store=parts.shared_store,
                secrets=parts.secrets,
                keyring=parts.keyring,
                outbound=parts.outbound,
            )
        )
        sealed = SealedHeaders(parts.secrets)
        self.credentials = UpstreamCredentials(self.registry, sealed, lambda: self.configured)
        self.counter = ChangeCounter(parts.records, parts.shared_store)
        self.store = UpstreamStore(parts.records, sealed, self.counter, configured=self.configured)
        programs = ProgramServices(self._secret, self._redacted)
        credential_of = self.credentials.for_server
        self.connections = UpstreamConnections(parts.outbound, credential_of, programs)
        self._watch = ChangeWatch(self.counter)
        leases, clients = Leases(parts.records), clients or ClientNotifications()
        self.refresher = CatalogueRefresher(
            self.store,
            CatalogueUpdate(self.store, self.connections, clients.relisted, self._redacted),
            self._watch,
            leases,
            UpstreamSubscription(self.store, self.connections, leases, clients.updated),
            suspended=suspended,
        )
        self.calls = self._upstream_calls()
        health = self.calls.health
        self.metrics = UpstreamMetrics(health.all, health.clock, self._label)
        self.offers = UpstreamOffers(self.store, self._watch, self.calls, in_use=self.refresher)
        self.catalogues = FetchedCatalogues(self.store, self.refresher)
        audit = ManagementAudit(parts.audit_writer.events)
        self.administration = self._administration(audit)
        self.agents = AgentAdministration(self.store, packs=self.packs, audit=audit)
        self._watch.notify(self._changed)
        self.apply(config)

    def _upstream_calls(self) -> UpstreamCalls:
        return UpstreamCalls(
            self.connections,
            self._parts.shared_store,
            self.keyring,
            called=self.refresher.called,
            owner_of=self._owner_of,
            is_served=self._is_served,
        )

    def _administration(self, audit: ManagementAudit) -> UpstreamAdministration:
        return UpstreamAdministration(
            self.store,
            self.catalogues,
            address_policy=lambda: self._parts.outbound.address_policy,
            forget=self._forget,
            audit=audit,
        )

    def apply(self, config: Config) -> None:
        """Use the tables of a configuration from now on."""
        self.configured = ConfiguredUpstreams(config)
        self.store.apply(self.configured)
        self.registry.apply(config)

    def packs(self) -> dict[str, str]:
        """Return the names of the enabled packs, each with a description."""
        names = sorted({tool.pack for tool in self._parts.registry.tools.values() if tool.pack})
        return {name: f"The tools of the pack {name}" for name in names}

    async def signed_headers(
        self, ctx: CallContext, name: str, url: str, *, refused: SignedHeaders | None
    ) -> SignedHeaders:
        """Return the headers of a `[credentials]` table for a tool; raises ToolFailure."""
        tenant = ctx.caller.tenant_id
        credential = self.registry.for_tool(tenant, name, url)
        details = {"tenant": tenant, "credential": name, "request_id": ctx.request_id}
        try:
            if refused is not None:
                await credential.refused(refused)
            headers = await credential.headers(ctx.caller.principal_key)
        except CredentialDenied as denied:
            log.warning("credential_withheld", extra=details)
            raise ToolFailure("denied", str(denied)) from None
        except CredentialUnavailable as problem:
            raise ToolFailure("upstream_unavailable", str(problem)) from None
        log.info("credential_used", extra=details)
        return headers

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep the catalogues of served tenants fresh during the block."""
        async with AsyncExitStack() as closing:
            following = self._parts.changes.following(SUBJECT, self._watch.take_up)
            await closing.enter_async_context(following)
            await closing.enter_async_context(self.refresher.running())
            yield

    def end(self, is_ended: Callable[[TenantContext], bool]) -> None:
        """End the parked calls of these callers, and all that suspended tenants have here."""
        self.calls.parked.end(is_ended)
        for tenant in self._suspended():
            self.refresher.end(tenant)
            self.offers.outdate(tenant)
            self._ending.start(self.connections.end(tenant))

    def _owner_of(self, caller: TenantContext, uri: str) -> str | None:
        """Return the id of the server whose resource a caller reads; empty for one of our own."""
        try:
            offer = self._parts.registry.offer("document", uri, caller)
        except (Unknown, StoreUnavailable):
            return None
        return "" if offer.origin is None else offer.origin.server_id

    async def _is_served(self, server: UpstreamServer) -> bool:
        """Return whether a server is still registered under its URL, and not disabled."""
        try:
            stored = await self.store.server(server.tenant, server.id)
        except StoreUnavailable:
            return True  # the last known state; a task asks again with its next poll
        return stored is not None and (stored.status, stored.url) == ("active", server.url)

    def _changed(self, tenant: str) -> None:
        """End the parked calls of servers that an administrator removed, at any replica."""
        if self.calls.parked.servers(tenant):
            self._ending.start(self._end_removed(tenant))

    async def _end_removed(self, tenant: str) -> None:
        try:
            servers = await self.store.servers(tenant)
        except StoreUnavailable:
            return  # another change, or the timeout of the client's answer, ends them
        self.calls.parked.end_removed(
            tenant, {active.id for active in servers if active.status == "active"}
        )

    async def aclose(self) -> None:
        """End the calls, close the connections, and end the renewals of tokens."""
        await close_all(
            self.calls.aclose, self.connections.aclose, self.registry.aclose, self._ending.wait
        )

    async def _forget(self, server: UpstreamServer) -> None:
        """End what belongs to a registration that changed or is gone."""
        self.calls.health.forget(server.id)
        await self.connections.forget(server.id)

    def _label(self, key: tuple[str, str]) -> str:
        """Return the name of a configured server, by its tenant and id, for the metrics."""
        tenant, server_id = key
        names = (configured.name for configured in self.configured.settings)
        return next((name for name in names if configured_id(tenant, name) == server_id), OTHER)

    async def _secret(self, tenant: str, name: str) -> str | None:
        try:
            secret = await self._parts.secrets.value(tenant, name)
        except SecretUnreadable:
            return None
        return None if secret is None else secret.value

    def _redacted(self, tenant: str, text: str) -> str:
        return self._redaction.redactor_for(tenant).clean(text)


class FetchedCatalogues:
    """Implements `Catalogues` with the store and the refresher."""

    def __init__(self, store: UpstreamStore, refresher: CatalogueRefresher) -> None:
        self._store, self._refresher = store, refresher

    async def current(self, server: UpstreamServer) -> Catalogue | None:
        """Return the stored catalogue; if there is none, it is fetched in the background."""
        catalogue = await self._store.catalogues.get(server.tenant, server.id)
        if catalogue is None:
            self._refresher.request_catalogue(server, None)
        return catalogue

    async def refresh(self, server: UpstreamServer) -> Catalogue:
        """Fetch the catalogue now; raises ConnectionFailure."""
        return await self._refresher.refresh(server.tenant, server.id)

    async def accept(self, server: UpstreamServer, digests: Sequence[str]) -> Catalogue | None:
        """Accept changes of the stored catalogue."""
        await self._store.catalogues.accept(server, digests)
        return await self._store.catalogues.get(server.tenant, server.id)
