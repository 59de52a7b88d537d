"""Build the dashboard: its routes, pages and shared objects."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec
from starlette.routing import Route
from starlette.types import ASGIApp

from gatepost.config.references import resolve
from gatepost.config.settings import Config
from gatepost.dashboard.assets import FOLDER, Assets
from gatepost.dashboard.cookie import Cookies
from gatepost.dashboard.dashboard_session import DashboardSessions, digest
from gatepost.dashboard.location import DashboardLocation, DashboardPaths
from gatepost.dashboard.openid import OpenIdClient, SignInVerifier
from gatepost.dashboard.page import PageRoute
from gatepost.dashboard.page_access import CheckedPage, PageRefused, PageServices, RequestOrigin
from gatepost.dashboard.pages import pages
from gatepost.dashboard.security_headers import SecurityHeaders, security_headers_of
from gatepost.dashboard.signin import (
    SignInServices,
    SignInStep,
    begin,
    choose,
    finish,
    missing,
    short_name,
    signed_out,
)
from gatepost.dashboard.signout import SIGN_OUT, Parties, destinations, sign_out_origins
from gatepost.dashboard.templating import Templates
from gatepost.http.edge import RenderRefusal, ResponseHeaders
from gatepost.http.edge_request import EdgeRefusal
from gatepost.runtime.reload import revoked_callers
from gatepost.runtime.services import Services
from gatepost_authz.caller import TenantContext
from gatepost_authz.headers import HeaderField
from gatepost_authz.issuers import IssuerRegistry
from gatepost_authz.protected_resource import Resource


class DashboardRoutes(msgspec.Struct, frozen=True):
    """The dashboard's routes and error pages, for the app."""

    routes: tuple[Route, ...]
    """The last route takes all other paths below the base."""
    render_refusal: RenderRefusal
    """Renders refusals and errors of the edge for users of the dashboard."""


def dashboard(config: Config, services: Services, resource: Resource) -> DashboardRoutes:
    """Return the dashboard for *config*."""
    assets = Assets()
    parties = _parties(config, services)
    common = page_services(config, services, resource, Templates(assets.path), parties)
    location, view = common.location, common.view
    gateway = SignInServices(
        location=location,
        parties=parties,
        verifier=SignInVerifier(
            services.verifier,
            services.keys,
            baseline=frozenset(config.scopes.baseline),
            development=config.development,
        ),
        sessions=common.sessions,
        cookies=common.cookies,
        view=view,
        keyring=services.keyring,
        # The dashboard keeps no refresh token.
        baseline=tuple(scope for scope in config.scopes.named if scope != "offline_access"),
        failed=services.refusals.by_sign_in,
        slow_down=services.failed_tokens.check,
        note=common.note,
    )

    def route(subpath: str, app: ASGIApp, methods: Sequence[str]) -> Route:
        with_headers = SecurityHeaders(
            app,
            resource=resource,
            development=config.development,
            sign_out_origins=sign_out_origins(config),
        )
        return Route(location.pattern + subpath, with_headers, methods=list(methods))

    page_routes = pages(config, services, view)
    view.lead_to({page.path for page in page_routes})
    routes = (
        *(route(page.path, CheckedPage(page, common), _methods(page)) for page in page_routes),
        route("/sign-out", CheckedPage(SIGN_OUT, common), ["POST"]),
        route("/sign-in", SignInStep(choose, gateway), ["GET"]),
        route("/sign-in/start", SignInStep(begin, gateway), ["GET"]),
        route("/callback", SignInStep(finish, gateway), ["GET"]),
        route("/signed-out", SignInStep(signed_out, gateway), ["GET"]),
        route(FOLDER + "/{digest}/{name}", assets, ["GET"]),
        route("/{rest:path}", SignInStep(missing, gateway), ["GET"]),
    )
    return DashboardRoutes(routes, _refusal_renderer(location, view, security_headers_of(resource)))


