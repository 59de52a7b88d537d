"""The composition root: build the served app from a configuration and its services."""

import importlib
from collections.abc import Sequence
from typing import cast

import msgspec
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gatepost.check.dashboard import is_on
from gatepost.config.settings import Config
from gatepost.http.checks import HeadChecks, HeadRules
from gatepost.http.edge import Edge, RenderRefusal, respond
from gatepost.http.routing import ENDPOINT_METHODS, HEALTH, READINESS, RouteTable, StaticPage
from gatepost.http.start_page import ICON, PAGE_HEADERS, start_page
from gatepost.mcp.endpoint import Endpoint, EndpointLimits
from gatepost.mcp.request_wrappers import KNOWN_METHODS, RequestTracing, WrapRequest, logged
from gatepost.mcp.server import McpServer, ServerInfo
from gatepost.mcp.sessions.session import McpSessions
from gatepost.rest.exchange import RestExchange, RestLimits
from gatepost.rest.openapi_document import document
from gatepost.rest.routes import CallTracing, RestRoutes
from gatepost.runtime.readiness import readiness
from gatepost.runtime.services import Services
from gatepost.runtime.version import version
from gatepost.tools.calls.registry import Registry
from gatepost_authz.challenge import Challenge
from gatepost_authz.metadata import MetadataRoutes
from gatepost_authz.middleware import BearerMiddleware, ResourceLookup
from gatepost_authz.protected_resource import Resource, SiblingPaths

RoutePaths = tuple[str, ...]

DOCUMENT_CACHING = (b"cache-control", b"public, max-age=300")
ICON_CACHING = (b"cache-control", b"public, max-age=86400")


def build_app(
    config: Config,
    services: Services,
    *,
    development_issuer: Sequence[Route] = (),
) -> Edge:
    """
    Return the application: all layers that serve a request, in order.

    *development_issuer* are the routes that only `gatepost dev` adds.
    """
    resource = Resource(config.resource)
    challenge = challenge_of(config)
    bearer = Bearer(config, services, resource, challenge)
    endpoint = bearer(cast("ASGIApp", mcp(config, services, resource, challenge)))
    path, paths = resource.path or "/", SiblingPaths(resource)
    exchange = rest_exchange(config, services, paths, challenge)
    dashboard, render_refusal = dashboard_of(config, services, resource)
    table = RouteTable(
        {
            "mcp": [Route(path, endpoint, methods=ENDPOINT_METHODS)],
            "rest": [
                *tool_routes(config, services, exchange, paths, bearer),
                *management_routes(config, services, exchange, paths, bearer),
            ],
            "dashboard": dashboard,
            "page": pages(config, resource),
            "metadata": metadata_routes(config, services, resource, unknown=bearer(not_found)),
            "issuer": development_issuer,
        },
        default=bearer(not_found),
    )
    own_origin_rules = ("/dev-as",) if development_issuer else ()
    services.request_metrics.apply(table.label)
    services.log.apply(shown_names(services.registry))
    return Edge(
        table,
        checks=HeadChecks(head_rules(config, resource, own_origin_rules), allow=table.allow),
        log=services.log,
        probes={
            HEALTH: health,
            READINESS: lambda: readiness(services, insecure_dev_auth=bool(development_issuer)),
        },
        is_endpoint=table.first_matches,
        refused=services.meter.refused,
        render_refusal=render_refusal,
    )


def dashboard_of(
    config: Config, services: Services, resource: Resource
) -> tuple[Sequence[Route], RenderRefusal]:
    """Return the dashboard's routes and its error pages; empty if it is not configured."""
    if not is_on(config):
        return (), lambda path, refusal, request_id: None
    # Imported here, so that a server without a dashboard does not wait for its pages.
    dashboard = importlib.import_module("gatepost.dashboard.routes").dashboard(
        config, services, resource
    )
    return dashboard.routes, dashboard.render_refusal


def head_rules(config: Config, resource: Resource, own_origin_rules: RoutePaths) -> HeadRules:
    """Return the rules of the edge; paths below *own_origin_rules* check origins themselves."""
    return HeadRules(
        origin=resource.origin,
        development=config.development,
        max_header_bytes=config.limits.max_header_bytes,
        max_body_bytes=config.limits.max_body_bytes,
        allowed_origins=config.listen.allowed_origins,
        trusted_proxies=config.listen.trusted_proxies,
        own_origin_rules=own_origin_rules,
    )


def challenge_of(config: Config) -> Challenge:
    """Return the challenge that refusals send."""
    return Challenge(
        baseline=config.scopes.named,
        error_without_credentials=config.challenge.error_without_credentials,
    )


class Bearer:
    """Puts the gate in front of an app; every route that is not public uses it."""

    def __init__(
        self, config: Config, services: Services, resource: Resource, challenge: Challenge
    ) -> None:
        self._config = config
        self._services = services
        self._resource = resource
        self._challenge = challenge

    def __call__(
        self, app: ASGIApp, *, resource_of: ResourceLookup | None = None
    ) -> BearerMiddleware:
        """Return *app* behind the gate; *resource_of* tells the resource of further paths."""
        return BearerMiddleware(
            app,
            resource=resource_of or self._resource,
            verifier=self._services.verifier,
            challenge=self._challenge,
            baseline=frozenset(self._config.scopes.baseline),
            on_refusal=self._services.refusals.by_gate,
            identity=None,  # Edge has removed them, and the app reads none
            rate_limit=self._services.failed_tokens.refusal,
        )


