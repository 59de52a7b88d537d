"""Connections go to the address that was checked, over TLS to the name that was meant."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpcore2
import httpx2
import pytest

from gatepost_authz.address_policy import IssuerAddressPolicy
from gatepost_authz.addresses import networks_of
from gatepost_authz.config import Network
from gatepost_authz.fetch import Fetcher, FetchError
from gatepost_authz.pinned_response import CORE_ERRORS, translated
from gatepost_authz.pinning import (
    LOOKUPS,
    AddressRefused,
    PinningTransport,
    SystemResolver,
    alternated,
)
from tests.support.issuers import AsgiServer, Receive, Scope, Send, respond
from tests.support.proxies import CertificateAuthority

NAME = "id.company.test"
LOOPBACK_NETWORKS = networks_of(["127.0.0.0/8"])


class ScriptedResolver:
    """A resolver that answers what it is told, and remembers what it was asked."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Say which host was addressed."""
    host = dict(scope["headers"])[b"host"].decode()
    await respond(send, 200, f'{{"host":"{host}"}}'.encode())


@pytest.fixture(scope="module")
def company_authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority(tmp_path_factory.mktemp("company"))


@pytest.fixture(scope="module")
def port(company_authority: CertificateAuthority) -> Iterator[int]:
    certificate, key = company_authority.certify(NAME)
    server = AsgiServer(echo, ssl_certfile=certificate, ssl_keyfile=key).start()
    yield server.port
    server.stop()


def fetcher(
    authority: CertificateAuthority, resolver: Any, *, proxy: str = "", ca: bool = True
) -> Fetcher:
    bundle = str(authority.bundle) if ca else ""
    network = Network(ca_bundle=bundle, proxy=proxy)
    return Fetcher(development=False, network=network, resolver=resolver)


@pytest.mark.requirement("N08")
async def test_connections_go_to_the_address_that_was_checked(
    company_authority: CertificateAuthority, port: int
) -> None:
    """The name is not resolved again after the check."""
    names = ScriptedResolver(["127.0.0.1"], ["169.254.169.254"])
    fetch = fetcher(company_authority, names)

    document = await fetch.get_json(f"https://{NAME}:{port}/", allow_private=LOOPBACK_NETWORKS)

    assert document.data == {"host": f"{NAME}:{port}"}
    assert names.asked == [NAME]
    with pytest.raises(FetchError, match="address"):
        await fetch.get_json(f"https://{NAME}:{port}/", allow_private=LOOPBACK_NETWORKS)
    await fetch.aclose()


@pytest.mark.requirement("N07")
@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["10.0.0.8"],
        ["::1"],
        ["::ffff:127.0.0.1"],
        ["64:ff9b::7f00:1"],
        ["2002:7f00:1::"],
        ["8.8.8.8", "127.0.0.1"],
        ["127.0.0.1", "8.8.8.8"],
    ],
    ids=",".join,
)
async def test_a_name_of_an_internal_host_is_refused(
    company_authority: CertificateAuthority, port: int, addresses: list[str]
) -> None:
    """If only one of several addresses is internal, no connection is made either."""
    fetch = fetcher(company_authority, ScriptedResolver(addresses))

    with pytest.raises(FetchError) as failure:
        await fetch.get_json(f"https://{NAME}:{port}/")

    assert failure.value.reason == "address"
    await fetch.aclose()


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "10.0.0.1", "169.254.169.254"])
async def test_an_address_in_the_url_is_refused_like_a_name(
    company_authority: CertificateAuthority, host: str
) -> None:
    """An attacker needs no name server to name internal addresses."""
    fetch = fetcher(company_authority, ScriptedResolver(["8.8.8.8"]))

    with pytest.raises(FetchError, match="address"):
        await fetch.get_json(f"https://{host}/latest/meta-data")

    await fetch.aclose()


async def test_a_network_allowed_for_one_issuer_is_refused_for_another(
    company_authority: CertificateAuthority, port: int
) -> None:
    """A connection of one issuer is never reused for another issuer."""
    fetch = fetcher(company_authority, ScriptedResolver(["127.0.0.1"]))
    url = f"https://{NAME}:{port}/"
    await fetch.get_json(url, allow_private=LOOPBACK_NETWORKS)

    with pytest.raises(FetchError, match="address"):
        await fetch.get_json(url, allow_private=networks_of(["10.0.0.0/8"]))

    await fetch.aclose()


