"""Connections for a worker that may open none: made here, by the rules for all, and handed over."""

import asyncio
import base64
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from urllib.parse import unquote, urlsplit

import msgspec

from gatepost.tools.api import ToolFailure
from gatepost.tools.surroundings import Outbound
from gatepost_authz.addresses import is_public
from gatepost_authz.config import Network

CONNECT_S = 10.0
ASKED_BYTES = 4_096
HEAD_BYTES = 16_384


class Wanted(msgspec.Struct, frozen=True):
    """What a worker asks for, one JSON object a line."""

    scheme: str
    """As `Outbound.addresses` has them."""
    host: str
    port: int


class Switchboard:
    """
    Answers a worker's requests for connections on one socket, `handle` of which is the worker's.

    Each answer is one byte: `+` with the connected socket, or `-`, and then *failures* has why.
    """

    def __init__(self, http: Outbound, network: Network) -> None:
        self._http, self._network = http, network
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self.failures: list[ToolFailure] = []

    @property
    def handle(self) -> int:
        """The worker's end."""
        return self._theirs.fileno()

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Switchboard"]:
        """Answer during a block."""
        serving = asyncio.create_task(self._serve())
        try:
            yield self
        finally:
            serving.cancel()
            await asyncio.wait([serving])
            self._theirs.close()

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        with self._ours:  # closed whatever happens: a worker that waits for an answer goes on
            while line := await loop.sock_recv(self._ours, ASKED_BYTES):
                try:
                    made = await self._connected(msgspec.json.decode(line, type=Wanted))
                except ToolFailure as failure:
                    self.failures.append(failure)
                    await loop.sock_sendall(self._ours, b"-")
                    continue
                with made:
                    socket.send_fds(self._ours, [b"+"], [made.fileno()])

    async def _connected(self, wanted: Wanted) -> socket.socket:
        host, port = wanted.host, wanted.port
        named = f"[{host}]" if ":" in host else host
        for address in await self._http.addresses(wanted.scheme, named, port):
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(CONNECT_S):
                    return await self._reached(address, port)
        raise ToolFailure("upstream_unavailable", f"{host} cannot be reached.")

    async def _reached(self, address: str, port: int) -> socket.socket:
        if not self._network.proxy or not is_public(ip_address(address)):
            return await _dialled(address, port)
        # Asked for the address that was checked here: a name could lead anywhere from there.
        proxy = urlsplit(self._network.proxy)
        if proxy.scheme != "http" or proxy.hostname is None:
            raise OSError("only http proxies can be asked to hand a connection on")
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(proxy.hostname, proxy.port or 80, type=socket.SOCK_STREAM)
        with contextlib.ExitStack() as undoing:
            made = undoing.enter_context(await _dialled(str(found[0][4][0]), proxy.port or 80))
            target = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
            asked = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
            if proxy.username is not None:
                both = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
                asked.append(
                    f"Proxy-Authorization: Basic {base64.b64encode(both.encode()).decode()}"
                )
            await loop.sock_sendall(made, "\r\n".join([*asked, "", ""]).encode())
            await _opened(made)
            undoing.pop_all()
        return made


async def _dialled(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.ExitStack() as undoing:
        made = undoing.enter_context(socket.socket(family))
        made.setblocking(False)
        await asyncio.get_running_loop().sock_connect(made, (address, port))
        undoing.pop_all()
    return made


async def _opened(made: socket.socket) -> None:
    """Read a proxy's answer, and not a byte more: the next one is the server's own."""
    loop, head = asyncio.get_running_loop(), b""
    while not head.endswith(b"\r\n\r\n"):
        part = await loop.sock_recv(made, 1)
        head += part
        if not part or len(head) > HEAD_BYTES:
            raise OSError("no answer to CONNECT")
    if head.split(b" ", 2)[1:2] != [b"200"]:
        raise OSError("CONNECT was refused")
