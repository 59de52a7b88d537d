"""Open connections for a confined worker, under the rules for all tools, and hand them over."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from ipaddress import ip_address
from typing import Annotated, Literal

import msgspec
from httpcore2 import ProxyError

from gatepost import Outbound, ToolFailure
from gatepost_authz import Network, Tunnel, is_public

CONNECT_S = 10.0
REQUEST_BYTES = 4_096
MAX_REQUESTS = 1_000
"""
The most connections that one worker may ask for. Other calls wait while a request is answered, and
a worker that its input has taken over may never stop asking.
"""


class WantedConnection(msgspec.Struct, frozen=True):
    """A worker's request for a connection, one JSON object per line."""

    scheme: Literal["https", "http", "ssh", "smtp"]
    """The schemes of `Outbound.addresses`."""
    host: Annotated[str, msgspec.Meta(pattern=r"^[^\s/?#@\\\0]*$", max_length=255)]
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]


class WorkerConnections:
    """
    Answers a worker's requests for connections on one socket; `handle` is the worker's end.

    Each answer is one byte: `+` with the connected socket, or `-`; *failures* then has the reason.
    A malformed request ends the connection to the worker.
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
        # The server's end is always closed, or the worker would wait. A worker that is gone, or
        # sends what Gatepost's own do not, ends its own call.
        with self._server_end, contextlib.suppress(OSError, msgspec.DecodeError, UnicodeError):
            await self._answer_requests()

    async def _answer_requests(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(MAX_REQUESTS):
            if not (line := await loop.sock_recv(self._server_end, REQUEST_BYTES)):
                return
            target = msgspec.json.decode(line, type=WantedConnection)
            try:
                connection = await self._connected(target)
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
