"""The security headers of every answer of the dashboard."""

from collections.abc import Awaitable, Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gatepost.http.edge import respond
from gatepost.http.scope import HEADERS_BY_NAME
from gatepost_authz.headers import HeaderField
from gatepost_authz.protected_resource import Resource

# No inline script or style, no other hosts, no frames, forms only to this server (CSP
# level 3). Pages show text written by agents and attackers, which must never run.
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    b"connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
NO_STORE = (b"cache-control", b"no-store")
SECURITY_HEADERS: tuple[HeaderField, ...] = (
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    # With `no-referrer` browsers send `Origin: null` with our own forms (Fetch, "append a request
    # `Origin` header"), which looks like a form of another site.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (
        b"permissions-policy",
        b"accelerometer=(), camera=(), display-capture=(), geolocation=(), gyroscope=(), hid=(), "
        b"microphone=(), midi=(), payment=(), serial=(), usb=()",
    ),
)
SECURE: tuple[HeaderField, ...] = ((b"strict-transport-security", b"max-age=31536000"),)
"""Only under https; browsers ignore it over http (RFC 6797 section 8.1)."""
HTML = b"text/html; charset=utf-8"


class SecurityHeaders:
    """
    Add the security headers to every answer of the dashboard, including errors.

    In development it redirects other loopback names to the name in the resource, because cookies of
    `localhost` do not apply to `127.0.0.1`.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        resource: Resource,
        development: bool,
        sign_out_origins: Sequence[str] = (),
    ) -> None:
        self.app = app
        self._headers = security_headers_of(resource, sign_out_origins)
        self._names = frozenset(name for name, _ in self._headers)
        self._origin = resource.origin.encode("ascii")
        self._host = resource.authority.lower().encode("ascii") if development else b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        def send_with_headers(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                other_headers = [pair for pair in message["headers"] if pair[0] not in self._names]
                message = {**message, "headers": [*other_headers, *self._headers]}
            return send(message)

        host = scope[HEADERS_BY_NAME].get(b"host", b"")
        if self._host and host.lower() != self._host and scope["method"] in {"GET", "HEAD"}:
            query = b"?" + scope["query_string"] if scope["query_string"] else b""
            location = (b"location", self._origin + scope["raw_path"] + query)
            await respond(send_with_headers, 307, b"{}", (location,))
            return
        await self.app(scope, receive, send_with_headers)


def security_headers_of(
    resource: Resource, sign_out_origins: Sequence[str] = ()
) -> tuple[HeaderField, ...]:
    """
    Return the security headers for a server at *resource*.

    Chromium applies `form-action` to redirects too, and the form of the sign-out leads to one of
    *sign_out_origins*.
    """
    policy = " ".join([POLICY.decode("ascii"), *sign_out_origins]).encode("ascii")
    headers = ((b"content-security-policy", policy), *SECURITY_HEADERS)
    return (*headers, *SECURE) if resource.scheme == "https" else headers
