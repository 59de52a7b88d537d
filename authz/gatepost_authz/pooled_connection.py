"""One connection of HTTP/1.1 to a server, also through the tunnel of a proxy."""

import ssl

import httpcore2


class PooledConnection:
    """
    A connection to one origin, which opens with its first request.

    `httpcore2.AsyncHTTPConnection` would use a connection again if bytes followed its last
    response. The next request, maybe of another caller, would take them for its response.
    """

    def __init__(
        self,
        origin: httpcore2.Origin,
        backend: httpcore2.AsyncNetworkBackend,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._origin, self._backend, self._tls = origin, backend, tls
        self._opened: Http11Connection | None = None
        self._is_closed = False

    async def handle_async_request(self, request: httpcore2.Request) -> httpcore2.Response:
        """Send a request and return its response; raises httpcore2's errors."""
        if self._opened is None:
            timeout_s = request.extensions.get("timeout", {}).get("connect")
            stream = await self._connect(timeout_s)
            if self._is_closed:
                await stream.aclose()
                raise httpcore2.ConnectError("the connection was closed while it opened")
            self._opened = Http11Connection(self._origin, stream)
        return await self._opened.handle_async_request(request)

    def is_available(self) -> bool:
        """Return whether it is open and may send a request."""
        return self._opened is not None and self._opened.is_available()

    def has_expired(self) -> bool:
        """Return whether the server has closed it, or has sent bytes that answer no request."""
        return self._opened is None or self._opened.has_expired()

    async def aclose(self) -> None:
        """Close it, or let it be closed as soon as it is open."""
        self._is_closed = True
        if self._opened is not None:
            await self._opened.aclose()

    async def _connect(self, timeout_s: float | None) -> httpcore2.AsyncNetworkStream:
        host = self._origin.host.decode("ascii")
        stream = await self._backend.connect_tcp(host, self._origin.port, timeout_s)
        if self._origin.scheme != b"https":
            return stream
        tls = self._tls or httpcore2.default_ssl_context()
        tls.set_alpn_protocols(["http/1.1"])
        encrypted = None
        try:
            encrypted = await stream.start_tls(tls, host, timeout_s)
            return encrypted
        finally:
            if encrypted is None:
                await stream.aclose()


class Http11Connection(httpcore2.AsyncHTTP11Connection):
    """An open connection, which sends no further request if bytes followed a response."""

    def is_available(self) -> bool:
        """Return whether a request may be sent."""
        received, _ = self._h11_state.trailing_data
        return not received and super().is_available()
