"""A server that sends two responses to one request never answers the next request with one."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest

from gatepost_authz.address_policy import AddressPolicy, IssuerAddressPolicy, ToolAddressPolicy
from gatepost_authz.pinning import PinningTransport
from tests.authz.test_connection_pool import WITHIN_S, anyio_backend, fetch
from tests.authz.test_pinning import NAME, TunnelProxy, company_authority
from tests.support.proxies import CertificateAuthority

__all__ = ["anyio_backend", "company_authority"]

SURPLUS = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nsurplus"
READ_AT_ONCE = 4_096
"""The bytes of a head that are read at once: a response of this size leaves none behind it."""


def response(size: int) -> bytes:
    """Return a response of *size* bytes."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Padding: "
    return head + b"x" * (size - len(head) - 6) + b"\r\n\r\nok"


class TwiceAnswering:
    """Answers each request with a response of *size* bytes, and a further one at once."""

    def __init__(self, size: int) -> None:
        self._response = response(size)

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(self._response)  # over TLS, a record of its own
                writer.write(SURPLUS)
                await writer.drain()
        writer.close()


StreamHandler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class ServedConnections:
    """Handles connections, and waits until all of them are closed."""

    def __init__(self) -> None:
        self._handled = set[asyncio.Task[None]]()

    def handler(self, handle: StreamHandler) -> StreamHandler:
        """Return a handler for `asyncio.start_server`."""

        async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._handled.add(task)
            await handle(reader, writer)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

        return run

    async def end(self) -> None:
        """Wait until the last connection is closed."""
        if self._handled:
            await asyncio.wait(self._handled)


def context_of(authority: CertificateAuthority, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.certify(name))
    return context


@asynccontextmanager
async def proxied(
    authority: CertificateAuthority,
    policy: AddressPolicy,
    size: int,
    *,
    is_secure: bool,
    has_secure_proxy: bool,
) -> AsyncIterator[PinningTransport]:
    """Yield a transport whose proxy leads to a `TwiceAnswering`."""

    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["93.184.215.14"]

    tls = context_of(authority, NAME) if is_secure else None
    proxy_tls = context_of(authority, "localhost") if has_secure_proxy else None
    served = ServedConnections()
    server = await asyncio.start_server(
        served.handler(TwiceAnswering(size)), "127.0.0.1", 0, ssl=tls
    )
    tunnels = TunnelProxy(server.sockets[0].getsockname()[1])
    proxy = await asyncio.start_server(served.handler(tunnels), "127.0.0.1", 0, ssl=proxy_tls)
    port = proxy.sockets[0].getsockname()[1]
    transport = PinningTransport(
        address_policy=policy,
        tls=ssl.create_default_context(cafile=str(authority.bundle)),
        proxy=f"{'https' if has_secure_proxy else 'http'}://localhost:{port}",
        resolver=resolve,
    )
    async with AsyncExitStack() as undo:
        undo.callback(server.close)
        undo.callback(proxy.close)
        undo.push_async_callback(served.end)
        undo.push_async_callback(transport.aclose)
        yield transport


@pytest.mark.parametrize("size", [200, READ_AT_ONCE])
@pytest.mark.parametrize("has_secure_proxy", [False, True], ids=["http-proxy", "https-proxy"])
@pytest.mark.parametrize(
    ("policy", "is_secure"),
    [
        (ToolAddressPolicy(), True),
        (ToolAddressPolicy(), False),
        (IssuerAddressPolicy(), True),
    ],
    ids=["address-https", "address-http", "name-https"],
)
async def test_surplus_of_a_server_behind_a_proxy_answers_no_request(
    company_authority: CertificateAuthority,
    policy: AddressPolicy,
    is_secure: bool,
    has_secure_proxy: bool,
    size: int,
) -> None:
    """Bytes that arrived are found in every layer: TLS, the tunnel, and the TLS of the proxy."""
    async with (
        asyncio.timeout(WITHIN_S),
        proxied(
            company_authority,
            policy,
            size,
            is_secure=is_secure,
            has_secure_proxy=has_secure_proxy,
        ) as transport,
    ):
        url = f"{'https' if is_secure else 'http'}://{NAME}/"
        assert [await fetch(transport, url) for _ in range(4)] == [b"ok"] * 4
        assert transport.open_connections <= 1
