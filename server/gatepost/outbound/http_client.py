"""Send HTTP requests for calls: to checked and pinned addresses, with bounded answers."""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib import metadata
from ipaddress import ip_address
from typing import Unpack
from weakref import WeakValueDictionary

import httpx2
import msgspec

from gatepost.execution.failure import ToolFailure
from gatepost.outbound import http_response as answers
from gatepost.outbound.connections import ConnectionPools, PoolKey
from gatepost.outbound.http_request import (
    CORRELATION,
    HARMLESS_HEADERS,
    OutboundRequest,
    outbound_request,
    plain_url,
)
from gatepost.outbound.redirect import STATUSES, following, host_and_port
from gatepost.outbound.transport_errors import (
    SAFE_METHODS,
    failure_of,
    refused_url,
    too_late,
)
from gatepost.telemetry.trace import outgoing
from gatepost.tools.context.interfaces import OutboundReply, Sending
from gatepost_authz.address_policy import ToolAddressPolicy
from gatepost_authz.addresses import BAD_PORTS, authority_problem, literal, parted
from gatepost_authz.config import Network
from gatepost_authz.pinned_response import PinnedResponse
from gatepost_authz.pinning import (
    KEPT_S,
    PinningTransport,
    ResolveHost,
    SystemResolver,
    alternated,
)

TIMEOUT_S = 30.0
MAX_BYTES = 1_000_000
CONNECTIONS = httpx2.Limits(
    max_connections=20, max_keepalive_connections=20, keepalive_expiry=KEPT_S
)
"""
The limits of one tenant, so that one tenant's slow servers do not block the others. All connections
are kept: calls that end together would otherwise close most of them, and the next calls open them
again.
"""
UPSTREAM_CONNECTIONS = httpx2.Limits(
    max_connections=128, max_keepalive_connections=32, keepalive_expiry=KEPT_S
)
"""
The limits of one upstream. It has a pool of its own, so that a slow one does not block others.
"""
LOOKUPS = 16
"""Maximum number of DNS lookups that one tenant may have at once."""
USUAL_PORTS = {"https": (443,), "http": (80,), "ssh": (22,), "smtp": (587, 465, 25)}
"""The usual ports of each scheme."""
PRINTABLE = re.compile(r"[\x21-\x7e]{1,255}", re.ASCII)


class OutboundClient:
    """
    The only way for tools to reach other servers; one per process.

    *tls* creates the context that verifies certificates, at first use. *resolver* replaces the
    system's. Only the origins in *traced* get the trace context of a call.
    """

    def __init__(
        self,
        network: Network,
        *,
        tls: Callable[[], ssl.SSLContext],
        resolver: ResolveHost | None = None,
        traced: Iterable[str] = (),
    ) -> None:
        self._tls = tls
        self.traced = frozenset(traced)
        self.resolver = resolver
        # Kept alive by connections, and by lookups as long as they hang.
        self._resolvers = WeakValueDictionary[str, SystemResolver]()
        self._retiring: list[ConnectionPools] = []
        self._take_up(network)

    def _take_up(self, network: Network) -> None:
        self._network = network
        self.address_policy = ToolAddressPolicy(network.allow_hosts)
        self.lines = ConnectionPools(partial(self._transport, network, self.address_policy))

    def apply(self, network: Network) -> None:
        """Apply new `allow_hosts`; running requests keep their connections."""
        if network.allow_hosts == self._network.allow_hosts:
            return
        # The open connections were made under the old rules.
        before = self.lines
        self._take_up(msgspec.structs.replace(self._network, allow_hosts=network.allow_hosts))
        before.retire()
        self._retiring = [lines for lines in (*self._retiring, before) if not lines.closed]

    def resolver_of(self, tenant: str) -> ResolveHost:
        """Return the resolver of one tenant, so that its hanging lookups do not block others."""
        if self.resolver is not None:
            return self.resolver
        return self._resolvers.setdefault(tenant, SystemResolver(LOOKUPS))

    def _transport(
        self, network: Network, address_policy: ToolAddressPolicy, key: PoolKey
    ) -> PinningTransport:
        return PinningTransport(
            address_policy=address_policy,
            # Reading a hundred certificates takes long, and plain http needs none.
            tls=self._tls() if key.secure or network.proxy.startswith("https:") else None,
            proxy=network.proxy,
            resolver=self.resolver_of(key.tenant),
            limits=UPSTREAM_CONNECTIONS if key.upstream else CONNECTIONS,
        )

    def client_for(
        self, tenant: str, correlation: str | None = None, *, upstream: str = ""
    ) -> "Sender":
        """Return the HTTP client for one call of *tenant*, or for requests to its *upstream*."""
        return Sender(self, tenant, correlation, upstream)

    @property
    def network(self) -> Network:
        """Return the current settings."""
        return self._network

    async def aclose(self) -> None:
        """Close every connection."""
        for lines in (*self._retiring, self.lines):
            await lines.aclose()
        await asyncio.sleep(0)  # in its next turn, the loop closes the sockets


