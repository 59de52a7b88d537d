"""Store registered servers and agents durably for each tenant, with those of the configuration."""

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from gatepost.storage.entries import Entries, Entry
from gatepost.storage.records import Records
from gatepost.upstreams.agents import AgentRegistration
from gatepost.upstreams.catalogue_store import CatalogueStore
from gatepost.upstreams.change_counter import ChangeCounter
from gatepost.upstreams.sealed_headers import (
    NO_SECRETS,
    SealedHeaders,
    ServerSecrets,
    names_of,
)
from gatepost.upstreams.upstream_server import UpstreamServer

SERVERS = "mcp_servers"
SERVER_NAMES = "mcp_server_names"
AGENTS = "mcp_agents"
AGENT_CLIENTS = "mcp_agent_clients"
MAX_SERVERS = 200
MAX_AGENTS = 500
UNFINISHED_S = 60.0
"""How long a name is kept for a registration whose process may have stopped in the middle."""

_NAMESPACE = uuid.UUID("6e8a1c52-3f0b-5d0e-9b6a-0a4f6f1d7c21")
_encode = msgspec.msgpack.encode


class ConfiguredRegistrations(Protocol):
    """The servers and agents of the current configuration; a table may be for every tenant."""

    @property
    def tenants(self) -> frozenset[str]:
        """Return the tenants that tables name."""

    def servers(self, tenant: str) -> tuple[UpstreamServer, ...]:
        """Return the servers of a tenant."""

    def agents(self, tenant: str) -> tuple[AgentRegistration, ...]:
        """Return the agents of a tenant."""


class NothingConfigured:
    """A configuration without servers and agents."""

    tenants = frozenset[str]()

    def servers(self, tenant: str) -> tuple[UpstreamServer, ...]:
        """Return none."""
        return ()

    def agents(self, tenant: str) -> tuple[AgentRegistration, ...]:
        """Return none."""
        return ()


class NameTaken(Exception):
    """Another registration of the tenant has the name, or the client id of an agent."""


class TooManyRegistrations(Exception):
    """The tenant has as many registrations as it may have; the message says how many."""


class CredentialsBound(Exception):
    """A server's API key and headers were set for another host, and have to be set again."""


class RegistrationChanged(Exception):
    """The registration was changed or deleted since it was read."""


def too_many(subjects: str, limit: int) -> TooManyRegistrations:
    """Return the error of a tenant that has as many *subjects* as it may have."""
    return TooManyRegistrations(f"there are {limit} {subjects}, and there cannot be more")


def configured_id(tenant: str, name: str) -> str:
    """Return the id of a server or agent of the configuration, which is always the same."""
    return str(uuid.uuid5(_NAMESPACE, f"{tenant}\0{name}"))


