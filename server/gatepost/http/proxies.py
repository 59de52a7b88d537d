"""Read the address and scheme of the real client behind a trusted proxy."""

from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address

from gatepost.http.edge_request import EdgeRequest

ProxyNetworks = tuple[IPv4Network | IPv6Network, ...]

# A longer chain of forwarders is an attack on the server that reads it.
MAX_FORWARDERS = 32
MAX_REMEMBERED = 4096


class TrustedProxies:
    """
    Reads the forwarded headers of the configured proxies.

    They count only when the connection comes from such a proxy. Other clients could claim TLS for a
    token sent in the clear, or another caller's address for their own failures. What a proxy said
    is written into the scope (`client`, `scheme`) for everything behind.
    """

    def __init__(self, networks: ProxyNetworks) -> None:
        self._networks = networks
        self._verdicts: dict[str, bool] = {}

    def resolve(self, request: EdgeRequest) -> None:
        """Set the scheme and the peer of a request that a trusted proxy forwarded."""
        scope = request.scope
        if not scope["client"] or not self._trusts(scope["client"][0]):
            return
        schemes = _listing(request.values(b"x-forwarded-proto"))
        # A chain of proxies is private only if each of its links is.
        if schemes:
            scope["scheme"] = "https" if all(scheme == "https" for scheme in schemes) else "http"
        peer: str = scope["client"][0]
        # From the right: our own proxy wrote the last entry, but any client can write the first.
        for entry in reversed(_listing(request.values(b"x-forwarded-for"))[-MAX_FORWARDERS:]):
            address = _address(entry)
            if address is None:
                break
            peer = address
            if not self._trusts(peer):
                break
        scope["client"], request.peer = (peer, 0), peer

    def _trusts(self, peer: str) -> bool:
        is_trusted = self._verdicts.get(peer)
        if is_trusted is None:
            if len(self._verdicts) >= MAX_REMEMBERED:
                self._verdicts.clear()
            is_trusted = self._verdicts[peer] = self._is_listed(peer)
        return is_trusted

    def _is_listed(self, peer: str) -> bool:
        try:
            address = ip_address(peer)
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)


def _listing(values: list[bytes]) -> list[str]:
    joined = b",".join(values).decode("latin-1").lower()
    return [entry.strip() for entry in joined.split(",") if entry.strip()]


def _address(entry: str) -> str | None:
    """Parse an entry of X-Forwarded-For: an address, perhaps with brackets or a port."""
    if entry.startswith("["):
        entry = entry[1:].partition("]")[0]
    elif entry.count(":") == 1:
        entry = entry.partition(":")[0]
    if "%" in entry:
        return None  # a zone means nothing on another machine, and may be any text
    try:
        return str(ip_address(entry))
    except ValueError:
        return None
