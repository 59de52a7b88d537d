"""The upstreams of the configuration: from settings to the servers of each tenant."""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256

from gatepost.config.credentials import CredentialSettings
from gatepost.config.settings import Config
from gatepost.config.upstreams import EVERY_TENANT, AgentSettings, UpstreamSettings
from gatepost.upstreams.agents import AgentRegistration
from gatepost.upstreams.import_formats import ImportProblem, settings_of_file
from gatepost.upstreams.store import configured_id
from gatepost.upstreams.upstream_server import StdioProgram, UpstreamServer


def server_of(
    settings: UpstreamSettings, tenant: str, credentials: Mapping[str, CredentialSettings]
) -> UpstreamServer:
    """Return the server that a table makes for one tenant, with the credentials that it names."""
    program = None
    if settings.command:
        program = StdioProgram(
            command=settings.command,
            args=settings.args,
            env=settings.env,
            reads=settings.reads,
            writes=settings.writes,
            network=settings.network,
            per=settings.per,
            memory_bytes=settings.memory_bytes,
            processes=settings.processes,
            idle_s=settings.program_idle_s,
        )
    return UpstreamServer(
        id=configured_id(tenant, settings.name),
        tenant=tenant,
        name=settings.name,
        description=settings.description,
        transport="stdio" if program else "http",
        url=settings.url,
        status=settings.status,
        api_key_set=bool(settings.api_key),
        header_names=tuple(name.lower() for name in settings.headers),
        credential=settings.credential,
        list_credential=settings.list_credential,
        catalogue=settings.catalogue,
        scopes=settings.scopes,
        tools=settings.tools,
        renames=settings.renames,
        trusted=settings.trusted,
        pin=settings.pin,
        allow=settings.allow,
        stateful=settings.stateful,
        timeout_s=settings.timeout_s,
        idle_s=settings.idle_s,
        concurrency=settings.concurrency,
        program=program,
        source="configuration",
        revision=revision_of(
            settings, *map(credentials.get, (settings.credential, settings.list_credential))
        ),
    )


def revision_of(*tables: object) -> int:
    """Return a number for the content of tables, so that a reload replaces connections."""
    return int.from_bytes(sha256(repr(tables).encode()).digest()[:6], "big")


def includes(tenants: Sequence[str], tenant: str) -> bool:
    """Return whether a list of tenants has *tenant*."""
    return tenant in tenants or EVERY_TENANT in tenants


class ConfiguredUpstreams:
    """
    The upstreams and agents of one configuration, by tenant.

    A file of `[upstreams_file]` that cannot be used adds none; `gatepost check` reports it.
    """

    def __init__(self, config: Config) -> None:
        self.settings: tuple[UpstreamSettings, ...] = (*config.upstreams, *_of_file(config))
        self._agents, self._credentials = config.agents, config.credentials

    @property
    def tenants(self) -> frozenset[str]:
        """Return the tenants that tables name; a table for every tenant names none."""
        lists = [
            *(settings.tenants for settings in self.settings),
            *(agent.tenants for agent in self._agents),
        ]
        return frozenset[str]().union(*lists) - {EVERY_TENANT}

    def servers(self, tenant: str) -> tuple[UpstreamServer, ...]:
        """Return the servers of a tenant; of several with one name, the first counts."""
        servers: dict[str, UpstreamServer] = {}
        for settings in self.settings:
            if includes(settings.tenants, tenant):
                servers.setdefault(settings.name, server_of(settings, tenant, self._credentials))
        return tuple(servers.values())

    def setting(self, server: UpstreamServer) -> UpstreamSettings | None:
        """Return the table that made a server, None if no table does."""
        if server.source != "configuration":
            return None
        same_named = (settings for settings in self.settings if settings.name == server.name)
        return next(
            (settings for settings in same_named if includes(settings.tenants, server.tenant)), None
        )

    def agents(self, tenant: str) -> tuple[AgentRegistration, ...]:
        """Return the agents of a tenant, with the ids of its servers as capabilities."""
        ids = {server.name: server.id for server in self.servers(tenant)}
        return tuple(
            agent_of(agent, tenant, ids)
            for agent in self._agents
            if includes(agent.tenants, tenant)
        )

    def references(self) -> Iterator[str]:
        """Yield all references to secrets of the server."""
        for settings in self.settings:
            yield from (settings.api_key, *settings.headers.values())


def agent_of(settings: AgentSettings, tenant: str, ids: Mapping[str, str]) -> AgentRegistration:
    """Return the agent that a table makes for one tenant; *ids* are its servers' ids by name."""
    parts = (capability.partition(":") for capability in settings.capabilities)
    return AgentRegistration(
        id=configured_id(tenant, settings.name),
        tenant=tenant,
        name=settings.name,
        description=settings.description,
        icon=settings.icon,
        category=settings.category,
        client_ids=(settings.client_id,) if settings.client_id else (),
        capabilities=tuple(
            f"{kind}:{ids.get(reference, reference) if kind == 'mcp' else reference}"
            for kind, _, reference in parts
        ),
        mode=settings.mode,
        source="configuration",
    )


def _of_file(config: Config) -> tuple[UpstreamSettings, ...]:
    if not config.upstreams_file.path:
        return ()
    try:
        return settings_of_file(config.upstreams_file)
    except ImportProblem:
        return ()
