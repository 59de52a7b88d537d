"""Host and Origin allow-lists: a page must not reach this server by renaming it (DNS rebinding)."""

from gatepost.edge.cors import Origins
from gatepost.edge.request import Refusal, Request
from gatepost_authz.config import WELL_KNOWN

DEFAULT_PORTS = {"http": "80", "https": "443"}
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")


def authorities(origin: str, *, development: bool) -> frozenset[bytes]:
    """
    The Host values that name the server at *origin* (`https://host[:port]`).

    With and without the scheme's default port; in development under each loopback name.
    """
    scheme, _, authority = origin.partition("://")
    host, colon, port = authority.lower().rpartition(":")
    if not colon or port.endswith("]"):
        host, port = authority.lower(), DEFAULT_PORTS[scheme]
    hosts = {host, *LOOPBACK_HOSTS} if development else {host}
    names = {f"{name}:{port}" for name in hosts}
    if port == DEFAULT_PORTS[scheme]:
        names |= hosts
    return frozenset(name.encode("ascii") for name in names)


class Origin:
    """
    Refuses a Host that is not ours and a page's Origin that nobody allowed.

    No Origin at all is a client that is no browser. A page of our own host is same-origin; an
    opaque origin (`null`) is allowed to nobody. Paths below *untouched* judge origins themselves.
    """

    def __init__(
        self,
        own_origin: str,
        origins: Origins,
        *,
        development: bool,
        untouched: tuple[str, ...] = (),
    ) -> None:
        self._untouched = ("/.well-known/", *untouched)
        self._hosts = authorities(own_origin, development=development)
        scheme = own_origin.partition("://")[0].encode("ascii")
        self._own = frozenset(scheme + b"://" + host for host in self._hosts)
        self._origins = origins

    def __call__(self, request: Request) -> None:
        host = request.headers.get(b"host")
        # Two Host fields: whoever stands in front may have routed by the other one.
        if host is None or (request.repeated and len(request.values(b"host")) > 1):
            raise Refusal(400, "bad_host", "A request needs exactly one Host header")
        if host not in self._hosts and host.lower() not in self._hosts:
            raise Refusal(421, "foreign_host", "This server does not answer for that host")
        origin = request.headers.get(b"origin")
        if origin is None:
            return
        if WELL_KNOWN in request.path or request.path.startswith(self._untouched):
            # The metadata documents are public to every page.
            return
        repeated = request.repeated and len(request.values(b"origin")) > 1
        if repeated or (origin not in self._own and origin not in self._origins):
            raise Refusal(403, "forbidden_origin", "Pages of that origin may not call this server")
