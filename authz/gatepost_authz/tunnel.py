"""Through a proxy to an address that was checked (CONNECT, RFC 9110 section 9.3.6)."""

import re
import ssl
from contextlib import AsyncExitStack

import httpcore2
import httpx2

HEAD_BYTES = 16_384
"""What a proxy may answer before its tunnel opens."""
OPENED = re.compile(rb"HTTP/1\.[01] 2[0-9]{2}[ \r]")


class Tunnel:
    """
    An HTTP proxy that is asked for addresses only: a name would be resolved there, by somebody who
    may sit inside, and to whatever it means a moment after it was checked here.

    *proxy* is the operator's own URL, with a user name and password where it wants them; *tls* is
    for https proxies.
    """

    def __init__(self, proxy: str, tls: ssl.SSLContext | None) -> None:
        way_out = httpx2.Proxy(proxy)
        self._host = way_out.url.host
        self._secure = way_out.url.scheme == "https"
        self._port = way_out.url.port or (443 if self._secure else 80)
        self._tls = tls
        self._authorization = b""
        if way_out.raw_auth is not None:
            basic = httpx2.BasicAuth(*way_out.raw_auth)
            asked = next(basic.auth_flow(httpx2.Request("GET", way_out.url)))
            self._authorization = asked.headers["authorization"].encode()
        self._network = httpcore2.AnyIOBackend()

    async def connect(self, address: str, port: int) -> httpcore2.AsyncNetworkStream:
        """A stream to *address*, under its caller's time limit; ProxyError when it is refused."""
        try:
            return await self._opened(address, port)
        except httpcore2.NetworkError as error:
            # Whatever it is, it is not the address's doing, and nothing was sent to it yet.
            raise httpcore2.ProxyError("the proxy cannot be reached") from error

    async def _opened(self, address: str, port: int) -> httpcore2.AsyncNetworkStream:
        async with AsyncExitStack() as undo:
            stream = await self._network.connect_tcp(self._host, self._port)
            undo.push_async_callback(stream.aclose)
            if self._secure:
                context = self._tls or httpx2.create_ssl_context(trust_env=False)
                stream = await stream.start_tls(context, server_hostname=self._host)
                undo.push_async_callback(stream.aclose)
            await stream.write(self._question(address, port))
            await self._answered(stream)
            undo.pop_all()
        return stream

    def _question(self, address: str, port: int) -> bytes:
        target = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        lines = [f"CONNECT {target} HTTP/1.1".encode(), f"Host: {target}".encode()]
        if self._authorization:
            lines.append(b"Proxy-Authorization: " + self._authorization)
        return b"\r\n".join([*lines, b"", b""])

    async def _answered(self, stream: httpcore2.AsyncNetworkStream) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            part = await stream.read(4096)
            head += part
            if not part or len(head) > HEAD_BYTES:
                raise httpcore2.ProxyError("no answer to CONNECT")
        # Nothing may follow yet: on the other side a client speaks first.
        if not OPENED.match(head) or not head.endswith(b"\r\n\r\n"):
            raise httpcore2.ProxyError("CONNECT was refused")
