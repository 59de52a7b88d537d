"""The composition root: from a configuration and its services to the app that serves."""

import importlib
from collections.abc import Awaitable, Mapping, Sequence
from ipaddress import ip_network
from typing import TypeVar, cast

import msgspec
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gatepost.config.dashboard import is_on
from gatepost.edge.cors import Cors, Origins
from gatepost.edge.edge import Edge, Paint, respond
from gatepost.edge.headers import Headers
from gatepost.edge.limits import Limits
from gatepost.edge.origin import Origin
from gatepost.edge.request import Check
from gatepost.edge.transport import Transport
from gatepost.mcp.debug import TalkativeEndpoint
from gatepost.mcp.endpoint import Endpoint
from gatepost.mcp.endpoint import Limits as BodyLimits
from gatepost.mcp.legacy import Sessions
from gatepost.mcp.server import Server, ServerInfo
from gatepost.mcp.tracing import TalkativeTracedEndpoint, TracedEndpoint
from gatepost.pages import document_headers, page_headers, start_page
from gatepost.release import version
from gatepost.rest.bridge import Bridge
from gatepost.rest.bridge import Limits as BridgeLimits
from gatepost.rest.document import document
from gatepost.rest.tracing import TracedBridge
from gatepost.services import Services
from gatepost.settings import Config
from gatepost.telemetry.answers import Answers
from gatepost.telemetry.family import GATE_REASONS
from gatepost_authz.challenge import Challenge
from gatepost_authz.config import Beside, Resource
from gatepost_authz.errors import AuthError
from gatepost_authz.metadata import Metadata
from gatepost_authz.middleware import BearerMiddleware, Place

Paths = tuple[str, ...]
Traceable = TypeVar("Traceable", Endpoint, Bridge)

ENDPOINT_METHODS = ("GET", "POST", "DELETE")
HEALTH, READINESS = PROBES = ("/health", "/readyz")


def build_app(
    config: Config,
    services: Services,
    *,
    development_issuer: Sequence[Route] = (),
) -> Edge:
    """
    Everything that serves a request, in the order a request meets it.

    *development_issuer* are the routes that only `gatepost dev` adds.
    """
    resource = Resource(config.resource)
    challenge = challenge_of(config)
    bearer = Bearer(config, services, resource, challenge)
    endpoint = bearer(cast("ASGIApp", mcp(config, services, resource, challenge)))
    path = resource.path or "/"
    dashboard, paint = rooms_of(config, services, resource)
    table = Table(
        [
            Route(path, endpoint, methods=ENDPOINT_METHODS),
            *tool_routes(config, services, resource, challenge, bearer),
            *dashboard,
            *public_routes(config, services, resource, unknown=bearer(not_found)),
            *development_issuer,
        ],
        default=bearer(not_found),
    )
    untouched = ("/dev-as",) if development_issuer else ()
    services.log.counts = Answers(services.meter, RouteNames(table, resource).route_of)
    return Edge(
        table,
        checks=checks(config, services, resource, table, untouched),
        log=services.log,
        probes={
            HEALTH: health,
            READINESS: lambda: services.readiness(insecure_dev_auth=bool(development_issuer)),
        },
        is_endpoint=table.first_matches,
        refused=services.meter.refused,
        paint=paint,
    )


def rooms_of(
    config: Config, services: Services, resource: Resource
) -> tuple[Sequence[Route], Paint]:
    """The dashboard's routes, and how its refusals look; nothing where there is none."""
    if not is_on(config):
        return (), lambda path, refusal, request_id: None
    # By name: a server without one does not wait for its pages.
    rooms = importlib.import_module("gatepost.dashboard.routes").rooms(config, services, resource)
    return rooms.routes, rooms.paint


def checks(
    config: Config, services: Services, resource: Resource, table: "Table", untouched: Paths
) -> list[Check]:
    """What every request meets first; paths below *untouched* judge origins themselves."""
    origins = Origins(config.listen.allowed_origins, development=config.development)
    proxies = tuple(ip_network(network) for network in config.listen.trusted_proxies)
    return [
        Cors(origins, allow=table.allow, untouched=untouched),
        Transport(production=not config.development, proxies=proxies),
        Headers(),
        Limits(
            max_header_bytes=config.limits.max_header_bytes,
            max_body_bytes=config.limits.max_body_bytes,
            allow=table.allow,
        ),
        services.flood,
        Origin(resource.origin, origins, development=config.development, untouched=untouched),
    ]


