"""Connect only to checked addresses, even if a name resolves differently later."""

import asyncio
import socket
import ssl
import threading
from collections.abc import (
    Awaitable,
    Callable,
    Iterable,
    Sequence,
)
from functools import partial
from ipaddress import ip_address
from itertools import zip_longest

import httpcore2
import httpx2

from gatepost_authz.address_policy import AddressPolicy, IssuerAddressPolicy
from gatepost_authz.addresses import USUAL_PORTS, is_loopback_host, is_public, literal
from gatepost_authz.connection_pool import HttpConnectionPool
from gatepost_authz.pinned_response import CORE_ERRORS, PinnedResponse, ResponseBody, translated
from gatepost_authz.pooled_connection import PooledConnection
from gatepost_authz.response_head import LimitedHead, MeasuredConnection
from gatepost_authz.tcp_stream import connect_first, connect_tcp
from gatepost_authz.tunnel import Tunnel

CONNECT_S = 2.0
ATTEMPTS = 4
"""The number of addresses tried per name within two seconds."""
KEPT_S = 4.0
"""
How long an idle connection is kept. Most servers close theirs after five seconds, and a request
that may have had effects fails if it meets the end of its connection.
"""
LOOKUPS = 64
"""The default number of concurrent lookups."""

CLOSED = (httpcore2.ReadError, httpcore2.WriteError, httpcore2.RemoteProtocolError)
"""Errors of a connection that the server has closed, instead of an answer."""

ResolveHost = Callable[[str, int], Awaitable[Sequence[str]]]
"""Resolves host name and port to addresses, best first; raises OSError if there is none."""


class AddressRefused(httpx2.ConnectError):
    """Raised when a host resolves to an address that the server may not connect to."""


class SystemResolver:
    """
    Resolves names with the system's resolver, in one thread per name.

    At most *lookups* run at once, because a lookup cannot be cancelled, and hanging ones must not
    pile up.

    The loop's own ``getaddrinfo`` runs in a pool of four (uvloop) or six threads that everything
    shares: a few names whose servers never answer would stop the lookups of all others.
    """

    def __init__(self, lookups: int = LOOKUPS) -> None:
        self._lookups = lookups
        self._running: dict[tuple[str, int], asyncio.Future[Sequence[str]]] = {}

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of *host*; raise OSError if it has none or too many lookups hang."""
        if is_loopback_host(host):
            # RFC 6761 section 6.3: this name is never sent to a name server, which might lie.
            return ("127.0.0.1", "::1")
        key = (host, port)
        if key not in self._running:
            if len(self._running) >= self._lookups:
                raise OSError("too many lookups at once")
            self._running[key] = self._begin(host, port)
        return await asyncio.shield(self._running[key])

    def _begin(self, host: str, port: int) -> asyncio.Future[Sequence[str]]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Sequence[str]] = loop.create_future()

        def finish(addresses: Sequence[str] | None, error: OSError | None) -> None:
            self._running.pop((host, port), None)
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
                answer.exception()  # retrieved, also when no request waits any longer
            else:
                answer.set_result(addresses or ())

        def look_up() -> None:
            addresses, failure = None, None
            try:
                entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                addresses = tuple(dict.fromkeys(str(entry[4][0]) for entry in entries))
            except (OSError, UnicodeError) as error:
                failure = OSError(str(error))
            try:
                loop.call_soon_threadsafe(finish, addresses, failure)
            except RuntimeError:
                return  # the loop was closed in the meantime

        # A daemon: a lookup that hangs must not delay the end of the process.
        threading.Thread(target=look_up, name="lookup", daemon=True).start()
        return answer


class PinnedBackend(httpcore2.AsyncNetworkBackend):
    """
    Opens TCP connections to checked addresses; TLS and Host keep the name.

    Public addresses are reached through *tunnel* if there is one.
    """

    def __init__(
        self, address_policy: AddressPolicy, *, resolver: ResolveHost, tunnel: Tunnel | None = None
    ) -> None:
        self._address_policy = address_policy
        self._resolver = resolver
        self._tunnel = tunnel

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """
        Connect to one of the addresses of *host*, all of which must be allowed.

        One bad address among good ones is refused too, because an attacker's name looks like that.
        AddressRefused, or what httpcore2 raises.
        """
        try:
            async with asyncio.timeout(timeout):
                addresses = alternated(await self._addresses(host, port))
                share = None if timeout is None else timeout / len(addresses)
                return await connect_first(
                    addresses, lambda address, limit_s: self._connect(address, port, limit_s), share
                )
        except TimeoutError as error:
            raise httpcore2.ConnectTimeout(str(error)) from error

    async def _connect(
        self, address: str, port: int, timeout: float | None
    ) -> httpcore2.AsyncNetworkStream:
        if self._tunnel is not None and is_public(ip_address(address)):
            return await _tunnelled(self._tunnel, address, port, timeout)
        return MeasuredConnection(await connect_tcp(address, port, timeout))

    async def _addresses(self, host: str, port: int) -> Sequence[str]:
        spelt = literal(host)
        try:
            addresses = [str(spelt)] if spelt is not None else await self._resolver(host, port)
        except OSError as error:
            raise httpcore2.ConnectError(str(error)) from error
        if not addresses:
            raise httpcore2.ConnectError("no address")
        for text in addresses:
            if not self._address_policy.reachable(host, port, ip_address(text)):
                raise AddressRefused("address not allowed")
        return addresses


class ProxyBackend(httpcore2.AsyncNetworkBackend):
    """Opens connections through *tunnel*, whose proxy resolves the names."""

    def __init__(self, tunnel: Tunnel) -> None:
        self._tunnel = tunnel

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Open a tunnel to *host*; raises ProxyError or ConnectTimeout."""
        # Before it answers, the proxy resolves the name and connects to the server.
        limit_s = None if timeout is None else 3 * timeout
        return await _tunnelled(self._tunnel, host, port, limit_s)


