"""Connections are each tenant's own, and what goes wrong with them is told without addresses."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from gatepost.execution.failure import ToolFailure
from gatepost.outbound import connections
from gatepost.outbound.http_client import OutboundClient
from gatepost_authz.config import Network
from gatepost_authz.fetch import Fetcher
from tests.support.internet import Internet, page_answer

SITE = "https://www.web.test/"
Served = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


@asynccontextmanager
async def raw_server(serve: Served) -> AsyncIterator[int]:
    """Run a server with that handler; yield its port."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


def server_sending(answer: bytes) -> Served:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    return serve


@asynccontextmanager
async def client_of(internet: Internet, **network: Any) -> AsyncIterator[OutboundClient]:
    settings = Network(**network)
    outbound_client = OutboundClient(
        settings, tls=Fetcher(development=False, network=settings).tls, resolver=internet.names
    )
    yield outbound_client
    await outbound_client.aclose()


async def test_tenants_share_no_connection(
    outbound_client: OutboundClient, internet: Internet
) -> None:
    """A proxy or server could take one tenant's authentication for the other's."""
    for tenant in ("acme", "globex", "acme", "globex"):
        await outbound_client.client_for(tenant).send("GET", SITE)

    first, second, third, fourth = [seen.connection for seen in internet.site.seen]
    assert (first, second) == (third, fourth)
    assert first != second


