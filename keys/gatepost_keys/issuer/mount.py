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
from gatepost_keys.issuer.guard import Audience, Guard, Handler
from gatepost_keys.issuer.server import Server
from gatepost_keys.issuer.settings import MOUNT, IssuerSettings
from gatepost_keys.issuer.state import Issuer


def routes(subject: IssuerSettings | Issuer) -> list[Route]:
    """
    Every path of the issuer, absolute, for the app on whose origin it lives.

    Given settings a new Issuer is made; given an Issuer the caller keeps it, to rotate its keys or
    look into it.
    """
    issuer = subject if isinstance(subject, Issuer) else Issuer(subject)
    settings = issuer.settings
    server = Server(issuer)
    grants.register(server)
    shown = pages.Pages()

    def route(path: str, audience: Audience, **handlers: Handler) -> Route:
        return Route(path, Guard(settings, audience, handlers))

    described = metadata.serve(settings)
    return [
        *(route(path, Audience.ANYBODY, GET=described) for path in metadata.PATHS),
        route(f"{MOUNT}/jwks", Audience.ANYBODY, GET=jwks.serve(issuer)),
        route(pages.STYLE_PATH, Audience.ANYBODY, GET=pages.style()),
        route(f"{MOUNT}/register", Audience.LOCAL, POST=register.serve(issuer)),
        route(f"{MOUNT}/token", Audience.LOCAL, POST=token.serve(server)),
        route(f"{MOUNT}/revoke", Audience.LOCAL, POST=revoke.serve(server)),
        route(f"{MOUNT}/introspect", Audience.LOCAL, POST=introspect.serve(server)),
        route(f"{MOUNT}/rotate", Audience.LOCAL, POST=rotate.serve(server)),
        route(f"{MOUNT}/authorize", Audience.OURSELVES, GET=authorize.serve(server, shown)),
        route(f"{MOUNT}/sign-in", Audience.OURSELVES, POST=signin.serve(server, shown)),
        route(f"{MOUNT}/consent", Audience.OURSELVES, POST=consent.serve(server, shown)),
        route(MOUNT, Audience.OURSELVES, GET=front(issuer, shown)),
    ]


def app(subject: IssuerSettings | Issuer) -> Starlette:
    """The issuer alone, as `python -m gatepost_keys serve` runs it."""
    return Starlette(routes=routes(subject))


def front(issuer: Issuer, shown: pages.Pages) -> Handler:
    """A page for whoever opens the issuer's URL: what this is, and who may sign in."""

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
