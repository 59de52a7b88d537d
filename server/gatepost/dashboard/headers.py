"""The headers that everything of the dashboard goes out with."""

from collections.abc import Awaitable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gatepost.edge.edge import respond
from gatepost.scope import FOLDED
from gatepost_authz.config import Resource

Header = tuple[bytes, bytes]

# No inline script or style, nothing from elsewhere, never inside a frame, forms only to us (CSP
# level 3). What a page shows was written by agents and their victims; nothing of it may run.
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    b"connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
NO_STORE = (b"cache-control", b"no-store")
GUARDS: tuple[Header, ...] = (
    (b"content-security-policy", POLICY),
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    # With `no-referrer` browsers send `Origin: null` with our own forms (Fetch, "append a request
    # `Origin` header"), which could not be told from a foreign page's.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (
        b"permissions-policy",
        b"accelerometer=(), camera=(), display-capture=(), geolocation=(), gyroscope=(), hid=(), "
        b"microphone=(), midi=(), payment=(), serial=(), usb=()",
    ),
)
SECURE: tuple[Header, ...] = ((b"strict-transport-security", b"max-age=31536000"),)
"""Under https only; browsers ignore it over http (RFC 6797 section 8.1)."""
HTML = b"text/html; charset=utf-8"


class Browser:
    """
    Stands before everything of the dashboard: each answer, whoever makes it, has the guards.

    The names under which a laptop reaches itself are brought to the one that the resource has:
    the cookies of `localhost` are not those of `127.0.0.1`.
    """

    def __init__(self, app: ASGIApp, *, resource: Resource, development: bool) -> None:
        self.app = app
        self._guards = guards_of(resource)
        self._names = frozenset(name for name, _ in self._guards)
        self._origin = resource.origin.encode("ascii")
        self._host = resource.authority.lower().encode("ascii") if development else b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        def guarded(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                own = [pair for pair in message["headers"] if pair[0] not in self._names]
                message = {**message, "headers": [*own, *self._guards]}
            return send(message)

        host = scope[FOLDED].get(b"host", b"")
        if self._host and host.lower() != self._host and scope["method"] in {"GET", "HEAD"}:
            query = b"?" + scope["query_string"] if scope["query_string"] else b""
            location = (b"location", self._origin + scope["raw_path"] + query)
            await respond(guarded, 307, b"{}", (location,))
            return
        await self.app(scope, receive, guarded)


def guards_of(resource: Resource) -> tuple[Header, ...]:
    """The guards of a server at *resource*."""
    return (*GUARDS, *SECURE) if resource.scheme == "https" else GUARDS