async def _tunnelled(
    tunnel: Tunnel, host: str, port: int, limit_s: float | None
) -> MeasuredConnection:
    try:
        async with asyncio.timeout(limit_s):
            return MeasuredConnection(await tunnel.connect(host, port))
    except TimeoutError as error:
        raise httpcore2.ConnectTimeout("no tunnel") from error


def alternated(addresses: Sequence[str]) -> Sequence[str]:
    """
    Return the first few of *addresses*, alternating IPv4 and IPv6.

    Where IPv6 leads nowhere, its addresses must not use up the time of those that work.
    """
    first = ":" in addresses[0]
    same_family = [address for address in addresses if (":" in address) is first]
    other_family = [address for address in addresses if (":" in address) is not first]
    ordered = [
        address
        for pair in zip_longest(same_family, other_family)
        for address in pair
        if address is not None
    ]
    return ordered[:ATTEMPTS]


class PinningTransport(httpx2.AsyncBaseTransport):
    """
    An httpx2 transport that connects only to hosts that *address_policy* allows.

    With *proxy* (the operator's own, which is not checked), public addresses are reached through
    the proxy and others directly, because a proxy leads out of the network and not into it. If
    *address_policy* allows it, the proxy resolves names itself. Addresses in a URL are still
    refused here.
    """

    def __init__(
        self,
        *,
        address_policy: AddressPolicy | None = None,
        tls: ssl.SSLContext | None = None,
        proxy: str = "",
        resolver: ResolveHost | None = None,
        limits: httpx2.Limits | None = None,
    ) -> None:
        self._address_policy = address_policy or IssuerAddressPolicy()
        resolves_at_proxy = self._address_policy.proxy_resolves
        limits = limits or httpx2.Limits(max_connections=20, max_keepalive_connections=5)
        backend = PinnedBackend(
            self._address_policy,
            resolver=resolver or SystemResolver(),
            tunnel=Tunnel(proxy, tls) if proxy and not resolves_at_proxy else None,
        )
        self._direct = HttpConnectionPool(
            lambda origin: PooledConnection(origin, backend, tls), limits
        )
        self._proxied: HttpConnectionPool | None = None
        if proxy and resolves_at_proxy:
            by_name = ProxyBackend(Tunnel(proxy, tls))
            self._proxied = HttpConnectionPool(
                lambda origin: PooledConnection(origin, by_name, tls), limits
            )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request; AddressRefused, UnsupportedProtocol, or another httpx2 error."""
        return await self._httpx2_response(request, may_repeat=False)

    async def send_repeatable(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request that changes nothing; again if its kept connection has ended meanwhile."""
        return await self._httpx2_response(request, may_repeat=True)

    async def _httpx2_response(
        self, request: httpx2.Request, *, may_repeat: bool
    ) -> httpx2.Response:
        core_request = httpcore2.Request(
            request.method,
            core_url(request.url),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        answer = await self.send(core_request, request.url, may_repeat=may_repeat)
        return httpx2.Response(
            answer.status,
            headers=answer.raw_headers,
            stream=answer.body,
            extensions=answer.extensions,
        )

    async def send(
        self, request: httpcore2.Request, url: httpx2.URL, *, may_repeat: bool = False
    ) -> PinnedResponse:
        """
        Send one request to *url*; AddressRefused, UnsupportedProtocol, or another httpx2 error.

        A server may close a kept connection while a request is on its way. A request that changes
        nothing *may_repeat* then (RFC 9112 section 9.3.1), but not if its own new connection fails.
        """
        host = url.host
        text = str(url.copy_with(fragment=None) if url.fragment else url)
        if self._address_policy.problem(text):
            raise httpx2.UnsupportedProtocol("URL not allowed")
        spelt = literal(host)
        port = url.port or USUAL_PORTS[url.scheme]
        if spelt is not None and not self._address_policy.reachable(host, port, spelt):
            raise AddressRefused("address not allowed")
        pool = self._direct if self._proxied is None or is_loopback_host(host) else self._proxied
        origin = (request.url.scheme, request.url.host, port)
        timeout_s = request.extensions.get("timeout", {}).get("pool")
        try:
            while True:
                connection = await pool.acquire(origin, timeout_s)
                is_kept = connection.is_available()
                answer = None
                try:
                    with LimitedHead():
                        answer = await connection.handle_async_request(request)
                except CLOSED:
                    # After `close`, a new connection would stay open.
                    if not (may_repeat and is_kept and connection in pool):
                        raise
                    may_repeat = False
                finally:
                    if answer is None:
                        pool.release(connection)
                if answer is not None:
                    body = ResponseBody(answer.stream, partial(pool.release, connection))
                    return PinnedResponse(answer, body)
        except CORE_ERRORS as error:
            raise translated(error) from error

    @property
    def open_connections(self) -> int:
        """Return the number of connections, idle ones included."""
        return len(self._direct) + (0 if self._proxied is None else len(self._proxied))

    def close(self) -> None:
        """Begin to close every connection; no cancellation can leave some of them open."""
        self._direct.close()
        if self._proxied is not None:
            self._proxied.close()

    async def aclose(self) -> None:
        """Close every connection."""
        await self._direct.aclose()
        if self._proxied is not None:
            await self._proxied.aclose()


def core_url(url: httpx2.URL) -> httpcore2.URL:
    """Return *url* as connections read it."""
    return httpcore2.URL(
        scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
    )