async def test_a_bounded_number_of_tenants_keep_idle_connections(
    outbound_client: OutboundClient, internet: Internet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The latest requests keep them; no request loses one that is in use."""
    monkeypatch.setattr(connections, "IDLE_POOLS", 2)
    for tenant in ("a", "b", "c", "b", "c", "a"):
        await outbound_client.client_for(tenant).send("GET", "http://www.web.test/")

    a, b, c, b_again, c_again, a_again = [seen.connection for seen in internet.site.seen]
    assert (b, c) == (b_again, c_again)
    assert a != a_again


async def test_calls_at_once_leave_all_their_connections_to_the_next(
    outbound_client: OutboundClient, internet: Internet
) -> None:
    """A new connection takes longer than a request, above all an encrypted one."""
    for _ in range(3):
        await send_at_once(outbound_client, "acme", 12)

    assert len({seen.connection for seen in internet.site.seen}) == 12


async def test_a_bounded_number_of_connections_stays_idle(
    outbound_client: OutboundClient, internet: Internet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the tenants that called least recently are closed first."""
    monkeypatch.setattr(connections, "IDLE_CONNECTIONS", 6)
    for tenant in ("a", "b", "b", "a"):
        await send_at_once(outbound_client, tenant, 4)

    seen = [seen.connection for seen in internet.site.seen]
    a, b, b_again, a_again = (set(seen[at : at + 4]) for at in range(0, 16, 4))
    assert b == b_again
    assert not a & a_again


async def test_a_tenant_with_many_upstreams_closes_no_connections_of_others(
    outbound_client: OutboundClient, internet: Internet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connections above the limit are closed where most are kept."""
    monkeypatch.setattr(connections, "IDLE_CONNECTIONS", 6)
    monkeypatch.setattr(connections, "IDLE_POOLS", 3)
    small = outbound_client.client_for("small")
    await small.send("GET", "http://www.web.test/")
    for upstream in "abcdef":
        large = outbound_client.client_for("large", upstream=upstream)
        await asyncio.gather(*(large.send("GET", "http://www.web.test/") for _ in range(3)))
    await small.send("GET", "http://www.web.test/")

    assert internet.site.seen[0].connection == internet.site.seen[-1].connection


async def test_a_cancelled_call_closes_the_connections_that_it_began_to_close(
    internet: Internet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each one left would stay open as long as its server wants, outside of all limits."""
    opened: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.add(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        opened.remove(writer)

    async with (
        raw_server(serve) as port,
        client_of(internet, allow_hosts=(f"a.test:{port}",)) as c,
    ):
        internet.names.known["a.test"] = [["127.0.0.1"]]
        url = f"http://a.test:{port}/"
        for tenant in ("a", "b"):
            await send_at_once(c, tenant, 12, url)
        monkeypatch.setattr(connections, "IDLE_CONNECTIONS", 0)
        call = asyncio.ensure_future(c.client_for("c").send("GET", url))
        await until(lambda: len(opened) == 25)
        await until(lambda: len(opened) < 25)
        call.cancel()
        await asyncio.wait([call])

        await until(lambda: not opened)


async def until(condition: Callable[[], bool]) -> None:
    """Return in the first turn of the loop in which *condition* holds."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  # no event says that a connection was closed
            await asyncio.sleep(0)


async def send_at_once(
    outbound_client: OutboundClient, tenant: str, count: int, url: str = "http://www.web.test/"
) -> None:
    http = outbound_client.client_for(tenant)
    await asyncio.gather(*(http.send("GET", url) for _ in range(count)))


async def test_other_settings_count_from_the_next_request(
    outbound_client: OutboundClient, internet: Internet
) -> None:
    """A kept connection to a host that is no longer allowed serves no request."""
    http = outbound_client.client_for("acme")
    inside = f"http://localhost:{internet.plain}/"
    await http.send("GET", inside)

    outbound_client.apply(Network())

    with pytest.raises(ToolFailure, match="may not reach"):
        await outbound_client.client_for("acme").send("GET", inside)
    assert (
        await outbound_client.client_for("acme").send("GET", "http://www.web.test/")
    ).status == 200
    assert (await http.send("GET", inside)).status == 200  # a call that was under way


FAILURES = [
    # method, what the server sends, kind, what the model reads
    ("GET", b"", "upstream_unavailable", "not HTTP|broke the connection"),
    ("POST", b"", "internal", "look before you ask again"),
    ("GET", b"SSH-2.0-OpenSSH\r\n\r\n", "upstream_unavailable", "not HTTP"),
    ("GET", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", "upstream_unavailable", "."),
    ("PUT", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", "internal", "look before"),
    ("GET", b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000, "upstream_unavailable", "not HTTP"),
    ("GET", b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n", "upstream_unavailable", "."),
    ("GET", b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "upstream_unavailable", "not HTTP"),
    (
        "GET",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        None,
        "not HTTP",
    ),
    ("GET", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", None, "not HTTP"),
]


@pytest.mark.parametrize(
    ("method", "answer", "kind", "expected_text"),
    FAILURES,
    ids=[str(n) for n in range(len(FAILURES))],
)
async def test_an_invalid_response_is_a_failure(
    internet: Internet, method: str, answer: bytes, kind: str | None, expected_text: str
) -> None:
    """The failure says whether the request may have had an effect."""
    async with (
        raw_server(server_sending(answer)) as port,
        client_of(internet, allow_hosts=(f"a.web.test:{port}",)) as c,
    ):
        internet.names.known["a.web.test"] = [["127.0.0.1"]]
        with pytest.raises(ToolFailure, match=expected_text) as failure:
            await c.client_for("acme").send(method, f"http://a.web.test:{port}/")

    assert failure.value.failure.kind == (kind or "upstream_unavailable")
    assert "127.0.0.1" not in str(failure.value)


async def test_a_silent_server_times_out(internet: Internet) -> None:
    """Each kind of wait has a deadline."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with (
        raw_server(silent) as port,
        client_of(internet, allow_hosts=(f"localhost:{port}",)) as outbound_client,
    ):
        for method in ("GET", "POST"):
            with pytest.raises(ToolFailure, match="did not answer in time") as failure:
                await outbound_client.client_for("acme").send(
                    method, f"http://localhost:{port}/", timeout_s=0.1
                )
            assert failure.value.failure.kind == "timeout"


async def test_an_unreachable_host_is_a_failure(internet: Internet) -> None:
    """No such name, or no server listens."""
    async with client_of(internet, allow_hosts=("localhost:1",)) as outbound_client:
        for method, url in (("GET", "https://nowhere.example/"), ("POST", "https://localhost:1/")):
            with pytest.raises(ToolFailure, match="cannot be reached") as failure:
                await outbound_client.client_for("acme").send(method, url)
            assert failure.value.failure.kind == "upstream_unavailable"


async def test_an_untrusted_certificate_is_refused(internet: Internet) -> None:
    """Gatepost also refuses a certificate of a trusted CA for another name."""
    strict = client_of(internet, proxy=internet.proxy.url)
    other = client_of(internet, proxy=internet.proxy.url, ca_bundle=str(internet.company.bundle))
    internet.names.known["a.example"] = [["93.184.215.14"]]
    async with strict as untrusting, other as outbound_client:
        for client, url in ((untrusting, SITE), (outbound_client, "https://a.example/")):
            with pytest.raises(ToolFailure, match="no certificate") as failure:
                await client.client_for("acme").send("POST", url)
            assert failure.value.failure.kind == "upstream_unavailable"
    assert internet.site.seen == []


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 403 Forbidden\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nearly",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 20_000,
        b"SSH-2.0\r\n\r\n",
        b"",
    ],
    ids=["refuses", "speaks-first", "endless", "no-proxy", "hangs-up"],
)
async def test_a_refusing_proxy_is_a_failure(internet: Internet, answer: bytes) -> None:
    """The proxy's answer is not shown: it is the operator's."""
    async with (
        raw_server(server_sending(answer)) as port,
        client_of(internet, proxy=f"http://127.0.0.1:{port}") as c,
    ):
        with pytest.raises(ToolFailure, match="cannot be reached") as failure:
            await c.client_for("acme").send("POST", SITE, json={})

    assert failure.value.failure.kind == "upstream_unavailable"
    assert "127.0.0.1" not in str(failure.value)


