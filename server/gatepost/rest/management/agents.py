"""`/v1/agents` and `/v1/capabilities`: which tools the clients of each agent see."""

from collections.abc import Callable, Mapping

from gatepost.rest.management.management_requests import (
    AdminRequest,
    ManagementHandler,
    answered,
    nothing,
)
from gatepost.rest.management.representation import (
    agent_representation,
    pack_capability,
    server_capability,
)
from gatepost.rest.responses import RestResponse
from gatepost.upstreams.administration import UpstreamAdministration
from gatepost.upstreams.agent_administration import AgentAdministration
from gatepost.upstreams.registration_changes import agent_changes


class AgentRoutes:
    """The handlers of all routes of agents; *packs* returns pack = description."""

    def __init__(
        self,
        agents: AgentAdministration,
        servers: UpstreamAdministration,
        packs: Callable[[], Mapping[str, str]],
    ) -> None:
        self._agents, self._servers, self._packs = agents, servers, packs

    def handlers(self) -> dict[str, dict[str, ManagementHandler]]:
        """Return the handlers by path below `/v1` and method."""
        return {
            "/agents": {"GET": self._all, "POST": self._add},
            "/agents/{id}": {"GET": self._item, "PATCH": self._change, "DELETE": self._remove},
            "/capabilities": {"GET": self._capabilities},
        }

    async def _all(self, request: AdminRequest) -> RestResponse:
        agents = await self._agents.agents(request.tenant)
        return answered({"data": [agent_representation(agent) for agent in agents]})

    async def _add(self, request: AdminRequest) -> RestResponse:
        changes = agent_changes(await request.read())
        agent = await self._agents.add(request.tenant, changes, request.actor)
        return answered(agent_representation(agent), 201)

    async def _item(self, request: AdminRequest) -> RestResponse:
        return answered(agent_representation(await self._agents.agent(request.tenant, request.id)))

    async def _change(self, request: AdminRequest) -> RestResponse:
        agent = await self._agents.agent(request.tenant, request.id)
        changes = agent_changes(await request.read())
        return answered(
            agent_representation(await self._agents.change(agent, changes, request.actor))
        )

    async def _remove(self, request: AdminRequest) -> RestResponse:
        agent = await self._agents.agent(request.tenant, request.id)
        await self._agents.remove(agent, request.actor)
        return nothing()

    async def _capabilities(self, request: AdminRequest) -> RestResponse:
        packs = self._packs()
        servers = await self._servers.servers(request.tenant)
        capabilities = [pack_capability(name, packs) for name in sorted(packs)]
        capabilities += [
            server_capability(server) for server in servers if server.status == "active"
        ]
        return answered({"data": capabilities})
