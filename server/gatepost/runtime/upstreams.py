"""The objects that manage upstreams in one process, and what a reload changes of them."""

from collections.abc import Callable, Sequence
from typing import Protocol

from gatepost.audit.writer import AuditWriter
from gatepost.config.settings import Config
from gatepost.credentials.client import CredentialServices
from gatepost.credentials.registry import CredentialRegistry
from gatepost.outbound.client import OutboundClient
from gatepost.secrets.cache import SecretCache
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.records import Records
from gatepost.storage.relay import Relay
from gatepost.tools.registry import Registry
from gatepost.upstreams.actor import ManagementAudit
from gatepost.upstreams.administration import Catalogues, UpstreamAdministration
from gatepost.upstreams.agent_administration import AgentAdministration
from gatepost.upstreams.agents import AgentRegistration
from gatepost.upstreams.catalogue import Catalogue
from gatepost.upstreams.changes import ChangeCounter
from gatepost.upstreams.configured import ConfiguredUpstreams
from gatepost.upstreams.connection import ConnectionFailure, Connections
from gatepost.upstreams.sealed_headers import SealedHeaders
from gatepost.upstreams.server import UpstreamServer
from gatepost.upstreams.signing import UpstreamCredentials
from gatepost.upstreams.store import UpstreamStore


class UpstreamParts(Protocol):
    """What the management of upstreams uses of the process's services."""

    records: Records
    relay: Relay
    secrets: SecretCache
    keyring: KeyRing
    outbound: OutboundClient
    audit_writer: AuditWriter
    registry: Registry


class UpstreamServices:
    """
    The registry of upstreams, their credentials, and what administrators do with them.

    *connections* and *catalogues* reach the servers; without them, only what is stored is known.
    """

    def __init__(
        self,
        parts: UpstreamParts,
        config: Config,
        *,
        catalogues: Callable[["UpstreamServices"], Catalogues] | None = None,
        connections: Callable[["UpstreamServices"], Connections] | None = None,
    ) -> None:
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
        self.connections = None if connections is None else connections(self)
        self.catalogues = catalogues(self) if catalogues else StoredCatalogues(self.store)
        audit = ManagementAudit(parts.audit_writer)
        self.administration = UpstreamAdministration(
            self.store,
            self.catalogues,
            reach=lambda: parts.outbound.reach,
            forget=self._forget,
            audit=audit,
        )
        self._parts, self.keyring = parts, parts.keyring
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
        if self.connections is not None:
            await self.connections.aclose()
        await self.registry.aclose()

    async def _forget(self, server_id: str) -> None:
        if self.connections is not None:
            await self.connections.forget(server_id)


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


class StoredCatalogues:
    """Catalogues as they are stored; implements `Catalogues` without a way to the servers."""

    def __init__(self, store: UpstreamStore) -> None:
        self._store = store

    async def ready(self, server: UpstreamServer) -> Catalogue | None:
        """Return the stored catalogue."""
        return await self._store.catalogues.get(server.tenant, server.id)

    async def refresh(self, server: UpstreamServer) -> Catalogue:
        """Raise ConnectionFailure."""
        raise ConnectionFailure("unreachable", f"The MCP server {server.name!r} is not connected.")

    async def accept(
        self, server: UpstreamServer, digests: Sequence[str] | None
    ) -> Catalogue | None:
        """Accept changes of the stored catalogue."""
        await self._store.catalogues.accept(server, digests)
        return await self.ready(server)
