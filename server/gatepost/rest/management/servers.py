"""`/v1/mcp-servers`: a tenant's upstream MCP servers."""

from gatepost.rest.management.management_requests import (
    AdminRequest,
    ManagementHandler,
    answered,
    nothing,
)
from gatepost.rest.management.representation import server_representation, server_with_tools
from gatepost.rest.responses import RestResponse
from gatepost.upstreams.administration import UpstreamAdministration
from gatepost.upstreams.registration_changes import server_changes


class ServerRoutes:
    """The handlers of all routes of servers."""

    def __init__(self, administration: UpstreamAdministration) -> None:
        self._administration = administration

    def handlers(self) -> dict[str, dict[str, ManagementHandler]]:
        """Return the handlers by path below `/v1` and method."""
        return {
            "/mcp-servers": {"GET": self._all, "POST": self._add},
            "/mcp-servers/{id}": {"GET": self._item, "PATCH": self._change, "DELETE": self._remove},
            "/mcp-servers/{id}/refresh": {"POST": self._refresh},
        }

    async def _all(self, request: AdminRequest) -> RestResponse:
        servers = await self._administration.servers(request.tenant)
        summaries = [
            server_representation(server, await self._administration.summary(server))
            for server in servers
        ]
        return answered({"data": summaries})

    async def _add(self, request: AdminRequest) -> RestResponse:
        changes = server_changes(await request.read())
        server = await self._administration.add(request.tenant, changes, request.actor)
        return answered(server_with_tools(server, None), 201)

    async def _item(self, request: AdminRequest) -> RestResponse:
        server = await self._administration.server(request.tenant, request.id)
        catalogue = await self._administration.ready_catalogue(server)
        return answered(server_with_tools(server, catalogue))

    async def _change(self, request: AdminRequest) -> RestResponse:
        server = await self._administration.server(request.tenant, request.id)
        changes = server_changes(await request.read())
        server = await self._administration.change(server, changes, request.actor)
        return answered(server_with_tools(server, await self._administration.catalogue(server)))

    async def _remove(self, request: AdminRequest) -> RestResponse:
        server = await self._administration.server(request.tenant, request.id)
        await self._administration.remove(server, request.actor)
        return nothing()

    async def _refresh(self, request: AdminRequest) -> RestResponse:
        server = await self._administration.server(request.tenant, request.id)
        catalogue = await self._administration.refresh(server, request.actor)
        return answered(server_with_tools(server, catalogue))
