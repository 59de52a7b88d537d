"""Parse the address of `/metrics` in the configuration."""

import re
from ipaddress import ip_address

import msgspec

ADDRESS = re.compile(
    r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<host>[A-Za-z0-9.-]+)):(?P<port>[0-9]{1,5})"
)


class Address(msgspec.Struct, frozen=True):
    """A host and a port."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Return whether the address is reachable only from this machine."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    def covers(self, host: str, port: int) -> bool:
        """Return whether a listener at *host* and *port* conflicts with this address."""
        everywhere = {"0.0.0.0", "::"}
        shares_host = self.host == host or everywhere & {self.host, host}
        return self.port == port != 0 and (
            bool(shares_host) or (self.is_loopback and _is_local(host))
        )


def _is_local(host: str) -> bool:
    return Address(host, 0).is_loopback


def read_address(text: str) -> Address:
    """Parse `HOST:PORT`, with an IPv6 address in brackets; raise ValueError."""
    written = ADDRESS.fullmatch(text)
    if written is None or int(written["port"]) > 65535:
        raise ValueError(text)
    return Address(written["v6"] or written["host"], int(written["port"]))
