"""Decide which destinations are allowed: one rule for issuers, one for tools."""

from collections.abc import Iterable
from typing import Protocol

from gatepost_authz.addresses import (
    IpAddress,
    Networks,
    authority_problem,
    is_inside,
    is_public,
    is_reachable,
    literal,
    parted,
    port_problem,
    url_problem,
)

REMEMBERED_URLS = 1_000
"""The number of URLs without a problem that are remembered."""
KEPT_CHARACTERS = 500


class AddressPolicy(Protocol):
    """Checks a URL by its text, and every address before a connection."""

    proxy_resolves: bool
    """
    Whether a proxy may be asked for names. If not, it is asked for tunnels to addresses that were
    checked here, because the proxy may resolve a name differently a moment later.
    """

    def problem(self, url: str) -> str | None:
        """Return why requests to *url* are refused, as a sentence about "it", or None."""

    def reachable(self, host: str, port: int, address: IpAddress) -> bool:
        """Return whether *address*, which *host* means, may be connected to."""


class IssuerAddressPolicy:
    """The rule for issuers: https, public addresses and configured networks."""

    proxy_resolves = True

    def __init__(self, allow_private: Networks = (), *, development: bool = False) -> None:
        self._allow_private = allow_private
        self._development = development

    def problem(self, url: str) -> str | None:
        """Return why requests to *url* are refused, or None."""
        return url_problem(url, self._development)

    def reachable(self, host: str, port: int, address: IpAddress) -> bool:
        """Return whether the server may connect to *address*."""
        return is_reachable(address, self._allow_private, development=self._development)


class ToolAddressPolicy:
    """
    The rule for tools: public addresses, and the hosts of *allow_hosts*.

    An allowed name may lead to an organisation's own addresses. It never leads to link-local
    addresses or to a cloud's metadata service, unless that address is allowed as well. So an
    attacker who can change the name's address cannot reach the machine's credentials.
    """

    proxy_resolves = False

    def __init__(self, allow_hosts: Iterable[str] = ()) -> None:
        entries = tuple(allow_hosts)
        self._allowed = frozenset(allowed_host(entry) for entry in entries)
        self._checked: set[str] = set()
        """The URLs that may be fetched, because most calls go to the same few."""
        # A host without a port means https: nothing may be sent to it in the clear.
        self._with_port = frozenset(
            allowed_host(entry) for entry in entries if parted(f"//{entry}").port is not None
        )

    def allows(self, host: str, port: int) -> bool:
        """Return whether the configuration names this host and port."""
        return (spelt(host), port) in self._allowed

    def allows_http(self, host: str, port: int) -> bool:
        """
        Return whether the configuration names this host with its port, so that http may be spoken.
        """
        return (spelt(host), port) in self._with_port

    def problem(self, url: str) -> str | None:
        """Return why requests to *url* are refused, or None."""
        if url in self._checked:
            return None
        problem = self._problem(url)
        # A query may contain secrets, and it differs in every request.
        if problem is None and len(url) <= KEPT_CHARACTERS and "?" not in url:
            if len(self._checked) >= REMEMBERED_URLS:
                self._checked.clear()
            self._checked.add(url)
        return problem

    def _problem(self, url: str) -> str | None:
        try:
            parts = parted(url)
        except ValueError as error:
            return str(error)
        if parts.scheme not in {"http", "https"}:
            return "it must be an http or https URL"
        if problem := authority_problem(parts):
            return problem
        allows = self.allows if parts.scheme == "https" else self.allows_http
        if parts.port is not None and allows(parts.hostname or "", parts.port):
            return None
        return port_problem(parts)

    def reachable(self, host: str, port: int, address: IpAddress) -> bool:
        """Return whether the server may connect to *address*."""
        if is_public(address):
            return True
        if not self.allows(host, port):
            return False
        return (str(address), port) in self._allowed or is_inside(address)


def allowed_host(entry: str) -> tuple[str, int]:
    """
    Parse an entry of `allow_hosts`; without a port it means https.

    ValueError: why it names none, as a sentence.
    """
    if set(entry) & set("/?#*,"):
        raise ValueError("it is neither `host` nor `host:port`")
    parts = parted(f"https://{entry}")
    if problem := authority_problem(parts):
        raise ValueError(problem)
    if parts.port == 0 or parts.netloc.endswith(":"):
        raise ValueError("it has no usable port")
    return spelt(parts.hostname or ""), parts.port or 443


def spelt(host: str) -> str:
    """Return the canonical spelling of *host*."""
    address = literal(host)
    return str(address) if address is not None else host.lower().removesuffix(".")
