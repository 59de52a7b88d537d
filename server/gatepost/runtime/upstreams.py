"""The objects that manage upstreams in one process, and what a reload changes of them."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from gatepost.audit.writer import AuditWriter
from gatepost.config.settings import Config
from gatepost.credentials.client import CredentialServices
from gatepost.credentials.registry import CredentialRegistry
from gatepost.outbound.client import OutboundClient
from gatepost.secrets.cache import SecretCache
from gatepost.secrets.keyring import KeyRing
from gatepost.secrets.store import SecretUnreadable
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.records import Records
from gatepost.storage.relay import Relay
from gatepost.tools.context import Listed as ListName
from gatepost.tools.redaction import Redaction
from gatepost.tools.registry import Registry
from gatepost.upstreams.administration import UpstreamAdministration
from gatepost.upstreams.agent_administration import AgentAdministration
from gatepost.upstreams.agents import AgentRegistration
from gatepost.upstreams.catalogue import Catalogue
from gatepost.upstreams.changes import ChangeCounter
from gatepost.upstreams.configured import ConfiguredUpstreams
from gatepost.upstreams.connection import ConnectionFailure, Connections
from gatepost.upstreams.management_audit import ManagementAudit
from gatepost.upstreams.sealed_headers import SealedHeaders
from gatepost.upstreams.server import UpstreamServer
from gatepost.upstreams.signing import UpstreamCredentials
from gatepost.upstreams.store import UpstreamStore
from gatepost.upstreams.transport.connections import UpstreamConnections
from gatepost.upstreams.transport.stdio_program import ProgramServices
from gatepost.upstreams.update import Announce, CatalogueUpdate

MOST_FETCHES = 8
"""The fetches that run at once beside requests of administrators."""

log = structlog.get_logger("gatepost.upstreams")


class UpstreamParts(Protocol):
    """What the management of upstreams uses of the process's services."""

    records: Records
    relay: Relay
    secrets: SecretCache
    keyring: KeyRing
    outbound: OutboundClient
    audit_writer: AuditWriter
    registry: Registry


async def announced_to_none(tenant: str, lists: frozenset[ListName]) -> None:
    """Tell no client of changed lists, because a command has none."""


class UpstreamServices:
    """
    The registry of upstreams, their credentials, and what administrators do with them.

    *announce* tells the clients of a tenant that its lists have changed.
    """

    def __init__(
        self,
        parts: UpstreamParts,
        config: Config,
        *,
        announce: Announce = announced_to_none,
    ) -> None:
        self._parts, self.keyring = parts, parts.keyring
        self._redaction = Redaction(parts.secrets)
        self.configured = ConfiguredUpstreams(config)
        self.registry = CredentialRegistry(
            CredentialServices(
                records=parts.records,
                secrets=parts.secrets,
                keyring=parts.keyring,
                outbound=parts.outbound,
            )
        )
        sealed = SealedHeaders(parts.secrets)
        self.credentials = UpstreamCredentials(self.registry, sealed, lambda: self.configured)
        self.counter = ChangeCounter(parts.records, parts.relay)
        self.store = UpstreamStore(
            parts.records, sealed, self.counter, configured=InForce(lambda: self.configured)
        )
        self.connections: Connections = UpstreamConnections(
            parts.outbound, self.credentials.of, ProgramServices(self._secret, self._redacted)
        )
        self.catalogues = FetchedCatalogues(
            self.store, CatalogueUpdate(self.store, self.connections, announce)
        )
        audit = ManagementAudit(parts.audit_writer)
        self.administration = UpstreamAdministration(
            self.store,
            self.catalogues,
            reach=lambda: parts.outbound.reach,
            forget=self.connections.forget,
            audit=audit,
        )
        self.agents = AgentAdministration(self.store, packs=self.packs, audit=audit)
        self.apply(config)

    def apply(self, config: Config) -> None:
        """Use the tables of a configuration from now on."""
        self.configured = ConfiguredUpstreams(config)
        self.registry.apply(config)

    def packs(self) -> dict[str, str]:
        """Return the names of the enabled packs, each with a description."""
        names = sorted({tool.pack for tool in self._parts.registry.tools.values() if tool.pack})
        return {name: f"The tools of the pack {name}" for name in names}

    async def aclose(self) -> None:
        """Close the connections, and end the renewals of tokens."""
        await self.catalogues.aclose()
        await self.connections.aclose()
        await self.registry.aclose()

    async def _secret(self, tenant: str, name: str) -> str | None:
        try:
            held = await self._parts.secrets.value(tenant, name)
        except SecretUnreadable:
            return None
        return None if held is None else held.value

    def _redacted(self, tenant: str, text: str) -> str:
        return self._redaction.of(tenant).clean(text)


class InForce:
    """The registrations of the configuration in force, which a reload replaces."""

    def __init__(self, configured: Callable[[], ConfiguredUpstreams]) -> None:
        self._configured = configured

    @property
    def tenants(self) -> frozenset[str]:
        """The tenants that tables name."""
        return self._configured().tenants

    def servers(self, tenant: str) -> tuple[UpstreamServer, ...]:
        """Return the servers of a tenant."""
        return self._configured().servers(tenant)

    def agents(self, tenant: str) -> tuple[AgentRegistration, ...]:
        """Return the agents of a tenant."""
        return self._configured().agents(tenant)


class FetchedCatalogues:
    """
    Implements `Catalogues`: fetches when an administrator asks, and beside the answer if nothing is
    stored yet.
    """

    def __init__(self, store: UpstreamStore, update: CatalogueUpdate) -> None:
        self._store, self._update = store, update
        self._fetching: dict[str, asyncio.Task[None]] = {}

    async def ready(self, server: UpstreamServer) -> Catalogue | None:
        """Return the stored catalogue; if there is none, begin to fetch it."""
        found = await self._store.catalogues.get(server.tenant, server.id)
        room = len(self._fetching) < MOST_FETCHES
        if found is None and room and server.id not in self._fetching:
            task = asyncio.create_task(self._fetch(server))
            self._fetching[server.id] = task
            task.add_done_callback(lambda _: self._fetching.pop(server.id, None))
        return found

    async def refresh(self, server: UpstreamServer) -> Catalogue:
        """Fetch the catalogue now; raises ConnectionFailure."""
        return await self._update.run(server, None)

    async def accept(
        self, server: UpstreamServer, digests: Sequence[str] | None
    ) -> Catalogue | None:
        """Accept changes of the stored catalogue."""
        await self._store.catalogues.accept(server, digests)
        return await self._store.catalogues.get(server.tenant, server.id)

    async def aclose(self) -> None:
        """End what runs."""
        tasks = list(self._fetching.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _fetch(self, server: UpstreamServer) -> None:
        try:
            await self._update.run(server, None)
        except (ConnectionFailure, StoreUnavailable) as error:
            log.debug("upstream_not_fetched", server=server.name, reason=str(error))