async def test_a_certificate_needs_its_ca_bundle_and_the_host_name_of_the_url(
    company_authority: CertificateAuthority, port: int
) -> None:
    """TLS checks the name in the URL."""
    names = ScriptedResolver(["127.0.0.1"])
    stranger = fetcher(company_authority, names, ca=False)
    other = fetcher(company_authority, names)

    for fetch, host, reason in [
        (stranger, NAME, "certificate"),
        (other, "other.company.test", "certificate_name"),
    ]:
        with pytest.raises(FetchError) as failure:
            await fetch.get_json(f"https://{host}:{port}/", allow_private=LOOPBACK_NETWORKS)
        assert failure.value.reason == reason
        await fetch.aclose()


async def test_an_expired_certificate_is_named(company_authority: CertificateAuthority) -> None:
    """A new CA bundle would not help."""
    certificate, key = company_authority.certify(NAME, hours=-1)
    server = AsgiServer(echo, ssl_certfile=certificate, ssl_keyfile=key).start()
    fetch = fetcher(company_authority, ScriptedResolver(["127.0.0.1"]))
    try:
        with pytest.raises(FetchError) as failure:
            await fetch.get_json(f"https://{NAME}:{server.port}/", allow_private=LOOPBACK_NETWORKS)
    finally:
        await fetch.aclose()
        server.stop()

    assert failure.value.reason == "certificate_expired"


async def test_an_unreadable_ca_bundle_is_reported_as_a_fetch_error(tmp_path: Path) -> None:
    """Not a traceback in the middle of a request."""
    (tmp_path / "ca.pem").write_text("no certificate")
    for path in ("missing.pem", "ca.pem"):
        network = Network(ca_bundle=str(tmp_path / path))
        with pytest.raises(FetchError, match="tls"):
            await Fetcher(development=False, network=network).get_json("https://id.example.com/")


async def test_the_second_address_is_tried_when_the_first_does_not_answer(
    company_authority: CertificateAuthority, port: int
) -> None:
    """Many hosts have an IPv6 name although the machine has no IPv6."""
    fetch = fetcher(company_authority, ScriptedResolver(["127.0.0.9", "127.0.0.1"]))

    document = await fetch.get_json(f"https://{NAME}:{port}/", allow_private=LOOPBACK_NETWORKS)

    assert document.data == {"host": f"{NAME}:{port}"}
    await fetch.aclose()


@pytest.mark.parametrize(
    ("addresses", "tried"),
    [
        (["::1"], ["::1"]),
        (["::1", "::2", "::3", "1.1.1.1"], ["::1", "1.1.1.1", "::2", "::3"]),
        (["1.1.1.1", "1.1.1.2", "::1"], ["1.1.1.1", "::1", "1.1.1.2"]),
        ([f"::{n}" for n in range(9)], ["::0", "::1", "::2", "::3"]),
    ],
)
def test_ipv6_and_ipv4_addresses_are_tried_alternately(
    addresses: list[str], tried: list[str]
) -> None:
    """Unreachable IPv6 addresses must not use up the time of the IPv4 addresses."""
    assert alternated(addresses) == tried


