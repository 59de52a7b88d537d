"""The revocation endpoint (RFC 7009)."""
# mypy: disallow-subclassing-any=False

from authlib.oauth2 import rfc7009  # type: ignore[import-untyped]
from authlib.oauth2.rfc6749 import InvalidRequestError  # type: ignore[import-untyped]
from starlette.requests import Request
from starlette.responses import Response

from gatepost_keys.issuer import wire
from gatepost_keys.issuer.authlib_records import AccessToken, RefreshToken, RegisteredClient
from gatepost_keys.issuer.authorization_server import (
    AuthorizationServer,
    ClientRequest,
    IssuerResponse,
    RequestForm,
)
from gatepost_keys.issuer.issuer_endpoint import RouteHandler


class Revocation(rfc7009.RevocationEndpoint):
    """Revokes an access token, or with a refresh token all tokens of its sign-in."""

    CLIENT_AUTH_METHODS = ["none", "client_secret_basic", "client_secret_post"]
    server: AuthorizationServer

    def check_params(self, request: ClientRequest, client: RegisteredClient) -> None:
        """Check the parameters; the hint is ignored, as RFC 7009 section 2.1 allows."""
        if "token" not in request.form:
            raise InvalidRequestError("token is required")

    def query_token(self, token: str, hint: str | None) -> AccessToken | RefreshToken | None:
        return self.server.issuer.token_record(token)

    def revoke_token(self, token: AccessToken | RefreshToken, request: ClientRequest) -> None:
        if isinstance(token, AccessToken):
            token.revoked = True
        else:
            token.family.revoked = True


def serve(server: AuthorizationServer) -> RouteHandler:
    """Revoke a token; answer 200 for unknown tokens too."""
    server.register_endpoint(Revocation)

    def revoke(form: RequestForm) -> IssuerResponse:
        answer: IssuerResponse = server.create_endpoint_response(Revocation.ENDPOINT_NAME, form)
        return answer

    async def post(request: Request) -> Response:
        return wire.response(server.answer(await wire.form_of(request), revoke))

    return post
