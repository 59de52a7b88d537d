"""Where a secret may be sent: to the hosts that its operator bound it to."""

from collections.abc import Iterable

import msgspec

from gatepost.secrets.grammar import SecretRefused
from gatepost_authz.addresses import USUAL_PORTS, parted
from gatepost_authz.reach import ToolReach, allowed_host, spelt

MOST_HOSTS = 20


class Held(msgspec.Struct, frozen=True):
    """What is sealed: the value, and where it may go, so that nobody changes one of them."""

    value: str
    hosts: tuple[str, ...] = ()
    """As `checked_hosts` makes them; bound to none it goes where no caller chose the host."""


def checked_hosts(entries: Iterable[str]) -> tuple[str, ...]:
    """
    The hosts of `host` (https) and `host:port`, each in its one spelling; raises SecretRefused.

    Patterns are none of them: below most shared domains anybody gets a name.
    """
    found = []
    for entry in entries:
        try:
            found.append(place(*allowed_host(entry)))
        except ValueError as problem:
            # Not repeated: who mistakes the order of things has written the value here.
            raise SecretRefused(
                f"a host cannot be bound to: {problem}; write each by its own name, "
                "gitlab.example.com or gitlab.example.com:8443"
            ) from None
    if len(set(found)) > MOST_HOSTS:
        raise SecretRefused(f"a secret is bound to at most {MOST_HOSTS} hosts")
    return tuple(dict.fromkeys(found))


def destination(url: str, reach: ToolReach) -> str:
    """
    The host that a request to *url* goes to, in the spelling of `checked_hosts`.

    ValueError: why no secret is sent there, as a sentence about "it".
    """
    # Judged by the same text and rules as the request itself: what reads as another host to
    # somebody (users, backslashes, other scripts) has been refused before it is compared.
    if problem := reach.problem(url):
        raise ValueError(problem)
    parts = parted(url)
    host, port = parts.hostname or "", parts.port or USUAL_PORTS[parts.scheme]
    if parts.scheme != "https" and not reach.allows_http(host, port):
        raise ValueError("it is unencrypted: use https")
    return place(spelt(host), port)


def place(host: str, port: int) -> str:
    """Host and port as one text; the port of https is left out."""
    named = f"[{host}]" if ":" in host else host
    return named if port == USUAL_PORTS["https"] else f"{named}:{port}"
