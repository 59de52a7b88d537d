"""The routes of administrators, by path and method."""

from collections.abc import Callable, Mapping
from typing import Protocol

from gatepost.rest.exchange import RestExchange
from gatepost.rest.management.agents import AgentRoutes
from gatepost.rest.management.management_requests import AdminRoute, ManagementHandler
from gatepost.rest.management.servers import ServerRoutes
from gatepost.upstreams.administration import UpstreamAdministration
from gatepost.upstreams.agent_administration import AgentAdministration

VERSION = "/v1"


class ManagedUpstreams(Protocol):
    """The services that these routes manage."""

    administration: UpstreamAdministration
    agents: AgentAdministration

    def packs(self) -> Mapping[str, str]:
        """Return the names of the enabled packs, each with a description."""


def management_routes(
    upstreams: ManagedUpstreams, exchange: RestExchange, scope: str
) -> dict[str, AdminRoute]:
    """Return the routes by path below the base, for callers with *scope*."""
    handlers = management_handlers(upstreams.administration, upstreams.agents, upstreams.packs)
    return {path: AdminRoute(exchange, routed, scope=scope) for path, routed in handlers.items()}


def management_handlers(
    servers: UpstreamAdministration,
    agents: AgentAdministration,
    packs: Callable[[], Mapping[str, str]],
) -> dict[str, dict[str, ManagementHandler]]:
    """Return the handlers by path below the base and method; fixed paths come first."""
    by_path = ServerRoutes(servers).handlers() | AgentRoutes(agents, servers, packs).handlers()
    return {f"{VERSION}{path}": handlers for path, handlers in by_path.items()}
