"""Open a tunnel through a proxy (CONNECT, RFC 9110 section 9.3.6)."""

import asyncio
import re
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial

import httpcore2
import httpx2

from gatepost_authz.tcp_stream import TcpStream, connect_first, connect_tcp

HEAD_BYTES = 16_384
"""The maximum size of a proxy's response before its tunnel opens."""
PROXY_ADDRESSES = 4
"""The number of addresses of the proxy that are tried."""
PROXY_ADDRESS_S = 0.5
"""How long each of them but the last is tried."""
OPENED = re.compile(rb"HTTP/1\.[01] 2[0-9]{2}[ \r]")


class Tunnel:
    """
    Opens tunnels through an HTTP proxy, to addresses that were checked or names that it resolves.

    *proxy* is the operator's own URL, with a user name and password if it needs them; *tls* is for
    https proxies. The connections are those of `tcp_stream`: with others, a pool does not see all
    bytes that have arrived, and takes a surplus response for that to its next request.
    """

    def __init__(self, proxy: str, tls: ssl.SSLContext | None) -> None:
        proxy_settings = httpx2.Proxy(proxy)
        self.host = proxy_settings.url.host
        self.scheme = proxy_settings.url.scheme
        self.port = proxy_settings.url.port or (443 if self.scheme == "https" else 80)
        self._tls = tls
        self._authorization = b""
        if proxy_settings.raw_auth is not None:
            basic = httpx2.BasicAuth(*proxy_settings.raw_auth)
            authorized = next(basic.auth_flow(httpx2.Request("GET", proxy_settings.url)))
            self._authorization = authorized.headers["authorization"].encode()

    async def connect(self, address: str, port: int) -> httpcore2.AsyncNetworkStream:
        """
        Open a stream to *address* within the caller's time limit; raise ProxyError if refused.
        """
        try:
            return await self._opened(address, port)
        except httpcore2.NetworkError as error:
            # Whatever the error is, the address did not cause it, and nothing was sent to it yet.
            raise httpcore2.ProxyError("the proxy cannot be reached") from error

    async def negotiate(
        self,
        address: str,
        port: int,
        *,
        write: Callable[[bytes], Awaitable[None]],
        read: Callable[[], Awaitable[bytes]],
    ) -> None:
        """
        Open the tunnel to *address* on a connection to the proxy; raises ProxyError if refused.

        *read* returns some bytes, or none at the end. It reads one byte at a time if the server
        speaks first: what follows the proxy's answer belongs to the tunnel and would be lost.
        """
        await write(self._request(address, port))
        head = b""
        while b"\r\n\r\n" not in head:
            part = await read()
            head += part
            if not part or len(head) > HEAD_BYTES:
                raise httpcore2.ProxyError("no answer to CONNECT")
        if not OPENED.match(head) or not head.endswith(b"\r\n\r\n"):
            raise httpcore2.ProxyError("CONNECT was refused")

    async def _opened(self, address: str, port: int) -> httpcore2.AsyncNetworkStream:
        async with AsyncExitStack() as undo:
            stream: httpcore2.AsyncNetworkStream = await self._reached()
            undo.push_async_callback(stream.aclose)
            if self.scheme == "https":
                context = self._tls or httpx2.create_ssl_context(trust_env=False)
                stream = await stream.start_tls(context, server_hostname=self.host)
                undo.push_async_callback(stream.aclose)
            await self.negotiate(address, port, write=stream.write, read=partial(stream.read, 4096))
            undo.pop_all()
        return stream

    async def _reached(self) -> TcpStream:
        """Connect to the proxy."""
        try:
            entries = await asyncio.get_running_loop().getaddrinfo(
                self.host, self.port, type=socket.SOCK_STREAM
            )
        except (OSError, UnicodeError) as error:
            raise httpcore2.ConnectError(str(error)) from error
        addresses = [str(entry[4][0]) for entry in entries[:PROXY_ADDRESSES]]
        return await connect_first(
            addresses,
            lambda address, limit_s: connect_tcp(address, self.port, limit_s),
            PROXY_ADDRESS_S,
        )

    def _request(self, address: str, port: int) -> bytes:
        target = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        lines = [f"CONNECT {target} HTTP/1.1".encode(), f"Host: {target}".encode()]
        if self._authorization:
            lines.append(b"Proxy-Authorization: " + self._authorization)
        return b"\r\n".join([*lines, b"", b""])
