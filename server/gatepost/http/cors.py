"""CORS for the origins an operator allows; preflights are answered before any token is read."""

import re

from gatepost.http.edge_request import (
    ORIGIN,
    Allow,
    EdgeRefusal,
    EdgeRequest,
    Preflight,
    is_public_document,
)
from gatepost.http.scope import ANSWER_HEADERS

ALLOWED_METHODS = b"GET, POST, DELETE"
# Named one by one: "*" never covers Authorization (Fetch standard, CORS-preflight).
ALLOWED_HEADERS = (
    b"Authorization, DPoP, Content-Type, Accept, MCP-Protocol-Version, Mcp-Method, Mcp-Name, "
    b"Mcp-Session-Id, Last-Event-ID, Idempotency-Key, X-Octopus-Correlation-Id"
)
# Without these a browser client cannot see the challenge that tells it where to sign in.
EXPOSED_HEADERS = (
    b"WWW-Authenticate, DPoP-Nonce, Mcp-Session-Id, MCP-Protocol-Version, Retry-After, X-Request-Id"
)
PARAMETER_HEADER = re.compile(rb"mcp-param-[a-z0-9!#$%&'*+.^_`|~-]{1,64}", re.ASCII)
LOOPBACK_ORIGIN = re.compile(rb"http://(?:localhost|127\.0\.0\.1|\[::1\])(?::[0-9]{1,5})?")


class Origins:
    """
    The web pages that may call: exact matches only, so that neither a prefix nor `null` passes.

    In development, every page that this machine serves may call; a foreign page has a foreign
    origin.
    """

    def __init__(self, allowed: tuple[str, ...], *, development: bool) -> None:
        self._allowed = frozenset(origin.encode("ascii") for origin in allowed)
        self._development = development

    def __contains__(self, origin: object) -> bool:
        if origin in self._allowed:
            return True
        return (
            self._development
            and isinstance(origin, bytes)
            and LOOPBACK_ORIGIN.fullmatch(origin) is not None
        )


class Cors:
    """
    Answers preflights and lets allowed pages read the answers.

    The documents of section 3 of RFC 9728, and the paths below *own_rules*, answer for themselves.
    *allow* returns the methods of a path.
    """

    def __init__(
        self,
        origins: Origins,
        *,
        allow: Allow,
        own_rules: tuple[str, ...],
    ) -> None:
        self._origins = origins
        self._allow = allow
        self._own_rules = own_rules

    def __call__(self, request: EdgeRequest) -> Preflight | None:
        """Check a request that has an Origin or the method OPTIONS."""
        if is_public_document(request.path, self._own_rules):
            return None
        origin = request.headers.get(ORIGIN)
        allowed = origin is not None and origin in self._origins
        requested_method = request.headers.get(b"access-control-request-method")
        if request.method == "OPTIONS" and (requested_method is None or origin is None):
            # A normal request with a verb that no route has. A challenge would mislead the client.
            allow = ((b"allow", self._allow(request.path)),)
            raise EdgeRefusal(405, "method_not_allowed", "OPTIONS is for CORS preflights", allow)
        if not allowed or origin is None:
            return None
        shared = ((b"access-control-allow-origin", origin), (b"vary", b"Origin"))
        if request.method == "OPTIONS":
            return Preflight((*shared, *self._permissions(request)))
        exposed = (b"access-control-expose-headers", EXPOSED_HEADERS)
        request.scope[ANSWER_HEADERS] = (*shared, exposed)
        return None

    def _permissions(self, request: EdgeRequest) -> tuple[tuple[bytes, bytes], ...]:
        requested_headers = (
            request.headers.get(b"access-control-request-headers", b"").lower().split(b",")
        )
        # The names of mirrored parameters depend on the tools, so every requested header with such
        # a name is allowed.
        parameters = [
            name.strip() for name in requested_headers if PARAMETER_HEADER.fullmatch(name.strip())
        ]
        return (
            (b"access-control-allow-methods", ALLOWED_METHODS),
            (b"access-control-allow-headers", b", ".join([ALLOWED_HEADERS, *parameters[:32]])),
            (b"access-control-max-age", b"600"),
        )