class Sender:
    """The HTTP client of one call (`Outbound`)."""

    def __init__(
        self, client: OutboundClient, tenant: str, correlation: str | None, upstream: str = ""
    ) -> None:
        self._address_policy, self._lines, self._traced = (
            client.address_policy,
            client.lines,
            client.traced,
        )
        self._lookups = client.resolver_of(tenant)
        self._tenant, self._upstream = tenant, upstream
        self._own_headers = {
            "user-agent": AGENT,
            "accept": "*/*",
            "accept-encoding": "gzip, deflate",
        }
        if correlation is not None and PRINTABLE.fullmatch(correlation):
            self._own_headers[CORRELATION] = correlation

    async def send(self, method: str, url: str, **options: Unpack[Sending]) -> OutboundReply:
        """Send one request with the call's correlation id, and return the answer."""
        outbound = self.checked(method, url, options)
        first_method = outbound.method
        timeout_s = options.get("timeout_s", TIMEOUT_S)
        max_bytes = options.get("max_bytes", MAX_BYTES)
        try:
            # One limit for the whole request: a server that sends a byte per second passes every
            # read timeout, and each hop would start a new one.
            async with asyncio.timeout(timeout_s):
                max_redirects = options.get("redirects", 0)
                for hop in range(max_redirects + 1):
                    try:
                        if "before" in options:
                            await options["before"](outbound.url)
                        result = await self._hop(
                            outbound, hop < max_redirects, timeout_s, max_bytes
                        )
                    except httpx2.TransportError as error:
                        # After a redirect, the first request may have had effects.
                        at = outbound.where.host
                        raise failure_of(error, at, first_method, was_sent=hop > 0) from error
                    if isinstance(result, OutboundReply):
                        return result
                    outbound = result
        except TimeoutError:
            raise too_late(outbound.where.host, first_method) from None
        raise AssertionError("the last hop answers a Reply")

    def checked(self, method: str, url: str, options: Sending) -> OutboundRequest:
        """Return the request; raises ToolFailure if it must not be sent."""
        if unknown := options.keys() - Sending.__annotations__.keys():
            # A misspelt `confidential` would send a secret in the clear.
            raise TypeError(f"a request has no option {', '.join(sorted(unknown))}")
        url = plain_url(url)
        if problem := self._address_policy.problem(url):
            raise refused_url(problem)
        outbound = outbound_request(method, url, options)
        self._judge(outbound)
        return outbound

    @asynccontextmanager
    async def answered(
        self, outbound: OutboundRequest, timeout_s: float
    ) -> AsyncIterator[PinnedResponse]:
        """Send a checked request, and yield its answer, whose body is not read yet."""
        secure = outbound.where.scheme == "https"
        key = PoolKey(self._tenant, secure, self._upstream)
        line = self._lines.take(key)
        try:
            answer = await line.transport.send(
                outbound.request(self._fields(outbound.url), timeout_s),
                outbound.where,
                may_repeat=outbound.method in SAFE_METHODS,
            )
            try:
                yield answer
            finally:
                await answer.body.aclose()
        finally:
            self._lines.give_back(line)

    async def addresses(self, scheme: str, host: str, port: int) -> Sequence[str]:
        """Return the addresses of *host* for a program that connects by itself."""
        return await checked_addresses(self._address_policy, self._lookups, scheme, host, port)

    def _fields(self, url: str) -> Mapping[str, str]:
        """Return the client's own headers; only configured origins get the trace context."""
        parent = outgoing() if self._traced else None
        if parent is None or origin_of(httpx2.URL(url)) not in self._traced:
            return self._own_headers
        return {**self._own_headers, "traceparent": parent}

    async def _hop(
        self, outbound: OutboundRequest, follows: bool, timeout_s: float, max_bytes: int
    ) -> OutboundReply | OutboundRequest:
        """Send one request; return the answer, or the next request of a redirect."""
        async with self.answered(outbound, timeout_s) as answer:
            if follows and answer.status in STATUSES:
                redirected = following(outbound, answer, self._address_policy)
                if redirected is not None:
                    self._judge(redirected)
                    return redirected
            host = outbound.where.host
            return await answers.read(answer, url=outbound.url, host=host, max_bytes=max_bytes)

    def _judge(self, outbound: OutboundRequest) -> None:
        """Raise ToolFailure unless *outbound* may be sent to its URL."""
        if problem := self._address_policy.problem(outbound.url):
            raise refused_url(problem)
        url = outbound.where
        if url.scheme == "https" or self._address_policy.allows_http(*host_and_port(url)):
            return
        # An attacker on the network path can read http and can answer in the server's place.
        if (
            outbound.confidential
            or outbound.method not in SAFE_METHODS
            or outbound.headers.keys() - HARMLESS_HEADERS
        ):
            raise ToolFailure(
                "denied",
                f"http://{url.host} is unencrypted, so it may be read and nothing else: use https.",
            )