def challenge_of(config: Config) -> Challenge:
    """How refusals demand credentials."""
    return Challenge(
        baseline=config.scopes.baseline,
        error_without_credentials=config.challenge.error_without_credentials,
    )


class Application:
    """The app in force; a reload puts another in its place, also for open connections."""

    def __init__(self, app: Edge) -> None:
        self.app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return self.app(scope, receive, send)


class Bearer:
    """Puts the gate in front of an app; every route that is not public has it."""

    def __init__(
        self, config: Config, services: Services, resource: Resource, challenge: Challenge
    ) -> None:
        self._config = config
        self._services = services
        self._resource = resource
        self._challenge = challenge

    def __call__(self, app: ASGIApp, *, place: Place | None = None) -> BearerMiddleware:
        """*app* behind the gate; *place* where its paths are not the resource's own."""
        return BearerMiddleware(
            app,
            resource=place or self._resource,
            verifier=self._services.verifier,
            challenge=self._challenge,
            baseline=frozenset(self._config.scopes.baseline),
            on_refusal=self._refused,
        )

    def _refused(self, scope: Scope, error: AuthError) -> None:
        self._services.flood.failed(scope, error)
        self._services.meter.refused(GATE_REASONS.get(type(error).__name__, ""))


class RouteNames:
    """Under which route a path is counted; it is never a label itself."""

    def __init__(self, table: "Table", resource: Resource) -> None:
        self._is_endpoint = table.first_matches
        self._known = dict.fromkeys(PROBES, "probe") | {"/": "page", "/openapi.json": "page"}
        if resource.path:
            self._known[resource.path] = "mcp"

    def route_of(self, path: str) -> str:
        """One of ROUTES."""
        return self._known.get(path) or self._of_form(path)

    def _of_form(self, path: str) -> str:
        if self._is_endpoint(path):
            return "mcp"
        if "/.well-known/" in path:
            return "metadata"
        if path.startswith("/dev-as/"):
            return "issuer"
        if "/dashboard" in path:
            return "dashboard"
        return "rest" if path.endswith(("/tools", "/call")) else "other"


def mcp(
    config: Config,
    services: Services,
    resource: Resource,
    challenge: Challenge,
    *,
    mirrors: bool = True,
) -> Endpoint:
    """The endpoint at the resource; *mirrors* as in `Endpoint`."""
    server = Server(
        runner=services.runner,
        registry=services.registry,
        info=ServerInfo(name="gatepost", version=version()),
        keyring=services.keyring,
        page_size=config.mcp.page_size,
        feed=services.feed,
        streams=services.streams,
        keeper=services.keeper,
        register=services.register,
        asking=services.approvals.plan,
        underway=services.underway,
    )
    kind = ENDPOINTS[config.log.level == "debug", services.outlet.tracer is not None]
    endpoint = kind(
        server,
        challenge=challenge,
        resource=resource,
        sessions=Sessions(services.keyring),
        suspended=services.cutoffs.suspended,
        limits=BodyLimits(
            config.limits.max_body_bytes,
            config.limits.body_timeout_s,
            config.limits.questions_per_caller,
            config.limits.question_timeout_s,
        ),
        mirrors=mirrors,
    )
    return traced(endpoint, config, services)


ENDPOINTS: Mapping[tuple[bool, bool], type[Endpoint]] = {
    (False, False): Endpoint,
    (True, False): TalkativeEndpoint,
    (False, True): TracedEndpoint,
    (True, True): TalkativeTracedEndpoint,
}
"""By whether the log tells of each request, and whether spans do."""


def traced(app: Traceable, config: Config, services: Services) -> Traceable:
    """*app*, with what it needs if it is one that traces."""
    tracer = services.outlet.tracer
    if tracer is not None and isinstance(app, TracedEndpoint | TracedBridge):
        app.tracer, app.registry = tracer, services.registry
        app.names_tenant = config.telemetry.trace_tenant
    return app


