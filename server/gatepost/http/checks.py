"""
Check a request's head before it is routed and before its body is read.

`proxies` has the rules about forwarded headers, `cors` those about preflights and page origins.
"""

import sys
from ipaddress import ip_network
from itertools import chain

import msgspec

from gatepost.http.cors import Cors, Origins
from gatepost.http.edge_request import (
    ORIGIN,
    Allow,
    EdgeRefusal,
    EdgeRequest,
    Preflight,
    is_public_document,
    only_post,
)
from gatepost.http.proxies import TrustedProxies
from gatepost.http.scope import HEAD_AT_MOST
from gatepost_authz.headers import ImpersonationFilter

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
MAX_HEADERS = 100
TENANT_HEADER = b"x-octopus-tenant-id"
CLOSING = ((b"connection", b"close"),)
"""
Sent with a refusal of a request whose end is in doubt. The following bytes on the connection may be
its body or another request, so nothing more is read (RFC 9112 section 6.3).
"""

DEFAULT_PORTS = {"http": "80", "https": "443"}
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")


class HeadRules(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the checks."""

    origin: str
    """The server's own origin, `https://host[:port]`."""
    development: bool
    """Whether plain HTTP, loopback names and pages of this machine are accepted."""
    max_header_bytes: int
    max_body_bytes: int
    allowed_origins: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    """Networks whose forwarded headers count."""
    own_origin_rules: tuple[str, ...] = ()
    """Paths below which the application itself decides about origins."""


class HeadChecks:
    """
    Decides about a request by its head and its connection alone.

    The checks run in this order:

    1. CORS: answers preflights; a refusal by a later check has the CORS headers, too
    2. transport: the peer behind a trusted proxy; no plain HTTP in production
    3. identity: removes headers by which a caller could claim an identity
    4. size: the method, the header and the declared body size
    5. origin: the Host and Origin allow-lists

    *allow* returns the methods of a path.
    """

    def __init__(self, rules: HeadRules, *, allow: Allow = only_post) -> None:
        self._rules = rules
        self._allow = allow
        origins = Origins(rules.allowed_origins, development=rules.development)
        self._cors = Cors(origins, allow=allow, own_rules=rules.own_origin_rules)
        networks = tuple(ip_network(network) for network in rules.trusted_proxies)
        self._proxies = TrustedProxies(networks) if networks else None
        self._impersonates = ImpersonationFilter(harmless=[TENANT_HEADER])
        self._hosts = authorities(rules.origin, development=rules.development)
        scheme = rules.origin.partition("://")[0].encode("ascii")
        self._same_origins = frozenset(scheme + b"://" + host for host in self._hosts)
        self._origins = origins
        # A length with fewer digits than the limit cannot be above it.
        self._usual_digits = len(str(rules.max_body_bytes)) - 1

    def __call__(self, request: EdgeRequest) -> Preflight | None:
        """Return the answer of a preflight, or None; raise EdgeRefusal."""
        headers = request.headers
        if ORIGIN in headers or request.method == "OPTIONS":
            preflight = self._cors(request)
            if preflight is not None:
                return preflight
        if self._proxies is not None:
            self._proxies.resolve(request)
        if not self._rules.development and request.scope["scheme"] != "https":
            raise EdgeRefusal(
                400,
                "https_required",
                "This server takes requests over HTTPS only. A proxy that terminates TLS must send "
                '"X-Forwarded-Proto: https" from an address in listen.trusted_proxies.',
            )
        if not self._impersonates.harmless.issuperset(headers):
            self._remove_identity(request)
        length = headers.get(b"content-length")
        if (
            request.repeated
            or length is None
            or len(length) > self._usual_digits
            or not length.isdigit()
            or request.method != "POST"
            or len(headers) > MAX_HEADERS
            or request.scope.get(HEAD_AT_MOST, sys.maxsize) > self._rules.max_header_bytes
            or b"transfer-encoding" in headers
        ):
            self._check_size(request)
        if request.repeated or headers.get(b"host") not in self._hosts:
            self._check_host(request)
        if ORIGIN in headers:
            self._check_origin(request)
        return None

    def _remove_identity(self, request: EdgeRequest) -> None:
        """
        Remove identity-looking headers before anything routes or logs.

        The tenant comes from the token only. A header that later code, or an upstream that gets our
        headers, might believe is removed. `X-Octopus-Tenant-Id` stays, because it is compared with
        the token, and so does `X-Octopus-Correlation-Id`, which identifies no caller.
        """
        removed = {name for name in request.headers if self._impersonates(name)}
        if removed:
            scope = request.scope
            scope["headers"] = [field for field in scope["headers"] if field[0] not in removed]
            for name in removed:
                del request.headers[name]

    def _check_size(self, request: EdgeRequest) -> None:
        """
        Check the method, the header and the declared body size.

        A body without a declared size is counted as it is read. The Authorization header does not
        count here: the gate bounds it itself and answers 400 with a challenge, which a client
        understands better than 431.
        """
        scope, headers = request.scope, request.headers
        if request.method not in METHODS:
            # TRACE would echo the token to a page's script; CONNECT would make us a proxy.
            allow = ((b"allow", self._allow(request.path)),)
            message = "The method is not one this server takes"
            raise EdgeRefusal(405, "method_not_allowed", message, allow)
        if len(scope["headers"]) > MAX_HEADERS:
            raise EdgeRefusal(431, "too_many_headers", "The request has too many header fields")
        # Nearly every request arrives in one packet smaller than the limit.
        if scope.get(HEAD_AT_MOST, sys.maxsize) > self._rules.max_header_bytes:
            self._check_header_bytes(request)
        length = headers.get(b"content-length")
        if request.repeated or length is None or b"transfer-encoding" in headers:
            check_framing(request)
        if length is None:
            return
        if not length.isdigit() or len(length) > 18:
            raise EdgeRefusal(400, "bad_length", "Content-Length is not a number", CLOSING)
        if int(length) > self._rules.max_body_bytes:
            raise EdgeRefusal(413, "body_too_large", "The request's body is too large")

    def _check_header_bytes(self, request: EdgeRequest) -> None:
        max_bytes = self._rules.max_header_bytes
        size = sum(map(len, chain.from_iterable(request.scope["headers"])))
        if size > max_bytes and size - sum(map(len, request.values(b"authorization"))) > max_bytes:
            raise EdgeRefusal(431, "headers_too_large", "The request's header fields are too large")

    def _check_host(self, request: EdgeRequest) -> None:
        """Refuse a Host that is not ours: a page must not reach this server by renaming it."""
        host = request.headers.get(b"host")
        # If there are two Host fields, a proxy may have routed by the other one.
        if host is None or len(request.values(b"host")) > 1:
            raise EdgeRefusal(400, "bad_host", "A request needs exactly one Host header")
        if host.lower() not in self._hosts:
            raise EdgeRefusal(421, "foreign_host", "This server does not answer for that host")

    def _check_origin(self, request: EdgeRequest) -> None:
        """
        Refuse a page whose Origin is not allowed.

        No Origin at all is a client that is no browser. A page of our own host is same-origin; an
        opaque origin (`null`) is never allowed.
        """
        if is_public_document(request.path, self._rules.own_origin_rules):
            return
        origin = request.headers[ORIGIN]
        repeated = len(request.values(ORIGIN)) > 1
        if repeated or (origin not in self._same_origins and origin not in self._origins):
            raise EdgeRefusal(
                403, "forbidden_origin", "Pages of that origin may not call this server"
            )


def check_framing(request: EdgeRequest) -> None:
    """Refuse a request whose body could be read in two ways (RFC 9112 section 6)."""
    headers = request.headers
    coding = headers.get(b"transfer-encoding")
    if b"content-length" in headers:
        if coding is not None or len(request.values(b"content-length")) > 1:
            # The body has two sizes: a proxy in front of us may have used the other one.
            message = "The request declares its length twice"
            raise EdgeRefusal(400, "ambiguous_length", message, CLOSING)
    elif coding is not None and coding.strip(b" \t").lower() != b"chunked":
        # Read without decompression, it would be another body (RFC 9112, 6.1).
        raise EdgeRefusal(
            501, "unknown_coding", "Of transfer codings only chunked is read", CLOSING
        )


def authorities(origin: str, *, development: bool) -> frozenset[bytes]:
    """
    Return the Host values that name the server at *origin* (`https://host[:port]`).

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
