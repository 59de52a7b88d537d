"""Open a proxy tunnel to a checked address (CONNECT, RFC 9110 section 9.3.6)."""

import re
import ssl
from contextlib import AsyncExitStack

import httpcore2
import httpx2

HEAD_BYTES = 16_384
"""The maximum size of a proxy's response before its tunnel opens."""
NO_ANSWER = "no answer to CONNECT"
OPENED = re.compile(rb"HTTP/1\.[01] 2[0-9]{2}[ \r]")


class Tunnel:
    """
    Opens tunnels through an HTTP proxy, only to addresses that were checked here.

    *proxy* is the operator's own URL, with a user name and password if it needs them; *tls* is for
    https proxies.
    """

    def __init__(self, proxy: str, tls: ssl.SSLContext | None) -> None:
        way_out = httpx2.Proxy(proxy)
        self.host = way_out.url.host
        self.scheme = way_out.url.scheme
        self.port = way_out.url.port or (443 if self.scheme == "https" else 80)
        self._tls = tls
        self._authorization = b""
        if way_out.raw_auth is not None:
            basic = httpx2.BasicAuth(*way_out.raw_auth)
            asked = next(basic.auth_flow(httpx2.Request("GET", way_out.url)))
            self._authorization = asked.headers["authorization"].encode()
        self._network = httpcore2.AnyIOBackend()

    async def connect(self, address: str, port: int) -> httpcore2.AsyncNetworkStream:
        """
        Open a stream to *address* within the caller's time limit; raise ProxyError if refused.
        """
        try:
            return await self._opened(address, port)
        except httpcore2.NetworkError as error:
            # Whatever the error is, the address did not cause it, and nothing was sent to it yet.
            raise httpcore2.ProxyError("the proxy cannot be reached") from error

    def is_open(self, head: bytes) -> bool:
        """
        Return whether the proxy's answer, of which *head* has come so far, opened the tunnel.

        False: there is more to read. ProxyError: the answer is too long, or refuses.
        """
        if len(head) > HEAD_BYTES:
            raise httpcore2.ProxyError(NO_ANSWER)
        if b"\r\n\r\n" not in head:
            return False
        # Nothing may follow yet: a server that speaks first is read byte by byte.
        if not OPENED.match(head) or not head.endswith(b"\r\n\r\n"):
            raise httpcore2.ProxyError("CONNECT was refused")
        return True

    async def _opened(self, address: str, port: int) -> httpcore2.AsyncNetworkStream:
        async with AsyncExitStack() as undo:
            stream = await self._network.connect_tcp(self.host, self.port)
            undo.push_async_callback(stream.aclose)
            if self.scheme == "https":
                context = self._tls or httpx2.create_ssl_context(trust_env=False)
                stream = await stream.start_tls(context, server_hostname=self.host)
                undo.push_async_callback(stream.aclose)
            await stream.write(self.request(address, port))
            head = b""
            while not self.is_open(head):
                part = await stream.read(4096)
                if not part:
                    raise httpcore2.ProxyError(NO_ANSWER)
                head += part
            undo.pop_all()
        return stream

    def request(self, address: str, port: int) -> bytes:
        """Return the request that asks the proxy for a tunnel to *address*."""
        target = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        lines = [f"CONNECT {target} HTTP/1.1".encode(), f"Host: {target}".encode()]
        if self._authorization:
            lines.append(b"Proxy-Authorization: " + self._authorization)
        return b"\r\n".join([*lines, b"", b""])
