"""The issuer's routes, under absolute paths, and the issuer as an app of its own."""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gatepost_keys.issuer import (
    authorize,
    consent,
    grants,
    introspect,
    jwks,
    metadata,
    pages,
    register,
    revoke,
    rotate,
    signin,
    token,
)
from gatepost_keys.issuer.guard import AllowedOrigins, Handler, IssuerEndpoint
from gatepost_keys.issuer.server import AuthorizationServer
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
    grants.register(server)
    shown = pages.Pages()

    def route(path: str, audience: AllowedOrigins, **handlers: Handler) -> Route:
        return Route(path, IssuerEndpoint(settings, audience, handlers))

    described = metadata.serve(settings)
    return [
        *(route(path, AllowedOrigins.ANYBODY, GET=described) for path in metadata.PATHS),
        route(f"{MOUNT}/jwks", AllowedOrigins.ANYBODY, GET=jwks.serve(issuer)),
        route(pages.STYLE_PATH, AllowedOrigins.ANYBODY, GET=pages.style()),
        route(f"{MOUNT}/register", AllowedOrigins.LOCAL, POST=register.serve(issuer)),
        route(f"{MOUNT}/token", AllowedOrigins.LOCAL, POST=token.serve(server)),
        route(f"{MOUNT}/revoke", AllowedOrigins.LOCAL, POST=revoke.serve(server)),
        route(f"{MOUNT}/introspect", AllowedOrigins.LOCAL, POST=introspect.serve(server)),
        route(f"{MOUNT}/rotate", AllowedOrigins.LOCAL, POST=rotate.serve(server)),
        route(f"{MOUNT}/authorize", AllowedOrigins.OURSELVES, GET=authorize.serve(server, shown)),
        route(f"{MOUNT}/sign-in", AllowedOrigins.OURSELVES, POST=signin.serve(server, shown)),
        route(f"{MOUNT}/consent", AllowedOrigins.OURSELVES, POST=consent.serve(server, shown)),
        route(MOUNT, AllowedOrigins.OURSELVES, GET=front(issuer, shown)),
    ]


def app(subject: IssuerSettings | DevelopmentIssuer) -> Starlette:
    """Return the issuer alone, as `python -m gatepost_keys serve` runs it."""
    return Starlette(routes=routes(subject))


def front(issuer: DevelopmentIssuer, shown: pages.Pages) -> Handler:
    """Return the page at the issuer's URL, which explains the issuer and lists its users."""

    async def get(request: Request) -> Response:
        settings = issuer.settings
        values = {
            "issuer": settings.issuer,
            "resources": settings.resources,
            "scopes": settings.scopes,
            "users": settings.users,
            "metadata": metadata.PATHS[0],
        }
        return shown.render("front", values)

    return get