def page_services(
    config: Config,
    services: Services,
    resource: Resource,
    view: Templates,
    parties: Parties | None = None,
) -> PageServices:
    """Return what all pages of the dashboard share."""
    location = DashboardLocation(resource)
    return PageServices(
        location=location,
        sessions=DashboardSessions(
            services.keyring,
            services.records,
            lasts_s=config.dashboard.session_s,
            idle_s=config.dashboard.idle_s,
            meaning_of=_meanings(config, services),
        ),
        cookies=Cookies(resource),
        view=view,
        own_origin=RequestOrigin(resource),
        streams=services.streams,
        max_body_bytes=config.limits.max_body_bytes,
        note=_note(services),
        leave=destinations(parties or _parties(config, services), location),
    )


def _refusal_renderer(
    location: DashboardLocation, view: Templates, security_headers: Sequence[HeaderField]
) -> RenderRefusal:
    def render(
        path: str, refusal: EdgeRefusal, request_id: str
    ) -> tuple[bytes, ResponseHeaders] | None:
        paths = location.locate(path)
        if paths is None:
            return None
        title = "Service unavailable" if refusal.status >= 500 else "Request refused"
        turned = PageRefused(refusal.status, title, f"{refusal.message} (request {request_id})")
        html = view.bare("error.html", paths.base, turned=turned, back=paths.base)
        return html.encode(), tuple(security_headers)

    return render


def _methods(page: PageRoute) -> list[str]:
    return [name for name, handler in (("GET", page.get), ("POST", page.post)) if handler]


def _parties(config: Config, services: Services) -> Parties:
    """Return the issuers with dashboard sign-in, created once."""
    issuers, known_clients = services.issuers, dict[str, OpenIdClient | None]()
    clients = [issuer.dashboard for issuer in config.issuers if issuer.dashboard]
    secrets = {client.client_secret: resolve(client.client_secret) for client in clients}

    def party(issuer: str) -> OpenIdClient | None:
        match = issuers.find(issuer)
        if match is None or match[0].settings.dashboard is None:
            return None
        client = match[0].settings.dashboard
        return OpenIdClient(
            issuer,
            match[0],
            client,
            fetcher=services.fetcher,
            discovery=services.keys.discovery,
            secret=secrets[client.client_secret],
        )

    def clients_of(paths: DashboardPaths) -> Mapping[str, OpenIdClient]:
        clients_by_name = {}
        for issuer in issuers.for_tenant(paths.target.tenant):
            if issuer not in known_clients:
                known_clients[issuer] = party(issuer)
            client = known_clients[issuer]
            if client is not None:
                clients_by_name[short_name(issuer)] = client
        return clients_by_name

    return clients_of


def _meanings(config: Config, services: Services) -> Callable[[TenantContext], bytes | None]:
    """
    Return a function that digests the settings by which a user's token was read.

    It returns None for a user who lost access. A session outlives the check of its token, so a
    change of these settings requires a new sign-in, and a revocation ends the session at once.
    """
    issuers: IssuerRegistry = services.issuers
    is_out, is_refused = revoked_callers(config, issuers), services.revocations.is_refused
    meanings = {
        trusted.settings.issuer: digest(
            trusted.settings, config.resource, config.mode, config.scopes.implied
        )
        for trusted in issuers.issuers
        if trusted.settings.dashboard is not None
    }

    def meaning_of(caller: TenantContext) -> bytes | None:
        if is_refused(caller) or is_out(caller):
            return None
        match = issuers.find(caller.issuer)
        return meanings.get(match[0].settings.issuer) if match else None

    return meaning_of


def _note(services: Services) -> Callable[[str, TenantContext, str], Awaitable[None]]:
    async def note(outcome: str, caller: TenantContext, peer: str) -> None:
        await services.audit_writer.events.note(
            caller.tenant_id,
            "signin",
            outcome=outcome,
            caller=caller,
            peer=peer,
            details={"at": "dashboard"},
        )

    return note