def tool_routes(
    config: Config, services: Services, resource: Resource, challenge: Challenge, bearer: Bearer
) -> list[Route]:
    """The REST tool protocol, beside the endpoint and behind the same gate."""
    limits, beside = config.limits, Beside(resource)
    kind = Bridge if services.outlet.tracer is None else TracedBridge
    bridge = kind(
        services.runner,
        services.registry,
        challenge=challenge,
        place=beside,
        suspended=services.cutoffs.suspended,
        underway=services.underway,
        limits=BridgeLimits(limits.max_body_bytes, limits.body_timeout_s),
        differs=lambda refusal: services.journal.note(
            refusal.caller.tenant_id,
            "tenant_mismatch",
            outcome="refused",
            caller=refusal.caller,
            request_id=refusal.request_id,
            peer=refusal.peer,
            private={"claimed": refusal.claimed},
        ),
    )
    traced(bridge, config, services)
    listing = bearer(bridge.list_tools, place=beside)
    calling = bearer(bridge.call_tool, place=beside)
    return [
        Route(f"{beside.base}/tools", listing, methods=["GET"]),
        Route(f"{beside.base}/tool/{{name}}/call", calling, methods=["POST"]),
    ]


def public_routes(
    config: Config, services: Services, resource: Resource, *, unknown: ASGIApp
) -> list[Route]:
    """What needs no token, beside the probes; a test holds the list to exactly this."""
    documents = Metadata(
        resource,
        authorization_servers=services.issuers.for_tenant,
        scopes=config.scopes.baseline,
        name="Gatepost",
        unknown=unknown,
    )
    start, openapi = start_page(config), document(resource, version())
    routes = [Route("/openapi.json", Page(openapi, document_headers(openapi)), methods=["GET"])]
    if resource.path not in {"", "/"}:
        routes.append(Route("/", Page(start, page_headers(start)), methods=["GET"]))
    return [*routes, *documents.routes()]


class Table:
    """
    A flat table of routes: a dictionary for fixed paths, then patterns, then *default*.

    Paths are compared as the server decoded them and nothing is normalised: a path that is not
    exactly a route's goes to the gate and, with a token, to 404.
    """

    def __init__(self, routes: Sequence[Route], *, default: ASGIApp) -> None:
        self.routes = tuple(routes)
        self.default = default
        self._fixed: Mapping[str, ASGIApp] = {
            route.path: route.app for route in routes if "{" not in route.path
        }
        self._patterns = tuple(route for route in routes if "{" in route.path)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http":
            return self.default(scope, receive, send)
        app = self._fixed.get(scope["path"])
        if app is not None:
            return app(scope, receive, send)
        for route in self._patterns:
            # Not `route.matches`: its `$` lets a line break pass at the end of a path.
            match = route.path_regex.fullmatch(scope["path"])
            if match is not None:
                scope["path_params"] = match.groupdict()
                return route.app(scope, receive, send)
        return self.default(scope, receive, send)

    def allow(self, path: str) -> bytes:
        """What `Allow` says of a path; of an unknown one as of most that there are."""
        for route in self.routes:
            if route.methods and route.path_regex.fullmatch(path):
                # Starlette adds HEAD to every GET, and a stream has none.
                own = ENDPOINT_METHODS if route is self.routes[0] else sorted(route.methods)
                return ", ".join(own).encode()
        # Edge answers these before the table is asked.
        return b"GET, HEAD" if path in PROBES else b"POST"

    def first_matches(self, path: str) -> bool:
        """Whether the path is the endpoint's."""
        return self.routes[0].path_regex.fullmatch(path) is not None


class Page:
    """A document that is the same for everybody."""

    def __init__(self, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        self._body = body
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in {"GET", "HEAD"}:
            body = b'{"error":"method_not_allowed","message":"Only GET, HEAD is served here."}'
            await respond(send, 405, body, ((b"allow", b"GET, HEAD"),))
            return
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        await send({"type": "http.response.body", "body": self._body})


async def not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers a caller whose token is good and whose path is nobody's."""
    await respond(send, 404, _NOT_FOUND)


async def health() -> tuple[int, bytes]:
    """What `/health` says."""
    return 200, _HEALTH


_NOT_FOUND = b'{"error":"not_found","message":"Nothing is served at this path."}'
_HEALTH = msgspec.json.encode({"status": "ok", "version": version()})