class TunnelProxy:
    """A proxy that leads every tunnel to one port of this machine."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.asked: list[str] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked.append(head.decode().split("\r\n")[0])
        target_reader, back = await asyncio.open_connection("127.0.0.1", self.target)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await asyncio.gather(pump(reader, back), pump(target_reader, writer))


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    writer.close()


@pytest.fixture
async def proxy(port: int) -> AsyncIterator[tuple[TunnelProxy, str]]:
    proxy = TunnelProxy(port)
    server = await asyncio.start_server(proxy, "127.0.0.1", 0)
    yield proxy, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


async def test_a_proxy_resolves_names_itself(
    company_authority: CertificateAuthority, proxy: tuple[TunnelProxy, str]
) -> None:
    """The operator trusts the proxy, so its address is not checked; TLS ends at the issuer."""
    names = ScriptedResolver(["8.8.8.8"])
    fetch = fetcher(company_authority, names, proxy=proxy[1])

    document = await fetch.get_json(f"https://{NAME}/")

    assert document.data == {"host": NAME}
    assert proxy[0].asked == [f"CONNECT {NAME}:443 HTTP/1.1"]
    assert names.asked == []
    with pytest.raises(FetchError, match="address"):
        await fetch.get_json("https://169.254.169.254/")
    await fetch.aclose()


async def test_an_internal_issuer_is_reached_without_the_proxy(
    company_authority: CertificateAuthority, port: int, proxy: tuple[TunnelProxy, str]
) -> None:
    """A proxy for the internet often cannot reach the internal network."""
    fetch = fetcher(company_authority, ScriptedResolver(["127.0.0.1"]), proxy=proxy[1])

    await fetch.get_json(f"https://{NAME}:{port}/", allow_private=LOOPBACK_NETWORKS)

    assert proxy[0].asked == []
    await fetch.aclose()


async def test_the_guarded_transport_works_in_any_httpx2_client(
    company_authority: CertificateAuthority, port: int
) -> None:
    """Packs use it; every request is checked, and errors are those of httpx2."""
    fetch = fetcher(company_authority, ScriptedResolver(["127.0.0.1"]))
    inside = fetch.transport(allow_private=LOOPBACK_NETWORKS)
    async with httpx2.AsyncClient(transport=inside, trust_env=False) as client:
        assert (await client.post(f"https://{NAME}:{port}/", content=b"x")).json()

    async with httpx2.AsyncClient(transport=fetch.transport(), trust_env=False) as client:
        with pytest.raises(AddressRefused):
            await client.get(f"https://{NAME}:{port}/")
        with pytest.raises(httpx2.UnsupportedProtocol):
            await client.get("http://id.example.com/")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        local = PinningTransport(address_policy=IssuerAddressPolicy(development=True))
        async with httpx2.AsyncClient(transport=local, trust_env=False) as client:
            with pytest.raises(httpx2.ConnectError):
                await client.get(f"http://127.0.0.1:{silent.getsockname()[1]}/")


async def test_lookups_of_one_name_share_a_thread_and_do_not_block_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hanging lookups are limited in number."""
    release, lookups = threading.Event(), []

    def slow(host: str, port: int, **options: Any) -> list[Any]:
        lookups.append(host)
        assert host == "fast.test" or release.wait(10)
        return [(0, 0, 0, "", ("192.0.2.1", port))]

    monkeypatch.setattr("socket.getaddrinfo", slow)
    resolver = SystemResolver()
    hanging = [asyncio.create_task(resolver("dead.test", 443)) for _ in range(100)]

    assert await asyncio.wait_for(resolver("fast.test", 443), 5) == ("192.0.2.1",)
    hanging[0].cancel()
    others = [asyncio.create_task(resolver(f"dead{n}.test", 443)) for n in range(LOOKUPS - 1)]
    await asyncio.wait(others, timeout=0.01)
    with pytest.raises(OSError, match="too many"):
        await resolver("one-more.test", 443)

    release.set()
    await asyncio.wait_for(asyncio.gather(*hanging[1:], *others), 10)
    assert lookups.count("dead.test") == 1


async def test_localhost_is_never_resolved_by_a_name_server() -> None:
    """RFC 6761 section 6.3: a name server that answers for it is wrong."""
    assert await SystemResolver()("localhost", 80) == ("127.0.0.1", "::1")
    assert await SystemResolver()("as.localhost", 80) == ("127.0.0.1", "::1")


async def test_a_host_name_that_does_not_exist_is_a_connection_failure() -> None:
    """The resolver's error is handled as a failure (RFC 6761: .invalid never exists)."""
    with pytest.raises(FetchError) as failure:
        await Fetcher(development=False).get_json("https://id.invalid/")

    assert failure.value.reason in {"connect", "timeout"}


def test_an_error_of_the_connections_is_raised_as_the_one_of_the_client() -> None:
    """Each has its counterpart of the same name; only a subclass gets that of its base."""
    errors = [
        kind
        for kind in vars(httpcore2).values()
        if isinstance(kind, type) and issubclass(kind, CORE_ERRORS)
    ]

    for kind in errors:
        raised = translated(kind("why"))
        assert (type(raised).__name__, str(raised)) == (kind.__name__, "why")
    assert len(errors) == len(CORE_ERRORS)
    assert type(translated(type("Other", (httpcore2.ReadError,), {})())) is httpx2.ReadError
