"""Check `[[agents]]`, and the tenants and names of several tables."""

from collections.abc import Iterable, Iterator, Sequence

from gatepost.check.pack_loading import LoadedPacks
from gatepost.config.settings import Config
from gatepost.config.upstreams import EVERY_TENANT, AgentSettings, UpstreamSettings
from gatepost.upstreams.fields import InvalidField, checked_name
from gatepost.upstreams.store import configured_id
from gatepost_authz.config import TENANT_ID, Problem
from gatepost_authz.tenant import client_tenants


def problems(
    config: Config, loaded_packs: LoadedPacks, servers: Sequence[UpstreamSettings]
) -> Iterator[Problem]:
    """Yield the problems of agents; *servers* are all upstreams of the configuration."""
    packs = {pack.name for pack in loaded_packs.packs}
    for at, agent in enumerate(config.agents):
        table = f"agents[{at}]"
        try:
            checked_name(agent.name)
        except InvalidField as invalid:
            yield Problem("config.E149", invalid.message, setting=f"{table}.name")
        yield from tenants_named(config, agent.tenants, f"the agent {agent.name!r}", table)
        yield from _capabilities(agent, table, packs, servers)
    names = [(f"agents[{at}]", agent.name, agent.tenants) for at, agent in enumerate(config.agents)]
    yield from doubled(names, "agent", "config.E149")
    clients = [
        (f"agents[{at}]", agent.client_id, agent.tenants)
        for at, agent in enumerate(config.agents)
        if agent.client_id
    ]
    yield from doubled(clients, "client", "config.E149")


def _capabilities(
    agent: AgentSettings, table: str, packs: set[str], servers: Sequence[UpstreamSettings]
) -> Iterator[Problem]:
    for at, capability in enumerate(agent.capabilities):
        kind, _, name = capability.partition(":")
        is_offered = kind == "pack" and name in packs
        if kind == "mcp":
            is_offered = any(
                name in (server.name, configured_id(tenant, server.name))
                for server in servers
                for tenant in agent.tenants
            )
        if not is_offered:
            yield Problem(
                "config.E149",
                f"the agent {agent.name!r} has the unknown capability {capability!r}",
                "write mcp:NAME of an upstream, or pack:NAME of an enabled pack",
                setting=f"{table}.capabilities[{at}]",
            )


def tenants_named(
    config: Config, tenants: Sequence[str], subject: str, table: str
) -> Iterator[Problem]:
    """Yield problems of a list of tenants, which must not be empty."""
    setting = f"{table}.tenants"
    if not tenants:
        yield Problem(
            "config.E140",
            f"{subject} names no tenant",
            'name them, tenants = ["acme"], or write tenants = ["*"] for every tenant',
            setting=setting,
        )
    known_tenants = {*config.tenancy.tenants, config.stdio.tenant}
    for issuer in config.issuers:
        known_tenants |= {*issuer.tenants.values(), issuer.tenant.value or ""} | client_tenants(
            issuer
        )
    for tenant in tenants:
        if tenant == EVERY_TENANT:
            continue
        if not TENANT_ID.fullmatch(tenant):
            yield Problem(
                "config.E140",
                f"{tenant!r} is not a tenant id",
                "use at most 63 characters of a-z, 0-9, _ and -, starting with a letter or digit",
                setting=setting,
            )
        elif tenant not in known_tenants and not config.creates_tenants:
            yield Problem(
                "config.W145",
                f"{subject} names the tenant {tenant!r}, which is not configured",
                "add it to tenancy.tenants, or correct it",
                "warning",
                setting,
            )


def doubled(
    tables: Iterable[tuple[str, str, Sequence[str]]], kind: str, code: str
) -> Iterator[Problem]:
    """Yield a problem for each name that two tables have for one tenant."""
    earlier_agents: list[tuple[str, Sequence[str]]] = []
    for table, name, tenants in tables:
        for earlier_name, earlier_tenants in earlier_agents:
            shared = {*tenants} & {*earlier_tenants}
            every = EVERY_TENANT in tenants or EVERY_TENANT in earlier_tenants
            if name == earlier_name and tenants and earlier_tenants and (shared or every):
                yield Problem(
                    code,
                    f"two tables name the {kind} {name!r} for the same tenant",
                    "give each a name of its own",
                    setting=f"{table}.name",
                )
                break
        earlier_agents.append((name, tenants))