def origin_of(url: httpx2.URL) -> str:
    """Return scheme, host and port, without the scheme's default port."""
    port = "" if url.port is None else f":{url.port}"
    return f"{url.scheme}://{url.host}{port}"


def _agent() -> str:
    try:
        return f"gatepost/{metadata.version('gatepost')}"
    except metadata.PackageNotFoundError:
        return "gatepost/0"


AGENT = _agent()


async def checked_addresses(
    address_policy: ToolAddressPolicy, resolver: ResolveHost, scheme: str, host: str, port: int
) -> Sequence[str]:
    """
    Return a few addresses of *host* that a program may connect to (`Outbound.addresses`).

    If one of several addresses is not allowed, all are refused: that is how an attacker's name
    looks.
    """
    allowed = address_policy.allows(host, port)
    try:
        problem = authority_problem(parted(f"https://{host}/"))
    except ValueError as error:
        problem = str(error)
    if problem:
        raise ToolFailure("denied", f"{host} is not connected to: {problem}.")
    if scheme == "http" and not address_policy.allows_http(host, port):
        raise ToolFailure(
            "denied", f"http://{host} is unencrypted and is not connected to: use https."
        )
    if port not in USUAL_PORTS[scheme] and not allowed and (port < 1024 or port in BAD_PORTS):
        raise ToolFailure("denied", f"Port {port} of {host} belongs to another service.")
    spelt = literal(host)
    try:
        addresses = [str(spelt)] if spelt is not None else await resolver(host, port)
    except OSError:
        addresses = []
    if not addresses:
        raise ToolFailure(
            "upstream_unavailable", f"{host} has no address: the name may be wrong.", retry_after=10
        )
    if not all(address_policy.reachable(host, port, ip_address(address)) for address in addresses):
        raise ToolFailure(
            "denied",
            f"{host} is at an address that is not on the internet, so tools may not reach it. The "
            "operator can allow it by [network] allow_hosts.",
        )
    return alternated(addresses)
