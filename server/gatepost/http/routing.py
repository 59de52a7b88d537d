"""Pass requests on: to the app that serves now, and there to the app of their path."""

from collections.abc import Awaitable, Mapping, Sequence
from itertools import chain

from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gatepost.http.edge import Edge, respond
from gatepost.telemetry.metric_families import OTHER
from gatepost_authz.headers import HeaderField

ENDPOINT_METHODS = ("GET", "POST", "DELETE")
HEALTH, READINESS = PROBES = ("/health", "/readyz")


class Application:
    """The current app of all connections."""

    def __init__(self, app: Edge) -> None:
        self._app = app

    def replace(self, app: Edge) -> None:
        """Pass later requests to *app*, after a reload; requests that have begun go on."""
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return self._app(scope, receive, send)


class RouteTable:
    """
    A flat table of routes: a dictionary for fixed paths, then patterns, then *default*.

    *routes* are by the label under which the metrics count their requests, the endpoint first.
    Paths are compared as the server decoded them, without normalisation. Any other path goes to the
    gate and, with a token, gets 404.
    """

    def __init__(self, routes: Mapping[str, Sequence[Route]], *, default: ASGIApp) -> None:
        self.routes = tuple(chain.from_iterable(routes.values()))
        self.default = default
        self._fixed: Mapping[str, ASGIApp] = {
            route.path: route.app for route in self.routes if "{" not in route.path
        }
        self._patterns = tuple(route for route in self.routes if "{" in route.path)
        self._labels = dict.fromkeys(PROBES, "probe")
        self._pattern_labels = []
        for label, group in routes.items():
            self._labels |= {route.path: label for route in group if "{" not in route.path}
            self._pattern_labels += [(route, label) for route in group if "{" in route.path]

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http":
            return self.default(scope, receive, send)
        app = self._fixed.get(scope["path"])
        if app is not None:
            return app(scope, receive, send)
        for route in self._patterns:
            # `route.matches` is not used, because its `$` lets a line break pass at the end of a
            # path.
            match = route.path_regex.fullmatch(scope["path"])
            if match is not None:
                scope["path_params"] = match.groupdict()
                return route.app(scope, receive, send)
        return self.default(scope, receive, send)

    def label(self, path: str) -> str:
        """Return the label of a path, one of ROUTES; the path itself is never a label."""
        if (label := self._labels.get(path)) is not None:
            return label
        matching = (n for route, n in self._pattern_labels if route.path_regex.fullmatch(path))
        return next(matching, OTHER)

    def allow(self, path: str) -> bytes:
        """Return the methods for `Allow`; for an unknown path, those of most paths."""
        for route in self.routes:
            if route.methods and route.path_regex.fullmatch(path):
                # Starlette adds HEAD to every GET, but a stream has none.
                methods = ENDPOINT_METHODS if route is self.routes[0] else sorted(route.methods)
                return ", ".join(methods).encode()
        # Edge answers these paths before the table is consulted.
        return b"GET, HEAD" if path in PROBES else b"POST"

    def first_matches(self, path: str) -> bool:
        """Return whether the path is the endpoint's."""
        return self.routes[0].path_regex.fullmatch(path) is not None


class StaticPage:
    """A document that is the same for all callers."""

    def __init__(self, body: bytes, media_type: bytes, *headers: HeaderField) -> None:
        self._body = body
        self._headers = [
            (b"content-type", media_type),
            (b"content-length", b"%d" % len(body)),
            (b"x-content-type-options", b"nosniff"),
            *headers,
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in {"GET", "HEAD"}:
            body = b'{"error":"method_not_allowed","message":"Only GET, HEAD is served here."}'
            await respond(send, 405, body, ((b"allow", b"GET, HEAD"),))
            return
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        await send({"type": "http.response.body", "body": self._body})
