"""Find issuer settings that accept too much for production."""

from collections.abc import Iterable, Iterator, Sequence
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    collapse_addresses,
    ip_address,
    ip_network,
)
from typing import TypeAlias, TypeVar
from urllib.parse import urlsplit

from gatepost_authz.config import Issuer, Problem
from gatepost_authz.findings import finding

IpNetwork: TypeAlias = IPv4Network | IPv6Network
AnyNetwork = TypeVar("AnyNetwork", IPv4Network, IPv6Network)

DAY_S = 86_400
LONG_S = 7 * DAY_S
LONGEST_S = 366 * DAY_S

MAX_PUBLIC = {4: 1 << 24, 6: 1 << 112}
"""The number of public addresses that one list may cover: a /8, and a /16 of IPv6."""
PRIVATE_V4 = tuple(
    IPv4Network(text)
    for text in ("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
)
PRIVATE_V6 = tuple(IPv6Network(text) for text in ("::1/128", "fc00::/7", "fe80::/10"))
MAPPED = IPv6Network("::ffff:0:0/96")
EMBEDDING = (MAPPED, IPv6Network("64:ff9b::/96"))
"""Networks whose addresses contain an IPv4 address in their last 32 bits."""
LINK_LOCAL = (IPv4Network("169.254.0.0/16"), IPv6Network("fe80::/10"))
METADATA = frozenset(
    ip_address(text)
    for text in (
        "100.100.100.200",  # Alibaba
        "168.63.129.16",  # Azure's platform
        "192.0.0.192",  # Oracle
        "fd00:ec2::23",  # AWS, pods
        "fd00:ec2::254",  # AWS
        "fd20:ce::254",  # Google
    )
)
"""Services that return a machine's credentials, in addition to all link-local addresses."""
METADATA_NETWORKS = (*(ip_network(address) for address in METADATA), IPv6Network("fd00:ec2::/32"))
METADATA_NAMES = frozenset(
    {
        "instance-data",
        "instance-data.ec2.internal",
        "metadata",
        "metadata.azure.internal",
        "metadata.goog",
        "metadata.google.internal",
        "metadata.tencentyun.com",
    }
)

SHARED_AUDIENCES = frozenset(
    {
        "account",  # Keycloak puts it into the tokens of every client
        "00000002-0000-0000-c000-000000000000",
        "00000003-0000-0000-c000-000000000000",
        "https://graph.microsoft.com",
        "https://graph.windows.net",
        "https://management.azure.com",
    }
)
OPEN_ISSUERS = frozenset(
    {
        "accounts.google.com",
        "appleid.apple.com",
        "github.com",
        "gitlab.com",
        "token.actions.githubusercontent.com",
        "www.facebook.com",
    }
)
"""Hosts of issuers at which any person can get an account."""
PERSONAL = "9188040d-6c67-4c5b-b112-36a304b66dad"
"""The Entra tenant of all personal Microsoft accounts."""

HINTS = {
    "authz.E030": "name only the issuer's networks, for example 10.20.0.0/16",
    "authz.E031": "name the network of the issuer's host",
    "authz.E032": "set the longest lifetime of its access tokens; most providers use an hour",
    "authz.E033": "audiences are compared byte for byte; write each in full",
    "authz.W008": "a stolen token stays valid as long; shorten the lifetime at the issuer",
    "authz.W009": "name an audience that only tokens for this server have",
    "authz.W010": "let only your organisation sign in there, or map by a claim with a table",
    "authz.W011": "name each organisation in the issuer's `tenants` table or in `tenancy.tenants`",
}


def problems(issuers: Sequence[Issuer], *, create_on_first_use: bool) -> Iterator[Problem]:
    """Yield the settings that accept too much; malformed values are checked elsewhere."""
    for index, issuer in enumerate(issuers):
        where = f"issuers[{index}]"
        yield from _private(where, issuer)
        yield from _lifetime(where, issuer)
        yield from _audiences(where, issuer)
        yield from _tenants(where, issuer, create_on_first_use)


def too_wide(texts: Iterable[str]) -> bool:
    """
    Return whether the networks cover more of the internet than one organisation has.

    They are judged together, because two halves of the internet are all of it. Malformed networks
    are ignored.
    """
    networks = [_unmapped(network) for network in _networks(texts)]
    v4 = [network for network in networks if isinstance(network, IPv4Network)]
    v6 = [network for network in networks if isinstance(network, IPv6Network)]
    return _public(v4, PRIVATE_V4) > MAX_PUBLIC[4] or _public(v6, PRIVATE_V6) > MAX_PUBLIC[6]


def is_metadata(address: IPv4Address | IPv6Address) -> bool:
    """Return whether *address* is a metadata service or link-local."""
    address = _carried(address)
    return address in METADATA or any(
        address.version == network.version and address in network for network in LINK_LOCAL
    )


def _public(networks: Iterable[AnyNetwork], private: Sequence[AnyNetwork]) -> int:
    """Return the number of addresses outside *private* that the networks cover."""
    outside = (
        network
        for network in collapse_addresses(networks)
        if not any(network.subnet_of(private_network) for private_network in private)
    )
    return sum(network.num_addresses for network in outside)


def _networks(texts: Iterable[str]) -> Iterator[IpNetwork]:
    for text in texts:
        try:
            yield ip_network(text)
        except ValueError:
            continue


def _unmapped(network: IpNetwork) -> IpNetwork:
    """Return the IPv4 network that a network of mapped addresses stands for."""
    if isinstance(network, IPv6Network) and network.subnet_of(MAPPED):
        low = int(network.network_address) & 0xFFFFFFFF
        return IPv4Network((low, network.prefixlen - 96))
    return network


def _carried(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address inside an IPv6 address, or the address itself."""
    if isinstance(address, IPv6Address) and any(address in network for network in EMBEDDING):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _private(where: str, issuer: Issuer) -> Iterator[Problem]:
    setting = f"{where}.allow_private"
    if too_wide(issuer.allow_private):
        message = "the issuer's keys could be fetched from almost any address"
        yield finding(HINTS, "authz.E030", setting, message)
    for network in map(_unmapped, _networks(issuer.allow_private)):
        if any(_is_subnet(network, blocked) for blocked in (*LINK_LOCAL, *METADATA_NETWORKS)):
            message = f"{network} contains a cloud's metadata service, not an issuer"
            yield finding(HINTS, "authz.E031", setting, message)


def _is_subnet(network: IpNetwork, enclosing: IpNetwork) -> bool:
    if isinstance(network, IPv4Network):
        return isinstance(enclosing, IPv4Network) and network.subnet_of(enclosing)
    return isinstance(enclosing, IPv6Network) and network.subnet_of(enclosing)


def _lifetime(where: str, issuer: Issuer) -> Iterator[Problem]:
    setting, seconds = f"{where}.max_lifetime_s", issuer.max_lifetime_s
    if seconds > LONGEST_S:
        yield finding(HINTS, "authz.E032", setting, f"tokens may live for {seconds // DAY_S} days")
    elif seconds > LONG_S:
        yield finding(HINTS, "authz.W008", setting, f"tokens may live for {seconds // DAY_S} days")


def _audiences(where: str, issuer: Issuer) -> Iterator[Problem]:
    setting = f"{where}.audiences"
    for audience in issuer.audiences:
        if "*" in audience or (audience and not audience.strip(" /?.%")):
            yield finding(HINTS, "authz.E033", setting, f"{audience!r} is not a single audience")
        elif audience.rstrip("/") in SHARED_AUDIENCES:
            message = f"tokens for other services have the audience {audience!r} too"
            yield finding(HINTS, "authz.W009", setting, message)


def _tenants(where: str, issuer: Issuer, create_on_first_use: bool) -> Iterator[Problem]:
    rule = issuer.tenant
    if _is_open(issuer) and (rule.value or rule.issuer):
        message = (
            f"any person can get an account at {issuer.issuer}, and all accounts share one tenant"
        )
        yield finding(HINTS, "authz.W010", f"{where}.tenant", message)
    elif create_on_first_use and issuer.enabled and not (issuer.tenants or rule.value):
        message = "any organisation that this issuer names becomes a tenant at its first call"
        yield finding(HINTS, "authz.W011", f"{where}.tenants", message)


def _is_open(issuer: Issuer) -> bool:
    try:
        host = urlsplit(issuer.issuer).hostname or ""
    except ValueError:
        return False
    return issuer.preset == "google" or host in OPEN_ISSUERS or PERSONAL in issuer.issuer
