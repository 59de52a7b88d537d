"""Everything of the dashboard put together: which path leads to what."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec
from starlette.routing import Route
from starlette.types import ASGIApp

from gatepost.config.references import resolve
from gatepost.dashboard.assets import FOLDER, Assets
from gatepost.dashboard.cookie import Cookies
from gatepost.dashboard.frame import Frame, Own, Surroundings, Turned
from gatepost.dashboard.headers import Browser, Header, guards_of
from gatepost.dashboard.openid import Bouncer, Party
from gatepost.dashboard.pages import pages
from gatepost.dashboard.place import Place, Spot
from gatepost.dashboard.session import Sessions, digest
from gatepost.dashboard.signin import (
    Door,
    Gateway,
    begin,
    choose,
    finish,
    missing,
    short,
    signed_out,
)
from gatepost.dashboard.view import View
from gatepost.dashboard.visit import Answer, Page, Visit
from gatepost.edge.edge import Headers, Paint
from gatepost.edge.request import Refusal
from gatepost.renewal import outcasts
from gatepost.services import Services
from gatepost.settings import Config
from gatepost_authz.caller import TenantContext
from gatepost_authz.config import Resource
from gatepost_authz.issuers import IssuerRegistry


class Rooms(msgspec.Struct, frozen=True):
    """The dashboard as the app has it."""

    routes: tuple[Route, ...]
    """The last of them takes every other path below the base."""
    paint: Paint
    """Draws what Edge refuses, or what went wrong, for those who look at the dashboard."""


def rooms(config: Config, services: Services, resource: Resource) -> Rooms:
    """The dashboard that *config* asks for."""
    assets = Assets()
    around = surroundings(config, services, resource, View(assets.path))
    place, view = around.place, around.view
    gateway = Gateway(
        place=place,
        parties=_parties(config, services),
        bouncer=Bouncer(
            services.verifier,
            services.keys,
            baseline=frozenset(config.scopes.baseline),
            development=config.development,
        ),
        sessions=around.sessions,
        cookies=around.cookies,
        view=view,
        keyring=services.keyring,
        baseline=config.scopes.baseline,
        failed=services.flood.failed,
        slow_down=services.flood.slow_down,
        note=around.note,
    )

    def route(below: str, app: ASGIApp, methods: Sequence[str]) -> Route:
        guarded = Browser(app, resource=resource, development=config.development)
        return Route(place.pattern + below, guarded, methods=list(methods))

    leaving = Page(path="/sign-out", post=_sign_out, roles=frozenset())
    made = (
        *(
            route(page.path, Frame(page, around), _methods(page))
            for page in pages(config, services, view)
        ),
        route("/sign-out", Frame(leaving, around), ["POST"]),
        route("/sign-in", Door(choose, gateway), ["GET"]),
        route("/sign-in/start", Door(begin, gateway), ["GET"]),
        route("/callback", Door(finish, gateway), ["GET"]),
        route("/signed-out", Door(signed_out, gateway), ["GET"]),
        route(FOLDER + "/{digest}/{name}", assets, ["GET"]),
        route("/{rest:path}", Door(missing, gateway), ["GET"]),
    )
    return Rooms(made, _painter(place, view, guards_of(resource)))


def surroundings(
    config: Config, services: Services, resource: Resource, view: View
) -> Surroundings:
    """What every page of the dashboard has around it."""
    return Surroundings(
        place=Place(resource),
        sessions=Sessions(
            services.keyring,
            services.records,
            lasts_s=config.dashboard.session_s,
            idle_s=config.dashboard.idle_s,
            meaning_of=_meanings(config, services),
        ),
        cookies=Cookies(resource),
        view=view,
        own=Own(resource),
        streams=services.streams,
        max_body_bytes=config.limits.max_body_bytes,
        note=_note(services),
    )


def _painter(place: Place, view: View, guards: Sequence[Header]) -> Paint:
    def paint(path: str, refusal: Refusal, request_id: str) -> tuple[bytes, Headers] | None:
        spot = place.locate(path)
        if spot is None:
            return None
        title = "Out of order" if refusal.status >= 500 else "This was refused"
        turned = Turned(refusal.status, title, f"{refusal.message} (request {request_id})")
        html = view.bare("error.html", spot.base, turned=turned, back=spot.base)
        return html.encode(), tuple(guards)

    return paint


def _methods(page: Page) -> list[str]:
    return [name for name, handler in (("GET", page.get), ("POST", page.post)) if handler]


async def _sign_out(visit: Visit) -> Answer:
    return Answer(signs_out=True)


def _parties(config: Config, services: Services) -> Callable[[Spot], Mapping[str, Party]]:
    """The issuers where somebody can sign in to a dashboard, made once."""
    issuers, known = services.issuers, dict[str, Party | None]()
    clients = [issuer.dashboard for issuer in config.issuers if issuer.dashboard]
    secrets = {client.client_secret: resolve(client.client_secret) for client in clients}

    def party(issuer: str) -> Party | None:
        found = issuers.find(issuer)
        if found is None or found[0].settings.dashboard is None:
            return None
        client = found[0].settings.dashboard
        return Party(
            issuer,
            found[0],
            client,
            fetcher=services.fetcher,
            discovery=services.keys.discovery,
            secret=secrets[client.client_secret],
        )

    def of(spot: Spot) -> Mapping[str, Party]:
        made = {}
        for issuer in issuers.for_tenant(spot.target.tenant):
            if issuer not in known:
                known[issuer] = party(issuer)
            one = known[issuer]
            if one is not None:
                made[short(issuer)] = one
        return made

    return of


def _meanings(config: Config, services: Services) -> Callable[[TenantContext], bytes | None]:
    """
    By which settings a visitor's token was read; None for whoever may not be here any more.

    A session outlives the check of its token. Whoever might be judged differently now signs in
    anew, and whoever was cut off is out at once.
    """
    issuers: IssuerRegistry = services.issuers
    is_out, is_cut = outcasts(config, issuers), services.cutoffs.is_cut
    meanings = {
        trusted.settings.issuer: digest(
            trusted.settings, config.resource, config.mode, config.scopes.implied
        )
        for trusted in issuers.issuers
        if trusted.settings.dashboard is not None
    }

    def meaning_of(caller: TenantContext) -> bytes | None:
        if is_cut(caller) or is_out(caller):
            return None
        found = issuers.find(caller.issuer)
        return meanings.get(found[0].settings.issuer) if found else None

    return meaning_of


def _note(services: Services) -> Callable[[str, TenantContext, str], Awaitable[None]]:
    async def note(outcome: str, caller: TenantContext, peer: str) -> None:
        await services.journal.note(
            caller.tenant_id,
            "signin",
            outcome=outcome,
            caller=caller,
            peer=peer,
            details={"at": "dashboard"},
        )

    return note
