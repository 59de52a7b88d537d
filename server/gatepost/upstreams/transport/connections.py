"""Open connections to upstreams, and keep those that can be used again."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from gatepost.background import TaskSet
from gatepost.credentials.credential import OutboundCredential
from gatepost.outbound.http_client import OutboundClient
from gatepost.upstreams.connection import UpstreamConnection
from gatepost.upstreams.transport.concurrency import UpstreamConcurrency
from gatepost.upstreams.transport.era import KnownEra
from gatepost.upstreams.transport.http_connection import HttpConnection
from gatepost.upstreams.transport.http_requester import HttpRequester
from gatepost.upstreams.transport.stdio_connection import StdioConnection
from gatepost.upstreams.transport.stdio_program import ProgramServices
from gatepost.upstreams.upstream_server import UpstreamServer

IDLE_CONNECTIONS = 1_000
"""
Maximum number of idle connections that a process keeps; the least recently used ones end first.
"""

ConnectionKey = tuple[str, int, str, tuple[str, ...] | None]
"""
The id of a server, the revision of its registration, the name of the credential, and the caller.

The catalogue of a server may be listed with another credential than its tools are called with.
"""


class KeptConnection(UpstreamConnection, Protocol):
    """A connection that reports whether it is in use."""

    users: int


class RegisteredServer:
    """The objects that the connections to one revision of a registration share."""

    def __init__(self, server: UpstreamServer) -> None:
        self.revision, self.tenant = server.revision, server.tenant
        self.known_era = KnownEra()
        self.concurrency = UpstreamConcurrency(server.name, server.concurrency)


class UpstreamConnections:
    """
    Keeps the connections of this process (`Connections`).

    *credential_of* returns the credential of a server, for all of its callers. *programs* has the
    services for stdio servers.
    """

    def __init__(
        self,
        client: OutboundClient,
        credential_of: Callable[[UpstreamServer], OutboundCredential],
        programs: ProgramServices,
        *,
        max_idle: int = IDLE_CONNECTIONS,
    ) -> None:
        self._client, self._credential_of = client, credential_of
        self._programs, self._max_idle = programs, max_idle
        self._servers: dict[str, RegisteredServer] = {}
        self._connections: dict[ConnectionKey, KeptConnection] = {}
        self._closing = TaskSet()

    def connection_to(
        self, server: UpstreamServer, principal: tuple[str, ...] | None = None
    ) -> UpstreamConnection:
        """Return the connection to a server of a tenant (`Connections`)."""
        program = server.program if server.transport == "stdio" else None
        if program is not None and program.per == "tenant":
            principal = None
        key = (server.id, server.revision, server.credential, principal)
        connection = self._connections.pop(key, None)
        if connection is None:
            connection = self._new_connection(server, principal)
        # At the end, so that the mapping is in the order of use.
        self._connections[key] = connection
        self._close_idle(connection)
        return connection

    async def forget(self, server_id: str) -> None:
        """Close all connections to a server (`Connections`)."""
        self._servers.pop(server_id, None)
        keys = [key for key in self._connections if key[0] == server_id]
        await asyncio.gather(*(self._connections.pop(key).aclose() for key in keys))

    async def end(self, tenant: str) -> None:
        """Close all connections of a tenant; its sessions and its programs end."""
        keys = [key for key, server in self._servers.items() if server.tenant == tenant]
        await asyncio.gather(*map(self.forget, keys))

    async def aclose(self) -> None:
        """Close all connections (`Connections`)."""
        for connection in self._connections.values():
            self._closing.start(connection.aclose())
        self._connections.clear()
        self._servers.clear()
        await self._closing.wait()

    def _new_connection(
        self, server: UpstreamServer, principal: tuple[str, ...] | None
    ) -> KeptConnection:
        shared = self._servers.get(server.id)
        if shared is None or shared.revision != server.revision:
            shared = self._servers[server.id] = RegisteredServer(server)
        if server.transport == "stdio":
            if server.program is None:
                raise ValueError(f"the stdio server {server.name} has no program")
            return StdioConnection(
                server, server.program, self._programs, shared.known_era, shared.concurrency
            )
        requester = HttpRequester(self._client, server, self._credential_of(server), principal)
        return HttpConnection(
            requester,
            shared.known_era,
            shared.concurrency,
            keeps_state=principal is not None,
        )

    def _close_idle(self, used: KeptConnection) -> None:
        """Close the connections that were not used for longest, beyond those that are kept."""
        excess = len(self._connections) - self._max_idle
        if excess <= 0:
            return
        idle = [
            key
            for key, connection in self._connections.items()
            if not connection.users and connection is not used
        ]
        for key in idle[:excess]:
            self._closing.start(self._connections.pop(key).aclose())
