"""Open connections for a confined worker, under the rules for all tools, and hand them over."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from ipaddress import ip_address

import msgspec
from httpcore2 import ProxyError

from gatepost import Outbound, ToolFailure
from gatepost_authz import Network, Tunnel, is_public

CONNECT_S = 10.0
REQUEST_BYTES = 4_096


class WantedConnection(msgspec.Struct, frozen=True):
    """A worker's request for a connection, one JSON object per line."""

    scheme: str
    """The schemes of `Outbound.addresses`."""
    host: str
    port: int


class WorkerConnections:
    """
    Answers a worker's requests for connections on one socket; `handle` is the worker's end.

    Each answer is one byte: `+` with the connected socket, or `-`; *failures* then has the reason.
    """

    def __init__(self, http: Outbound, network: Network) -> None:
        self._http, self._network = http, network
        self._server_end, self._worker_end = socket.socketpair()
        self._server_end.setblocking(False)
        self.failures: list[ToolFailure] = []

    @property
    def handle(self) -> int:
        """Return the worker's end."""
        return self._worker_end.fileno()

    @asynccontextmanager
    async def open(self) -> AsyncIterator["WorkerConnections"]:
        """Answer requests for the time of a block."""
        serving = asyncio.create_task(self._serve())
        try:
            yield self
        finally:
            serving.cancel()
            await asyncio.wait([serving])
            self._worker_end.close()

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        with self._server_end:  # always closed, or the worker would wait
            while line := await loop.sock_recv(self._server_end, REQUEST_BYTES):
                try:
                    connection = await self._connected(
                        msgspec.json.decode(line, type=WantedConnection)
                    )
                except ToolFailure as failure:
                    self.failures.append(failure)
                    await loop.sock_sendall(self._server_end, b"-")
                    continue
                with connection:
                    socket.send_fds(self._server_end, [b"+"], [connection.fileno()])

    async def _connected(self, target: WantedConnection) -> socket.socket:
        host, port = target.host, target.port
        url_host = f"[{host}]" if ":" in host else host
        for address in await self._http.addresses(target.scheme, url_host, port):
            with contextlib.suppress(OSError, ProxyError, TimeoutError):
                async with asyncio.timeout(CONNECT_S):
                    return await self._reached(address, port)
        raise ToolFailure("upstream_unavailable", f"{host} cannot be reached.")

    async def _reached(self, address: str, port: int) -> socket.socket:
        if not self._network.proxy or not is_public(ip_address(address)):
            return await _dialled(address, port)
        # The proxy gets the checked address, because it could resolve a name to any other. The
        # tunnel's own stream is not used, because its transport owns the socket, and the worker
        # needs it.
        tunnel = Tunnel(self._network.proxy, None)
        if tunnel.scheme != "http" or not tunnel.host:
            raise OSError("only http proxies can tunnel these connections")
        loop = asyncio.get_running_loop()
        addresses = await loop.getaddrinfo(tunnel.host, tunnel.port, type=socket.SOCK_STREAM)
        with contextlib.ExitStack() as undoing:
            connection = undoing.enter_context(await _dialled(str(addresses[0][4][0]), tunnel.port))
            await tunnel.negotiate(
                address,
                port,
                write=partial(loop.sock_sendall, connection),
                read=partial(loop.sock_recv, connection, 1),  # the next byte is the server's
            )
            undoing.pop_all()
        return connection


async def _dialled(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.ExitStack() as undoing:
        connection = undoing.enter_context(socket.socket(family))
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, (address, port))
        undoing.pop_all()
    return connection
