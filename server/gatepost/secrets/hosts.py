"""Bind secrets to hosts."""

from collections.abc import Iterable

import msgspec

from gatepost.secrets.names import SecretRefused
from gatepost_authz.address_policy import ToolAddressPolicy, allowed_host, spelt
from gatepost_authz.addresses import USUAL_PORTS, parted

MAX_HOSTS = 20


class BoundSecret(msgspec.Struct, frozen=True):
    """The encrypted content of a secret: the value and its hosts."""

    value: str
    hosts: tuple[str, ...] = ()
    """
    The hosts as `checked_hosts` returns them; without hosts, a caller must not choose the host.
    """
    username: bool = False
    """Whether it is a user name, which may be short and appear in responses."""


def checked_hosts(entries: Iterable[str]) -> tuple[str, ...]:
    """
    Return `host` (https) and `host:port` in canonical form; raise SecretRefused.

    Patterns are not allowed, because every customer can get a name below most shared domains.
    """
    hosts = []
    for entry in entries:
        try:
            hosts.append(host_and_port(*allowed_host(entry)))
        except ValueError as problem:
            # Not repeated: an operator who confuses the order of the arguments has written the
            # value here.
            raise SecretRefused(
                f"a host cannot be bound to: {problem}; write each by its own name, "
                "gitlab.example.com or gitlab.example.com:8443"
            ) from None
    if len(set(hosts)) > MAX_HOSTS:
        raise SecretRefused(f"a secret is bound to at most {MAX_HOSTS} hosts")
    return tuple(dict.fromkeys(hosts))


def destination(url: str, address_policy: ToolAddressPolicy) -> str:
    """
    Return the host of *url* in the form of `checked_hosts`.

    ValueError: why no secret is sent there, as a sentence about "it".
    """
    # Judged by the same text and rules as the request itself: ambiguous hosts
    # (users, backslashes, other scripts) are refused before the comparison.
    if problem := address_policy.problem(url):
        raise ValueError(problem)
    parts = parted(url)
    host, port = parts.hostname or "", parts.port or USUAL_PORTS[parts.scheme]
    if parts.scheme != "https" and not address_policy.allows_http(host, port):
        raise ValueError("it is unencrypted: use https")
    return host_and_port(spelt(host), port)


def host_and_port(host: str, port: int) -> str:
    """Return host and port as one string, without the port of https."""
    uri_host = f"[{host}]" if ":" in host else host
    return uri_host if port == USUAL_PORTS["https"] else f"{uri_host}:{port}"
