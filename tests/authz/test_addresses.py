"""Which addresses are allowed, and which URLs are refused before they are resolved."""

from ipaddress import ip_address

import pytest

from gatepost_authz.addresses import is_public, is_reachable, networks_of, url_problem
from tests.support.measuring import each

NOT_PUBLIC = [
    "0.0.0.0",
    "10.1.2.3",
    "100.64.0.1",
    "100.127.255.254",
    "127.0.0.1",
    "127.8.8.8",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.8",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.7",
    "203.0.113.9",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::8.8.8.8",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:8.8.8.8",
    "64:ff9b::a00:1",
    "64:ff9b::808:808",
    "64:ff9b:1::a00:1",
    "100::1",
    "2001::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:2::1",
    "2001:db8::1",
    "2002:a00:1::",
    "2002:808:808::1",
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd12:3456::1",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
]


@pytest.mark.requirement("N07")
@each("text", NOT_PUBLIC)
def test_an_address_that_is_not_on_the_internet_is_not_public(text: str) -> None:
    """An address that contains such an address in any notation is not public either."""
    assert not is_public(ip_address(text))
    assert not is_reachable(ip_address(text), (), development=False)


@pytest.mark.parametrize(
    "text", ["8.8.8.8", "1.1.1.1", "100.128.0.1", "172.32.0.1", "2606:4700::1111", "2a00:1450::1"]
)
def test_an_address_on_the_internet_is_public(text: str) -> None:
    """The exceptions do not include ordinary public addresses."""
    assert is_public(ip_address(text))


def test_allowed_networks_permit_only_their_own_addresses() -> None:
    """An IPv4 network does not permit the IPv6 forms of its addresses."""
    allowed = networks_of(["10.0.0.0/8", "fd00:1::/32"])

    assert is_reachable(ip_address("10.1.2.3"), allowed, development=False)
    assert is_reachable(ip_address("fd00:1::5"), allowed, development=False)
    for other in ("192.168.0.1", "127.0.0.1", "fd00:2::5", "::ffff:10.1.2.3", "2002:a01:203::"):
        assert not is_reachable(ip_address(other), allowed, development=False)


def test_development_permits_loopback_addresses_only() -> None:
    """A laptop's network has other hosts too."""
    assert is_reachable(ip_address("127.0.0.1"), (), development=True)
    assert is_reachable(ip_address("::1"), (), development=True)
    for other in ("192.168.0.1", "169.254.169.254", "::ffff:127.0.0.1", "0.0.0.0"):
        assert not is_reachable(ip_address(other), (), development=True)


REFUSED_URLS = [
    "",
    "id.example.com",
    "file:///etc/passwd",
    "data:application/json,{}",
    "ftp://id.example.com/keys",
    "gopher://id.example.com/",
    "http://id.example.com/",
    "http://127.0.0.1/",
    "https://",
    "https:///keys",
    "https://user@id.example.com/",
    "https://user:secret@id.example.com/",
    "https://id.example.com@evil.example/",
    "https://id.example.com/#keys",
    "https://id.example.com:22/",
    "https://id.example.com:25/",
    "https://id.example.com:6379x/",
    "https://id.example.com:6000/",
    "https://id.example.com:0/",
    "https://id.example.com:65536/",
    "https://id.exаmple.com/",  # noqa: RUF001 - a Cyrillic letter
    "https://id。example.com/",
    "https://ⓔxample.com/",
    "https://id.example.com/\r\nHost: evil",
    "https://id.example.com /",
    "https://id.example.com\\@evil.example/",
    "https://%69d.example.com/",
    "https://127.1/",
    "https://2130706433/",
    "https://0x7f.1/",
    "https://0177.0.0.1/",
    "https://id..example.com/",
    "https://-id.example.com/",
    "https://[::1/",
]


@pytest.mark.requirement("N09")
@each("url", REFUSED_URLS)
def test_an_ambiguous_url_is_refused(url: str) -> None:
    """The refusal has a sentence for the operator and comes before any DNS query."""
    assert url_problem(url, development=False)


@pytest.mark.parametrize(
    "url",
    [
        "https://id.example.com",
        "https://id.example.com./keys?set=1",
        "https://id.example.com:443/",
        "https://id.example.com:8443/realms/acme",
        "https://xn--exmple-cua.com/",
        "https://10.1.2.3/",
        "https://[fd00::1]:8443/keys",
    ],
)
def test_an_ordinary_https_url_has_no_problem(url: str) -> None:
    """The addresses of its host are checked for every connection instead."""
    assert url_problem(url, development=False) is None


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("http://127.0.0.1:8000/dev-as", True),
        ("http://localhost:8000/", True),
        ("http://[::1]:8000/", True),
        ("http://localhost/", True),
        ("http://localhost:22/", False),
        ("http://192.168.1.5:8000/", False),
        ("http://localhost.example.com/", False),
        ("http://id.example.com/", False),
    ],
)
def test_plain_http_is_accepted_for_loopback_in_development_only(url: str, allowed: bool) -> None:
    """Anywhere else an attacker on the path could read and change what is sent."""
    assert (url_problem(url, development=True) is None) is allowed
    assert url_problem(url, development=False)
