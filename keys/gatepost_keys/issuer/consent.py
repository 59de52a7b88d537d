"""Handle the two buttons of the consent page."""

from authlib.oauth2 import rfc6749  # type: ignore[import-untyped]
from starlette.requests import Request
from starlette.responses import Response

from gatepost_keys.issuer import wire
from gatepost_keys.issuer.authorization_server import AuthorizationServer
from gatepost_keys.issuer.authorize import UnusableRequest, decide, refuse, review
from gatepost_keys.issuer.browser_session import session_of
from gatepost_keys.issuer.issuer_endpoint import RouteHandler
from gatepost_keys.issuer.pages import Pages
from gatepost_keys.issuer.signin import expired, form_in


def serve(server: AuthorizationServer, pages: Pages) -> RouteHandler:
    """Answer the client with the user's decision about the request on the page."""
    issuer = server.issuer

    async def post(request: Request) -> Response:
        values = (await wire.form_of(request)).values
        query, session = values.get("query", ""), session_of(request, issuer)
        sign_in = session.sign_in
        if sign_in is None or not issuer.sealed(
            values.get("seal", ""), session.id, "consent", sign_in.person.username, query
        ):
            return expired(pages)
        try:
            # Checked again, because the client may have been removed between page and button.
            checked = review(server, form_in(query, request))
        except (UnusableRequest, rfc6749.OAuth2Error) as error:
            return refuse(server, pages, error)
        if not checked.satisfied(sign_in, issuer.now()):
            return expired(pages)
        allowed = values.get("decision") == "allow"
        return decide(server, checked, sign_in if allowed else None)

    return post
