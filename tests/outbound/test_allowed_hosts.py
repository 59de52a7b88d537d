"""Which hosts tools may reach, for any text that is given as a URL."""

from collections.abc import Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gatepost.execution.failure import ToolFailure
from gatepost.outbound.http_client import OutboundClient
from gatepost_authz.address_policy import ToolAddressPolicy, allowed_host
from gatepost_authz.addresses import is_public, literal
from gatepost_authz.config import Network
from gatepost_authz.fetch import Fetcher
from tests.support.measuring import each

HOST_CASES = [
    # allow_hosts, host, port, address, whether it may be connected to
    ([], "a.example", 443, "93.184.215.14", True),
    ([], "a.example", 8080, "10.0.0.1", False),
    ([], "localhost", 8080, "127.0.0.1", False),
    (["a.example"], "a.example", 443, "10.0.0.1", True),
    (["a.example"], "A.Example.", 443, "fd00::1", True),
    (["A.EXAMPLE."], "a.example", 443, "127.0.0.1", True),
    (["a.example"], "a.example", 80, "10.0.0.1", False),
    (["a.example"], "a.example", 8443, "10.0.0.1", False),
    (["a.example"], "b.a.example", 443, "10.0.0.1", False),
    (["a.example:8080"], "a.example", 8080, "100.64.0.7", True),
    (["a.example:8080"], "a.example", 443, "10.0.0.1", False),
    (["a.example"], "a.example", 443, "169.254.169.254", False),
    (["a.example"], "a.example", 443, "fe80::1", False),
    (["a.example"], "a.example", 443, "100.100.100.200", False),
    (["a.example"], "a.example", 443, "fd00:ec2::254", False),
    (["a.example"], "a.example", 443, "168.63.129.16", False),
    (["a.example"], "a.example", 443, "0.0.0.0", False),
    (["a.example"], "a.example", 443, "::ffff:10.0.0.1", False),
    (["a.example"], "a.example", 443, "224.0.0.1", False),
    (["a.example", "169.254.169.254"], "a.example", 443, "169.254.169.254", True),
    (["169.254.169.254:80"], "169.254.169.254", 80, "169.254.169.254", True),
    (["169.254.169.254:80"], "a.example", 80, "169.254.169.254", False),
    (["10.0.0.7:8080"], "10.0.0.7", 8080, "10.0.0.7", True),
    (["10.0.0.7:8080"], "10.0.0.7", 8081, "10.0.0.7", False),
    (["10.0.0.7:8080"], "a.example", 8080, "10.0.0.7", False),
    (["[FD00:0::7]:8080"], "fd00::7", 8080, "fd00::7", True),
]


@each(("entries", "host", "port", "address", "may"), HOST_CASES)
def test_an_entry_allows_only_its_own_host_and_port(
    entries: list[str], host: str, port: int, address: str, may: bool
) -> None:
    """A name may lead to internal hosts, but not to a metadata service."""
    assert ToolAddressPolicy(entries).reachable(host, port, ip_address(address)) is may


@pytest.mark.parametrize(
    ("entry", "host", "port"),
    [
        ("gitlab.corp.example", "gitlab.corp.example", 443),
        ("Host:8080", "host", 8080),
        ("localhost:80", "localhost", 80),
        ("10.0.0.7", "10.0.0.7", 443),
        ("[fd00::7]:8080", "fd00::7", 8080),
    ],
)
def test_an_entry_is_a_host_and_a_port(entry: str, host: str, port: int) -> None:
    """That of https where none is named."""
    assert allowed_host(entry) == (host, port)


@pytest.mark.parametrize("url", ["http://a:8080/", "https://a:22/", "http://a:22/"])
def test_any_port_can_be_allowed(url: str) -> None:
    """The operator must have named the port."""
    port = urlsplit(url).port
    assert ToolAddressPolicy([f"a:{port}"]).problem(url) is None


@pytest.mark.parametrize(
    ("entry", "url", "allowed"),
    [
        ("a", "https://a/", True),
        ("a", "http://a/", False),
        ("a", "http://a:443/", False),
        ("a:80", "http://a/", True),
        ("a:443", "http://a:443/", True),
        ("a:8080", "http://a:8080/", True),
        ("a:8080", "https://a:8080/", True),
    ],
)
async def test_a_host_without_a_port_allows_https_only(entry: str, url: str, allowed: bool) -> None:
    """An operator who writes `host` has not allowed plain HTTP, on any port."""
    names = EmptyResolver()
    client = OutboundClient(
        Network(allow_hosts=(entry,)), tls=Fetcher(development=True).tls, resolver=names
    )
    with pytest.raises(ToolFailure):
        await client.of("acme").send("POST", url, json={}, timeout_s=2)
    await client.aclose()

    assert (names.asked == ["a"]) is allowed


class EmptyResolver:
    """Answers every lookup with no address, and remembers it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        return ["0.0.0.0"]  # refused before anything is connected to


URL_PIECES = (
    "http:// https:// // / : @ # ? \\ [ ] % . .. 127.0.0.1 localhost 0x7f ::1 example.com 80 8080 "
    "%2e %00 @127.0.0.1 xn-- a 1 - _ \u3002 \uff11 \u2460 \ud800 \0"
)


@given(
    url=st.lists(
        st.sampled_from([*URL_PIECES.split(" "), " ", "\t", "\n"]) | st.text(max_size=3), max_size=9
    ).map("".join)
)
@example(url="http://example.com:80#@127.0.0.1:8080")
@example(url="https://example.com\\@127.0.0.1")
async def test_any_url_is_refused_or_resolves_only_its_visible_host(url: str) -> None:
    """Gatepost connects only to the host that a plain reading of the URL names."""
    names = EmptyResolver()
    client = OutboundClient(Network(), tls=Fetcher(development=True).tls, resolver=names)
    where = url if url.startswith("http") else f"http://{url}"
    with pytest.raises(ToolFailure) as refused:
        await client.of("acme").send("GET", where, timeout_s=2)
    await client.aclose()

    assert refused.value.failure.kind in {"denied", "validation", "upstream_unavailable"}
    for host in names.asked:
        assert host == (urlsplit(where.partition("#")[0]).hostname or "")
        assert literal(host) is None


@given(st.ip_addresses())
def test_no_private_or_reserved_address_counts_as_public(address: object) -> None:
    """Private, reserved and link-local addresses of the standard library are never public."""
    parsed = ip_address(str(address))
    if parsed.is_private or parsed.is_loopback or parsed.is_link_local or parsed.is_multicast:
        assert not is_public(parsed)
