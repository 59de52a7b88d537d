"""Check which addresses and URLs the server may connect to."""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from urllib.parse import SplitResult, urlsplit

IpAddress = IPv4Address | IPv6Address
Networks = Sequence[IPv4Network | IPv6Network]

# Written out, because what `ipaddress` calls global has changed between Python patch releases.
# Source: the IANA special-purpose address registries (RFC 6890 and its updates).
NOT_PUBLIC_V4 = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network, unspecified
        "10.0.0.0/8",
        "100.64.0.0/10",  # shared by carriers (RFC 6598); clouds put metadata services here
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's platform, in every virtual machine there
        "169.254.0.0/16",  # link-local, with the metadata service of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
    )
)
# Only 2000::/3 is handed out. What it does not cover is refused with it: loopback, link-local,
# unique local, multicast, and every form that carries an IPv4 address past the table above
# (mapped ::ffff:0:0/96, compatible ::/96, NAT64 64:ff9b::/96 and 64:ff9b:1::/48).
PUBLIC_V6 = IPv6Network("2000::/3")
NOT_PUBLIC_V6 = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments: Teredo (an IPv4 address inside), ORCHID, benchmarks
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: an IPv4 address inside
        "3fff::/20",  # documentation
    )
)

# Since Python 3.13, `is_loopback` is true of IPv4 addresses in an IPv6 one as well.
LOOPBACK: Sequence[IPv4Network | IPv6Network] = (
    IPv4Network("127.0.0.0/8"),
    IPv6Network("::1/128"),
)

# Addresses of an organisation's own hosts. Metadata services give credentials to every client, so
# only their literal address in the settings leads to them.
INSIDE: Sequence[IPv4Network | IPv6Network] = tuple(
    ip_network(network)
    for network in (
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "::1/128",
        "fc00::/7",
    )
)
METADATA = frozenset(
    ip_address(address) for address in ("100.100.100.200", "fd00:ec2::254", "fd20:ce::254")
)

# Services that read lines of text could be made to obey an HTTP request. These are the ports from
# 1024 up that the WHATWG Fetch standard blocks ("bad port") for that reason.
BAD_PORTS = frozenset(
    {1719, 1720, 1723, 2049, 3659, 4045, 4190, 5060, 5061, 6000, 6566}
    | {6665, 6666, 6667, 6668, 6669, 6679, 6697, 10080}
)
USUAL_PORTS = {"https": 443, "http": 80}
HOST_NAME = re.compile(
    r"(?=.{1,253}\Z)(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*"
    r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?",
    re.ASCII | re.IGNORECASE,
)
NUMBER = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)", re.ASCII | re.IGNORECASE)
PRINTABLE = re.compile(r"[\x21-\x7e]+", re.ASCII)


def is_public(address: IpAddress) -> bool:
    """Return whether *address* is a public internet address."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in NOT_PUBLIC_V4)
    return address in PUBLIC_V6 and not any(address in network for network in NOT_PUBLIC_V6)


def is_reachable(address: IpAddress, allow_private: Networks, *, development: bool) -> bool:
    """
    Return whether this server may connect to *address*.

    *allow_private* opens further networks; development opens loopback.
    """
    if is_public(address) or (development and _is_loopback(address)):
        return True
    return any(address.version == net.version and address in net for net in allow_private)


def _is_loopback(address: IpAddress) -> bool:
    return any(address.version == net.version and address in net for net in LOOPBACK)


def is_inside(address: IpAddress) -> bool:
    """Return whether *address* may be that of an organisation's own host."""
    return address not in METADATA and any(
        address.version == network.version and address in network for network in INSIDE
    )


def networks_of(texts: Iterable[str]) -> Networks:
    """Parse networks in CIDR notation; raise ValueError for a malformed one."""
    return tuple(ip_network(text) for text in texts)


@lru_cache(maxsize=512)
def literal(host: str) -> IpAddress | None:
    """Return the address that *host* contains literally, or None for a name."""
    try:
        # The text after a percent sign is a zone: an interface of this machine, which no URL needs.
        return None if "%" in host else ip_address(host.strip("[]"))
    except ValueError:
        return None


def is_loopback_host(host: str) -> bool:
    """
    Return whether *host* means this machine: ``localhost`` (RFC 6761 section 6.3) or its address.
    """
    address = literal(host)
    if address is not None:
        return _is_loopback(address)
    return host.lower() == "localhost" or host.lower().endswith(".localhost")


def url_problem(url: str, development: bool) -> str | None:
    """
    Return why *url* cannot be fetched, as a sentence for the operator, or None.

    Only the text is checked; the resolved address is checked at every connection.
    """
    try:
        parts = parted(url)
    except ValueError as error:
        return str(error)
    if parts.scheme != "https":
        if parts.scheme != "http":
            return "it must be an https URL"
        if not (development and is_loopback_host(parts.hostname or "")):
            return "http is allowed in development and for this machine only"
    return authority_problem(parts) or port_problem(parts)


def parted(url: str) -> SplitResult:
    """Split *url*; raise ValueError with a sentence if its port is invalid."""
    if not PRINTABLE.fullmatch(url) or "\\" in url:
        # Such characters make a host that only looks like another one. A name outside ASCII can be
        # written in its xn-- form.
        raise ValueError("it holds a character outside printable ASCII, a space or a backslash")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ValueError("it is not a URL") from None
    return parts


def authority_problem(parts: SplitResult) -> str | None:
    """Return why the authority of the URL does not name a host plainly, or None."""
    host = parts.hostname or ""
    if "@" in parts.netloc:
        return "it must not hold a user name or password"
    if parts.fragment:
        return "it must not have a fragment"
    if literal(host) is None:
        if not HOST_NAME.fullmatch(host.removesuffix(".")):
            return "its host is not a name or an address"
        if NUMBER.fullmatch(host.removesuffix(".").rpartition(".")[2]):
            # 127.1, 2130706433 and 0x7f.1 all mean 127.0.0.1 to a resolver.
            return "its host is a number that is not written as an address"
    return None


def port_problem(parts: SplitResult) -> str | None:
    """Return why the port is not allowed for HTTP, or None."""
    port = parts.port
    usual = USUAL_PORTS[parts.scheme]
    if port is not None and port != usual and (port < 1024 or port in BAD_PORTS):
        return f"port {port} belongs to another service"
    return None


def origin_of(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port (RFC 6454), equal for all spellings of an origin."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or USUAL_PORTS.get(parts.scheme, 0)


def network_of_peer(peer: str) -> str:
    """Return the network that counts as one peer: an IPv4 address or an IPv6 /64."""
    if ":" not in peer:
        return peer
    try:
        address = IPv6Address(peer)
    except ValueError:
        return peer
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(IPv6Network((int(address) >> 64 << 64, 64)))
