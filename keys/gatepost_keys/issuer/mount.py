"""Mount the issuer's routes under absolute paths, or serve the issuer as an app of its own."""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gatepost_keys.imitation import DEVELOPMENT
from gatepost_keys.issuer import (
    authorize,
    consent,
    introspect,
    jwks,
    metadata,
    pages,
    register,
    revoke,
    rotate,
    signin,
    token,
    token_grants,
)
from gatepost_keys.issuer.authorization_server import AuthorizationServer
from gatepost_keys.issuer.issuer_endpoint import AllowedOrigins, IssuerEndpoint, RouteHandler
from gatepost_keys.issuer.settings import MOUNT, IssuerSettings
from gatepost_keys.issuer.state import DevelopmentIssuer


def routes(subject: IssuerSettings | DevelopmentIssuer) -> list[Route]:
    """
    Return every path of the issuer, absolute, for the app on whose origin it lives.

    Given settings a new Issuer is made; given an Issuer the caller keeps it, to rotate its keys or
    look into it.
    """
    issuer = subject if isinstance(subject, DevelopmentIssuer) else DevelopmentIssuer(subject)
    settings = issuer.settings
    server = AuthorizationServer(issuer)
    token_grants.register(server)
    page_renderer = pages.Pages()

    def route(path: str, audience: AllowedOrigins, **handlers: RouteHandler) -> Route:
        return Route(path, IssuerEndpoint(settings, audience, handlers))

    public, local = AllowedOrigins.PUBLIC, AllowedOrigins.LOCAL
    own_origin = AllowedOrigins.ISSUER_PAGES
    answers: dict[str, tuple[AllowedOrigins, dict[str, RouteHandler]]] = {
        "authorization": (own_origin, {"GET": authorize.serve(server, page_renderer)}),
        "token": (local, {"POST": token.serve(server)}),
        "jwks": (public, {"GET": jwks.serve(issuer)}),
        "registration": (local, {"POST": register.serve(issuer)}),
        "introspection": (local, {"POST": introspect.serve(server)}),
        "revocation": (local, {"POST": revoke.serve(server)}),
    }
    documents = [
        route(path, public, GET=metadata.serve(settings, identifier))
        for path, identifier in metadata.paths(settings).items()
    ]
    missing = [
        route(path, public, GET=metadata.absent, POST=metadata.absent)
        for path in metadata.absent_paths(settings)
    ]
    # An imitation leaves out endpoints that its provider does not have.
    endpoints = [
        route(path, answers[name][0], **answers[name][1])
        for name in answers
        if (path := settings.path(name)) is not None
    ]
    return [
        *documents,
        *endpoints,
        *missing,
        route(pages.STYLE_PATH, public, GET=pages.style()),
        route(f"{MOUNT}/rotate", local, POST=rotate.serve(server)),
        route(f"{MOUNT}/sign-in", own_origin, POST=signin.serve(server, page_renderer)),
        route(f"{MOUNT}/consent", own_origin, POST=consent.serve(server, page_renderer)),
        route(MOUNT, own_origin, GET=front_page(issuer, page_renderer)),
    ]


def app(subject: IssuerSettings | DevelopmentIssuer) -> Starlette:
    """Return the issuer alone, as `python -m gatepost_keys serve` runs it."""
    return Starlette(routes=routes(subject))


def front_page(issuer: DevelopmentIssuer, page_renderer: pages.Pages) -> RouteHandler:
    """Return the page at the issuer's URL, which explains the issuer and lists its users."""

    async def get(request: Request) -> Response:
        settings = issuer.settings
        values = {
            "issuer": settings.identifiers[0],
            "imitates": settings.imitation.name if settings.imitation != DEVELOPMENT else "",
            "resources": settings.resources,
            "scopes": settings.offered,
            "users": settings.people,
            "keys": settings.path("jwks"),
            "metadata": next(iter(metadata.paths(settings))),
        }
        return page_renderer.render("front", values)

    return get
