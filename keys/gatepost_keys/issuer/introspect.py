"""The introspection endpoint (RFC 7662)."""
# mypy: disallow-subclassing-any=False

from authlib.oauth2 import rfc7662  # type: ignore[import-untyped]
from authlib.oauth2.rfc6749 import InvalidRequestError  # type: ignore[import-untyped]
from starlette.requests import Request
from starlette.responses import Response

from gatepost_keys.issuer import wire
from gatepost_keys.issuer.authlib_records import AccessToken, RegisteredClient
from gatepost_keys.issuer.authorization_server import (
    AuthorizationServer,
    ClientRequest,
    IssuerResponse,
    RequestForm,
)
from gatepost_keys.issuer.issuer_endpoint import RouteHandler


class IntrospectionEndpoint(rfc7662.IntrospectionEndpoint):
    """Tells resource servers, and the client that has an access token, what the token means."""

    CLIENT_AUTH_METHODS = ["client_secret_basic", "client_secret_post"]
    server: AuthorizationServer

    def check_params(self, request: ClientRequest, client: RegisteredClient) -> None:
        """Check the parameters; the hint is ignored, as RFC 7662 section 2.1 allows."""
        if "token" not in request.form:
            raise InvalidRequestError("token is required")

    def query_token(self, token: str, hint: str | None) -> AccessToken | None:
        # A refresh token is never active here: a resource server that asks about any received token
        # would accept it as an access token.
        token_record = self.server.issuer.token_record(token)
        return token_record if isinstance(token_record, AccessToken) else None

    def check_permission(
        self, token: AccessToken, client: RegisteredClient, request: ClientRequest
    ) -> bool:
        return client.introspects or token.check_client(client)

    def create_introspection_payload(self, token: AccessToken | None) -> dict[str, object]:
        if token is None or not self.server.issuer.active(token):
            return {"active": False}
        return dict(token.described)


def serve(server: AuthorizationServer) -> RouteHandler:
    """Introspect a token for a client that authenticates with its secret."""
    if server.issuer.settings.imitation.tokeninfo:
        return tokeninfo(server)
    server.register_endpoint(IntrospectionEndpoint)

    def introspect(form: RequestForm) -> IssuerResponse:
        answer: IssuerResponse = server.create_endpoint_response(
            IntrospectionEndpoint.ENDPOINT_NAME, form
        )
        return answer

    async def post(request: Request) -> Response:
        return wire.response(server.answer(await wire.form_of(request), introspect))

    return post


def tokeninfo(server: AuthorizationServer) -> RouteHandler:
    """
    Answer as Google does: to any client, with texts for numbers, and 400 for an inactive token.
    """
    issuer = server.issuer

    async def post(request: Request) -> Response:
        values = (await wire.form_of(request)).values
        access_token = issuer.token_record(values.get("access_token", ""))
        if not isinstance(access_token, AccessToken) or not issuer.active(access_token):
            return wire.refuse("Invalid Value", error="invalid_token")
        lifetime = {"expires_in": int(access_token.expires_at - issuer.now())}
        answer = {**access_token.described, **lifetime}
        return wire.json({k: str(v) if type(v) is int else v for k, v in answer.items()})

    return post
