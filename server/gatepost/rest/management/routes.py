"""All routes of administrators, by path and method."""

from collections.abc import Callable, Mapping

from gatepost.rest.management.agents import AgentRoutes
from gatepost.rest.management.requests import Handler
from gatepost.rest.management.servers import ServerRoutes
from gatepost.upstreams.administration import UpstreamAdministration
from gatepost.upstreams.agent_administration import AgentAdministration

VERSION = "/v1"


def management_handlers(
    servers: UpstreamAdministration,
    agents: AgentAdministration,
    packs: Callable[[], Mapping[str, str]],
) -> dict[str, dict[str, Handler]]:
    """Return the handlers by path below the base and method; fixed paths come first."""
    found = ServerRoutes(servers).handlers() | AgentRoutes(agents, servers, packs).handlers()
    return {f"{VERSION}{path}": handlers for path, handlers in found.items()}
