"""Rotate keys on demand, as a provider does at night: for tests and curious people."""

from starlette.requests import Request
from starlette.responses import Response

from gatepost_keys.issuer import wire
from gatepost_keys.issuer.authorization_server import (
    AuthorizationServer,
    ClientRequest,
    IssuerResponse,
    RequestForm,
)
from gatepost_keys.issuer.issuer_endpoint import RouteHandler
from gatepost_keys.issuer.state import CLI_CLIENT

METHODS = ["client_secret_basic", "client_secret_post"]


def serve(server: AuthorizationServer) -> RouteHandler:
    """
    Rotate the keys for `gatepost-cli`; `remove_old=true` also removes the keys before the new one.
    """

    def rotate(form: RequestForm) -> IssuerResponse:
        client = server.authenticate_client(ClientRequest(form), METHODS)
        if client.client_id != CLI_CLIENT:
            return IssuerResponse(403, {"error": "unauthorized_client"}, {})
        kid = server.issuer.rotate(remove_old=form.values.get("remove_old") == "true")
        return IssuerResponse(200, {"kid": kid, "published": list(server.issuer.keys.ids)}, {})

    async def post(request: Request) -> Response:
        return wire.response(server.answer(await wire.form_of(request), rotate))

    return post
