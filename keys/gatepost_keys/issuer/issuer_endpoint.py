"""Check host and origin before each endpoint of the issuer, and mark its answers."""

from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gatepost_keys.issuer import wire
from gatepost_keys.issuer.settings import LOOPBACK, IssuerSettings

RouteHandler = Callable[[Request], Awaitable[Response]]

# VS Code's own pages; no web page can have such an origin.
EDITOR_ORIGINS = frozenset({"vscode-file://vscode-app"})
CORS_HEADERS = "Authorization, Content-Type, Accept, MCP-Protocol-Version"


class AllowedOrigins(Enum):
    """The pages whose scripts may use an endpoint."""

    PUBLIC = "metadata and keys, which are no secret"
    LOCAL = "clients in a browser on this machine, such as the Inspector"
    ISSUER_PAGES = "the issuer's own pages"


class IssuerEndpoint:
    """
    One path of the issuer as an ASGI app: its verbs, behind the checks of host and origin.

    The host is checked here again, even if another layer has checked it. Otherwise a web page whose
    name resolves to 127.0.0.1 (DNS rebinding) could sign people in and read the codes.
    """

    def __init__(
        self,
        settings: IssuerSettings,
        audience: AllowedOrigins,
        handlers: Mapping[str, RouteHandler],
    ) -> None:
        parts = urlsplit(settings.issuer)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        self.audience = audience
        self.handlers = {**handlers, **({"HEAD": handlers["GET"]} if "GET" in handlers else {})}
        self.allow = ", ".join(self.handlers)
        self.hosts = frozenset(
            name
            for host in ("127.0.0.1", "localhost", "[::1]")
            for name in ((host, f"{host}:{port}") if port in {80, 443} else (f"{host}:{port}",))
        )
        self.scheme = parts.scheme
        self.origins = frozenset(settings.allowed_origins) | EDITOR_ORIGINS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        answer = self._refusal(headers) or self._preflight(scope["method"], headers)
        marked = self._marked(send, headers.get("origin"))
        await (answer or self._handler(scope["method"]))(scope, receive, marked)

    def _handler(self, method: str) -> ASGIApp:
        handle = self.handlers.get(method)
        if handle is None:
            return Response(status_code=405, headers={"Allow": self.allow})

        async def run(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                response = await handle(Request(scope, receive))
            except wire.MalformedRequest as fault:
                response = wire.refuse(fault.sentence, fault.status)
            await response(scope, receive, send)

        return run

    def _refusal(self, headers: Headers) -> Response | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self.hosts:
            return wire.refuse("This host name is not the issuer's", 421)
        if self.audience is AllowedOrigins.PUBLIC:
            return None
        origin = headers.get("origin")
        if origin is not None and not self._is_allowed(origin, hosts[0].lower()):
            return wire.refuse("This web origin may not use the development issuer", 403)
        if self.audience is AllowedOrigins.ISSUER_PAGES and not _is_page(headers):
            return wire.refuse("The pages of this issuer cannot be embedded", 403)
        return None

    def _is_allowed(self, origin: str, host: str) -> bool:
        if self.audience is AllowedOrigins.ISSUER_PAGES:
            return origin == f"{self.scheme}://{host}"
        if origin in self.origins:
            return True
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return parts.scheme in {"http", "https"} and parts.hostname in LOOPBACK

    def _preflight(self, method: str, headers: Headers) -> Response | None:
        if method != "OPTIONS" or "access-control-request-method" not in headers:
            return None
        if self.audience is AllowedOrigins.ISSUER_PAGES:
            return None
        granted = {
            "Access-Control-Allow-Methods": self.allow,
            "Access-Control-Allow-Headers": CORS_HEADERS,
            "Access-Control-Max-Age": "600",
        }
        return Response(status_code=204, headers=granted)

    def _marked(self, send: Send, origin: str | None) -> Send:
        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Dev-Auth"] = "1"
                headers["X-Content-Type-Options"] = "nosniff"
                if self.audience is AllowedOrigins.PUBLIC:
                    headers["Access-Control-Allow-Origin"] = "*"
                elif self.audience is AllowedOrigins.LOCAL:
                    headers.add_vary_header("Origin")
                    if origin is not None and message["status"] not in {403, 421}:
                        headers["Access-Control-Allow-Origin"] = origin
                        headers["Access-Control-Expose-Headers"] = "WWW-Authenticate"
            await send(message)

        return marked


def _is_page(headers: Headers) -> bool:
    """Return whether a browser asks for a page of its own; true for a client that is no browser."""
    if headers.get("sec-fetch-site") in {"same-origin", "none"}:
        return True
    # `empty` and `iframe` from elsewhere: a foreign script or frame drives the sign-in.
    return headers.get("sec-fetch-dest", "document") == "document"