async def test_a_proxy_can_be_reached_over_https(internet: Internet) -> None:
    """The proxy's certificate counts for its own name, and the tunnel is inside its TLS."""

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        target_reader, back = await asyncio.open_connection("127.0.0.1", internet.plain)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        back.write(await reader.readuntil(b"\r\n\r\n"))
        writer.write(await target_reader.readuntil(b"}"))
        await writer.drain()
        back.close()
        writer.close()

    certificate, key = internet.company.certify("localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = await asyncio.start_server(tunnel, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    bundle = str(internet.company.bundle)
    internet.site.pages["/"] = page_answer("{}")

    async with client_of(
        internet, proxy=f"https://localhost:{port}", ca_bundle=bundle
    ) as outbound_client:
        reply = await outbound_client.client_for("acme").send("GET", "http://www.web.test/")
        assert (reply.status, reply.body) == (200, b"{}")
    async with client_of(internet, proxy=f"https://localhost:{port}") as untrusting:
        with pytest.raises(ToolFailure, match="the way out of this network"):
            await untrusting.client_for("acme").send("GET", "http://www.web.test/")
    server.close()


@pytest.mark.parametrize(("method", "is_answered"), [("GET", True), ("POST", False)])
async def test_a_request_that_meets_the_end_of_a_kept_connection_is_repeated(
    internet: Internet, method: str, is_answered: bool
) -> None:
    """Servers close idle connections. A request that may have had effects is not repeated."""
    requests = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        await reader.readuntil(b"\r\n\r\n")
        requests += 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()
        with suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            requests += 1
        writer.close()

    async with raw_server(serve) as port:
        url = f"http://localhost:{port}/"
        async with client_of(internet, allow_hosts=[f"localhost:{port}"]) as outbound_client:
            sender = outbound_client.client_for("acme")
            assert (await sender.send("GET", url)).body == b"ok"
            if is_answered:
                assert (await sender.send(method, url)).body == b"ok"
            else:
                with pytest.raises(ToolFailure):
                    await sender.send(method, url)

    assert requests == (3 if is_answered else 2)


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200 OK\r\nContent-", b"SSH-2.0-OpenSSH\r\n\r\n"]
)
async def test_a_request_whose_new_connection_fails_is_not_repeated(
    internet: Internet, answer: bytes
) -> None:
    """A server that ends every connection would get each request twice."""
    requests = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        requests += 1
        await server_sending(answer)(reader, writer)

    async with (
        raw_server(serve) as port,
        client_of(internet, allow_hosts=[f"localhost:{port}"]) as outbound_client,
    ):
        with pytest.raises(ToolFailure) as failure:
            await outbound_client.client_for("acme").send("GET", f"http://localhost:{port}/")

    assert (failure.value.failure.kind, requests) == ("upstream_unavailable", 1)