class UpstreamStore:
    """
    The registrations of all tenants; all methods raise StoreUnavailable.

    Registrations of the configuration are merged in and cannot be changed here. They come first, so
    they win if names are equal.
    """

    def __init__(
        self,
        records: Records,
        sealed: SealedHeaders,
        counter: ChangeCounter,
        *,
        configured: ConfiguredRegistrations | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._records, self.sealed, self.counter, self._clock = records, sealed, counter, clock
        self.catalogues = CatalogueStore(records, counter, clock=clock)
        self.apply(configured or NothingConfigured())

    def apply(self, configured: ConfiguredRegistrations) -> None:
        """Merge in the registrations of this configuration from now on."""
        self._configured = configured

    @property
    def configured_tenants(self) -> frozenset[str]:
        """Return the tenants that the configuration names for servers or agents."""
        return self._configured.tenants

    async def servers(self, tenant: str) -> list[UpstreamServer]:
        """Return the servers of a tenant: the configuration's, then the others by age."""
        entries = await self._entries(tenant, SERVERS).all()
        stored = [_server(entry) for entry in entries]
        return [*self._configured.servers(tenant), *sorted(stored, key=_age)]

    async def server(self, tenant: str, server_id: str) -> UpstreamServer | None:
        """Return one server of a tenant."""
        for server in self._configured.servers(tenant):
            if server.id == server_id:
                return server
        entry = await self._entries(tenant, SERVERS).get(server_id)
        return None if entry is None else _server(entry)

    async def create(
        self, server: UpstreamServer, secrets: ServerSecrets = NO_SECRETS
    ) -> UpstreamServer:
        """
        Register a server and return it with its id, times and revision.

        Raises NameTaken, TooManyRegistrations and SecretRefused; then nothing of it stays. A
        program raises ValueError: only the configuration may name one.
        """
        _check_no_program(server)
        now, tenant = self._clock(), server.tenant
        entries = self._entries(tenant, SERVERS)
        if await entries.count() >= MAX_SERVERS:
            raise too_many("servers", MAX_SERVERS)
        created = msgspec.structs.replace(
            _with_secrets(
                msgspec.structs.replace(server, api_key_set=False, header_names=()), secrets
            ),
            id=str(uuid.uuid4()),
            source="api",
            created_at=now,
            updated_at=now,
            revision=1,
        )
        await self._take(tenant, SERVER_NAMES, created.name, created.id)
        try:
            await self.sealed.put(tenant, created.id, secrets)
            await entries.put(created.id, _encode(created), now=now, revision=0)
        except ValueError:
            await self.sealed.delete(tenant, created.id, names_of(created))
            await self._entries(tenant, SERVER_NAMES).delete(created.name)
            raise
        if await entries.count() > MAX_SERVERS:
            # Several were added at once. Each that finds too many is removed, so that never more
            # stay.
            await self.delete(tenant, created.id)
            raise too_many("servers", MAX_SERVERS)
        await self.counter.changed(tenant)
        return created

    async def replace(
        self, server: UpstreamServer, secrets: ServerSecrets = NO_SECRETS
    ) -> UpstreamServer:
        """
        Change a server that was read with this revision; return it with the next one.

        Raises NameTaken, SecretRefused, RegistrationChanged, and CredentialsBound if the host
        changes and the stored secrets do not. A server of the configuration raises
        RegistrationChanged, and a program ValueError.
        """
        _check_no_program(server)
        now, tenant = self._clock(), server.tenant
        entries = self._entries(tenant, SERVERS)
        entry = await entries.get(server.id)
        before = None if entry is None else _server(entry)
        if entry is None or before is None or before.revision != server.revision:
            raise RegistrationChanged
        if _origin(before) != _origin(server) and _keeps_any(before, secrets):
            raise CredentialsBound
        replaced = msgspec.structs.replace(
            _with_secrets(_with_stored_secrets(server, before), secrets),
            source="api",
            created_at=before.created_at,
            updated_at=now,
            revision=before.revision + 1,
        )
        if replaced.name != before.name:
            await self._take(tenant, SERVER_NAMES, replaced.name, replaced.id)
        await self.sealed.put(tenant, replaced.id, secrets)
        if not await entries.put(replaced.id, _encode(replaced), now=now, revision=entry.revision):
            raise RegistrationChanged
        if replaced.name != before.name:
            await self._entries(tenant, SERVER_NAMES).delete(before.name)
        await self.sealed.delete(tenant, replaced.id, names_of(before) - names_of(replaced))
        await self.counter.changed(tenant)
        return replaced

    async def delete(self, tenant: str, server_id: str) -> bool:
        """Delete a server with its catalogues, pins and secrets; return whether it was there."""
        entries = self._entries(tenant, SERVERS)
        entry = await entries.get(server_id)
        if entry is None:
            return False
        server = _server(entry)
        # The secrets are removed first. If the rest fails, the server can still be deleted.
        await self.sealed.delete(tenant, server_id, names_of(server))
        await self.catalogues.delete(tenant, server_id)
        await entries.delete(server_id)
        await self._entries(tenant, SERVER_NAMES).delete(server.name)
        await self.counter.changed(tenant)
        return True

    async def agents(self, tenant: str) -> list[AgentRegistration]:
        """Return the agents of a tenant: the configuration's, then the others by age."""
        stored = [_agent(entry) for entry in await self._entries(tenant, AGENTS).all()]
        return [*self._configured.agents(tenant), *sorted(stored, key=_age)]

    async def agent(self, tenant: str, agent_id: str) -> AgentRegistration | None:
        """Return one agent of a tenant."""
        for agent in self._configured.agents(tenant):
            if agent.id == agent_id:
                return agent
        entry = await self._entries(tenant, AGENTS).get(agent_id)
        return None if entry is None else _agent(entry)

    async def create_agent(self, agent: AgentRegistration) -> AgentRegistration:
        """
        Register an agent.

        Raises TooManyRegistrations, and NameTaken if another agent has one of its client ids.
        """
        now, tenant = self._clock(), agent.tenant
        entries = self._entries(tenant, AGENTS)
        if await entries.count() >= MAX_AGENTS:
            raise too_many("agents", MAX_AGENTS)
        created = msgspec.structs.replace(
            agent, id=str(uuid.uuid4()), source="api", created_at=now, updated_at=now, revision=1
        )
        await self._take_clients(created, ())
        await entries.put(created.id, _encode(created), now=now, revision=0)
        if await entries.count() > MAX_AGENTS:
            await self.delete_agent(tenant, created.id)
            raise too_many("agents", MAX_AGENTS)
        await self.counter.changed(tenant)
        return created

    async def replace_agent(self, agent: AgentRegistration) -> AgentRegistration:
        """Change an agent that was read with this revision; raises as `replace` does."""
        now, tenant = self._clock(), agent.tenant
        entries = self._entries(tenant, AGENTS)
        entry = await entries.get(agent.id)
        before = None if entry is None else _agent(entry)
        if entry is None or before is None or before.revision != agent.revision:
            raise RegistrationChanged
        replaced = msgspec.structs.replace(
            agent,
            source="api",
            created_at=before.created_at,
            updated_at=now,
            revision=before.revision + 1,
        )
        await self._take_clients(replaced, before.client_ids)
        if not await entries.put(replaced.id, _encode(replaced), now=now, revision=entry.revision):
            raise RegistrationChanged
        for client_id in set(before.client_ids) - set(replaced.client_ids):
            await self._entries(tenant, AGENT_CLIENTS).delete(client_id)
        await self.counter.changed(tenant)
        return replaced

    async def delete_agent(self, tenant: str, agent_id: str) -> bool:
        """Delete an agent; return whether it was there."""
        entries = self._entries(tenant, AGENTS)
        entry = await entries.get(agent_id)
        if entry is None:
            return False
        await entries.delete(agent_id)
        for client_id in _agent(entry).client_ids:
            await self._entries(tenant, AGENT_CLIENTS).delete(client_id)
        await self.counter.changed(tenant)
        return True

    async def _take_clients(
        self, agent: AgentRegistration, clients_before: tuple[str, ...]
    ) -> None:
        taken_ids: list[str] = []
        try:
            for client_id in dict.fromkeys(agent.client_ids):
                if client_id not in clients_before:
                    await self._take(agent.tenant, AGENT_CLIENTS, client_id, agent.id)
                    taken_ids.append(client_id)
        except NameTaken:
            for client_id in taken_ids:
                await self._entries(agent.tenant, AGENT_CLIENTS).delete(client_id)
            raise

    async def _take(self, tenant: str, subject: str, name: str, owner: str) -> None:
        """Reserve a name for a registration; of several processes one succeeds."""
        registered = SERVERS if subject == SERVER_NAMES else AGENTS
        if self._is_configured(tenant, subject, name):
            raise NameTaken(name)
        now, entries = self._clock(), self._entries(tenant, subject)
        if await entries.put(name, owner.encode(), now=now, revision=0):
            return
        entry = await entries.get(name)
        holder = "" if entry is None else entry.value.decode()
        if entry is not None and holder != owner:
            holder_entry = await self._entries(tenant, registered).get(holder)
            if holder_entry is not None or entry.updated_at + UNFINISHED_S > now:
                raise NameTaken(name)
        revision = 0 if entry is None else entry.revision
        if not await entries.put(name, owner.encode(), now=now, revision=revision):
            raise NameTaken(name)

    def _is_configured(self, tenant: str, subject: str, name: str) -> bool:
        if subject == SERVER_NAMES:
            return any(server.name == name for server in self._configured.servers(tenant))
        return any(name in agent.client_ids for agent in self._configured.agents(tenant))

    def _entries(self, tenant: str, subject: str) -> Entries:
        return self._records.for_tenant(tenant).entries(subject)


def _check_no_program(server: UpstreamServer) -> None:
    # Running a program of an administrator's choice would be remote code execution.
    if server.transport != "http" or server.program is not None:
        raise ValueError("a server that is a program comes from the configuration alone")


def _with_secrets(server: UpstreamServer, secrets: ServerSecrets) -> UpstreamServer:
    if not isinstance(secrets.api_key, msgspec.UnsetType):
        server = msgspec.structs.replace(server, api_key_set=secrets.api_key is not None)
    if isinstance(secrets.headers, Mapping):
        server = msgspec.structs.replace(server, header_names=tuple(secrets.headers))
    return server


def _with_stored_secrets(server: UpstreamServer, before: UpstreamServer) -> UpstreamServer:
    """Return a server with what the store alone knows of its secrets."""
    return msgspec.structs.replace(
        server, api_key_set=before.api_key_set, header_names=before.header_names
    )


def _origin(server: UpstreamServer) -> tuple[str, str]:
    parts = urlsplit(server.url)
    return parts.scheme.lower(), parts.netloc.lower()


def _keeps_any(before: UpstreamServer, secrets: ServerSecrets) -> bool:
    """Return whether a change leaves the stored API key or header values as they are."""
    keeps_key = before.api_key_set and secrets.api_key is msgspec.UNSET
    return keeps_key or (bool(before.header_names) and secrets.headers is msgspec.UNSET)


def _age(registration: UpstreamServer | AgentRegistration) -> tuple[float, str]:
    return registration.created_at, registration.id


def _server(entry: Entry) -> UpstreamServer:
    return msgspec.msgpack.decode(entry.value, type=UpstreamServer)


def _agent(entry: Entry) -> AgentRegistration:
    return msgspec.msgpack.decode(entry.value, type=AgentRegistration)
