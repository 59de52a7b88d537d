"""The token endpoint (RFC 6749 section 3.2)."""

from starlette.requests import Request
from starlette.responses import Response

from gatepost_keys.issuer import wire
from gatepost_keys.issuer.authorization_server import AuthorizationServer
from gatepost_keys.issuer.issuer_endpoint import RouteHandler


def serve(server: AuthorizationServer) -> RouteHandler:
    """Answer requests for authorization codes, refresh tokens, client credentials and minting."""

    async def post(request: Request) -> Response:
        form = await wire.form_of(request)
        if "grant_type" not in form.values:
            return wire.refuse("grant_type is required")
        return wire.response(server.answer(form, server.create_token_response))

    return post