def mcp(
    config: Config,
    services: Services,
    resource: Resource,
    challenge: Challenge,
    *,
    mirrors: bool = True,
) -> Endpoint:
    """Return the MCP endpoint; *mirrors* as in `Endpoint`."""
    server = McpServer(
        runner=services.runner,
        registry=services.registry,
        info=ServerInfo(name="gatepost", version=version()),
        keyring=services.keyring,
        page_size=config.mcp.page_size,
        pubsub=services.pubsub,
        streams=services.streams,
        task_runner=services.task_runner,
        session_registry=services.session_registry,
        approval_tools=services.approvals.policies.plan,
        needs_approval=services.approvals.policies.needs_approval,
        running_requests=services.running_requests,
    )
    wrappers: list[WrapRequest] = [logged] if config.log.level == "debug" else []
    if (tracer := services.exporter.tracer) is not None:
        names_tenant = config.telemetry.trace_tenant
        wrappers.append(RequestTracing(tracer, services.registry, names_tenant=names_tenant))
    return Endpoint(
        server,
        challenge=challenge,
        resource=resource,
        sessions=McpSessions(services.keyring),
        suspended=services.revocations.suspended,
        limits=EndpointLimits(
            config.limits.max_body_bytes,
            config.limits.body_timeout_s,
            config.limits.client_requests_per_caller,
            config.limits.client_request_timeout_s,
            config.limits.max_body_values,
        ),
        mirrors=mirrors,
        wrappers=wrappers,
    )


def rest_exchange(
    config: Config, services: Services, paths: SiblingPaths, challenge: Challenge
) -> RestExchange:
    """Return what all REST routes share: reading requests, limiting them, and answering."""
    limits = config.limits
    return RestExchange(
        challenge=challenge,
        resource_of=paths,
        limits=RestLimits(limits.max_body_bytes, limits.body_timeout_s, limits.max_body_values),
        requests=services.runner.requests,
        suspended=services.revocations.suspended,
        running_requests=services.running_requests,
        record_tenant_mismatch=services.audit_writer.events.note_mismatch,
    )


def tool_routes(
    config: Config, services: Services, exchange: RestExchange, paths: SiblingPaths, bearer: Bearer
) -> list[Route]:
    """Return the routes of the REST tool protocol, which has the same gate."""
    traced = None
    if (tracer := services.exporter.tracer) is not None:
        names_tenant = config.telemetry.trace_tenant
        traced = CallTracing(tracer, services.registry, names_tenant=names_tenant)
    tools = RestRoutes(services.runner, services.registry, exchange, wrap_call=traced)
    listing = bearer(tools.list_tools, resource_of=paths)
    calling = bearer(tools.call_tool, resource_of=paths)
    return [
        Route(f"{paths.base}/tools", listing, methods=["GET"]),
        Route(f"{paths.base}/tool/{{name}}/call", calling, methods=["POST"]),
    ]


def management_routes(
    config: Config, services: Services, exchange: RestExchange, paths: SiblingPaths, bearer: Bearer
) -> list[Route]:
    """Return the routes with which administrators manage upstreams, behind the same gate."""
    if not config.scopes.admin:
        return []
    # Imported here, as for the dashboard, because most servers have no such routes.
    management = importlib.import_module("gatepost.rest.management.routes")
    routes = []
    for path, route in management.management_routes(
        services.upstreams.services, exchange, config.scopes.admin
    ).items():
        checked = bearer(route, resource_of=paths)
        routes.append(Route(f"{paths.base}{path}", checked, methods=route.methods))
    return routes


def metadata_routes(
    config: Config, services: Services, resource: Resource, *, unknown: ASGIApp
) -> list[Route]:
    """Return the routes of the protected-resource metadata, which need no token."""
    documents = MetadataRoutes(
        resource,
        authorization_servers=services.issuers.for_tenant,
        scopes=scopes_of(config, services.registry),
        name="Gatepost",
        unknown=unknown,
    )
    return documents.routes(root=True)


def pages(config: Config, resource: Resource) -> list[Route]:
    """Return the other documents that need no token; a test lists exactly these."""
    openapi = document(resource, version(), admin=bool(config.scopes.admin))
    documents = {
        "/openapi.json": StaticPage(openapi, b"application/json", DOCUMENT_CACHING),
        "/favicon.ico": StaticPage(ICON, b"image/x-icon", ICON_CACHING),
    }
    if resource.path not in {"", "/"}:
        start = start_page(config, dashboard=is_on(config))
        documents["/"] = StaticPage(start, b"text/html; charset=utf-8", *PAGE_HEADERS)
    return [Route(path, page, methods=["GET"]) for path, page in documents.items()]


def scopes_of(config: Config, registry: Registry) -> Sequence[str]:
    """Return the scopes that clients may request: those for any request, then those of offers."""
    configured = config.scopes.named
    return (*configured, *sorted((registry.declared & registry.obtainable).difference(configured)))


def shown_names(registry: Registry) -> frozenset[str]:
    """Return what the access log shows of a JSON-RPC request without searching it for secrets."""
    return KNOWN_METHODS.union(
        registry.tools, registry.documents, registry.prompts, registry.skills
    )


async def not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer 404 to a caller whose token is good and whose path does not exist."""
    await respond(send, 404, _NOT_FOUND)


async def health() -> tuple[int, bytes]:
    """Return the answer of `/health`."""
    return 200, _HEALTH


_NOT_FOUND = b'{"error":"not_found","message":"Nothing is served at this path."}'
_HEALTH = msgspec.json.encode({"status": "ok", "version": version()})
