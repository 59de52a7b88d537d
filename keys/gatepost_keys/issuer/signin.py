"""Handle the buttons of the sign-in page."""

from authlib.oauth2 import rfc6749  # type: ignore[import-untyped]
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gatepost_keys.issuer import wire
from gatepost_keys.issuer.authorization_server import AuthorizationServer, RequestForm
from gatepost_keys.issuer.authorize import UnusableRequest, refuse, review
from gatepost_keys.issuer.browser_session import session_of, set_session_cookie, start
from gatepost_keys.issuer.issuer_endpoint import RouteHandler
from gatepost_keys.issuer.pages import Pages
from gatepost_keys.issuer.settings import ACR_VALUES


def form_in(query: str, request: Request) -> RequestForm:
    """Return the authorization request that a page carried in its form."""
    return wire.form_from(request, query.encode("ascii", "replace"))


def serve(server: AuthorizationServer, pages: Pages) -> RouteHandler:
    """Sign in the user of the button and continue with the authorization request."""
    issuer = server.issuer

    async def post(request: Request) -> Response:
        values = (await wire.form_of(request)).values
        query = values.get("query", "")
        session = session_of(request, issuer)
        if not issuer.sealed(values.get("seal", ""), session.id, "sign-in", query):
            # Another page may submit this form with a user of its choice (login CSRF).
            return expired(pages)
        person = issuer.settings.user(values.get("user", ""))
        if person is None:
            return pages.refusal("No user has that name", "Choose one of the users on the page.")
        try:
            acr = review(server, form_in(query, request)).acr or ACR_VALUES[0]
        except (UnusableRequest, rfc6749.OAuth2Error) as error:
            return refuse(server, pages, error)
        signed_in = start(issuer, issuer.sign_in(person, acr))
        # The path is ours and fixed: the query cannot lead anywhere else.
        redirect = RedirectResponse(f"{issuer.settings.path('authorization')}?{query}", 303)
        return set_session_cookie(redirect, signed_in, issuer)

    return post


def expired(pages: Pages) -> Response:
    """Return the answer to a form that this browser was not shown, or not since the last start."""
    return pages.refusal(
        "This page is no longer good",
        "The form does not belong to this browser, or the issuer was restarted since it was shown.",
        status=403,
        hint="Go back to the application and connect again.",
    )
