"""The grants: Authlib's, with S256 for all clients, resources, rotation and reuse detection."""
# mypy: disallow-subclassing-any=False

import re

from authlib.oauth2 import rfc6749  # type: ignore[import-untyped]
from authlib.oauth2.rfc7636 import CodeChallenge  # type: ignore[import-untyped]
from authlib.oauth2.rfc7636.challenge import (  # type: ignore[import-untyped]
    compare_s256_code_challenge,
)

from gatepost_keys.issuer.authlib_records import IssuedCode, RefreshToken, RegisteredClient, SignIn
from gatepost_keys.issuer.authorization_server import OPENID, AuthorizationServer, ClientRequest
from gatepost_keys.issuer.state import digest
from gatepost_keys.issuer.terminal import MintGrant
from gatepost_keys.mint import Identity
from gatepost_keys.subject import TokenSubject

ALL_METHODS = ["none", "client_secret_basic", "client_secret_post"]
SECRET_METHODS = ["client_secret_basic", "client_secret_post"]
S256_CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
"""Base64url of a SHA-256 digest (RFC 7636 section 4.2)."""


class Pkce(CodeChallenge):
    """S256 and nothing else, for confidential clients too (OAuth 2.1 section 7.5)."""

    SUPPORTED_CODE_CHALLENGE_METHOD = ["S256"]
    DEFAULT_CODE_CHALLENGE_METHOD = "S256"
    CODE_CHALLENGE_METHODS = {"S256": compare_s256_code_challenge}

    def validate_code_challenge(self, grant: "CodeGrant", redirect_uri: str) -> None:
        """Require a challenge and S256; Authlib would accept requests without them."""
        values = grant.request.form
        if not S256_CHALLENGE.fullmatch(values.get("code_challenge", "")):
            raise rfc6749.InvalidRequestError("A code_challenge is required (RFC 7636)")
        if values.get("code_challenge_method") != "S256":
            raise rfc6749.InvalidRequestError("code_challenge_method must be S256")


class CodeGrant(rfc6749.AuthorizationCodeGrant):
    """Authorization code: bound to client, redirect address, challenge and resource; used once."""

    TOKEN_ENDPOINT_AUTH_METHODS = ALL_METHODS
    request: ClientRequest
    server: AuthorizationServer

    def validate_authorization_request(self) -> str:
        redirect_uri: str = super().validate_authorization_request()
        try:
            self.request.resource = self.server.target(self.request)
            if self.request.form.get("response_mode", "query") != "query":
                raise rfc6749.InvalidRequestError("response_mode must be query")
        except rfc6749.OAuth2Error as error:
            error.redirect_uri = redirect_uri
            raise
        return redirect_uri

    def save_authorization_code(self, code: str, request: ClientRequest) -> None:
        issuer = self.server.issuer
        record = IssuedCode(
            client_id=request.client.client_id,
            redirect_uri=request.payload.redirect_uri,
            scope=request.scope,
            resource=request.resource,
            code_challenge=request.form["code_challenge"],
            code_challenge_method="S256",
            sign_in=request.user,
            expires_at=issuer.now() + issuer.settings.code_lifetime_s,
            family=issuer.family(),
            identity=request.payload.identity,
            nonce=request.form.get("nonce", ""),
        )
        issuer.codes.put(digest(code), record)

    def query_authorization_code(self, code: str, client: RegisteredClient) -> IssuedCode | None:
        issuer = self.server.issuer
        record = issuer.codes.get(digest(code))
        if record is None:
            return None
        if record.used:
            # The code was copied. It is unknown which client was first, so the tokens of both are
            # revoked (RFC 6749 section 4.1.2).
            record.family.revoked = True
            return None
        stale = issuer.now() >= record.expires_at
        return None if stale or record.client_id != client.client_id else record

    def validate_token_request(self) -> None:
        super().validate_token_request()
        self.server.check_target(self.request, self.request.authorization_code.resource)

    def authenticate_user(self, authorization_code: IssuedCode) -> SignIn:
        return authorization_code.sign_in

    def delete_authorization_code(self, authorization_code: IssuedCode) -> None:
        authorization_code.used = True

    def generate_token(
        self, user: SignIn, scope: str, include_refresh_token: bool = True, **_: object
    ) -> dict[str, object]:
        code: IssuedCode = self.request.authorization_code
        record = RefreshToken(
            client_id=code.client_id,
            scope=scope,
            resource=code.resource,
            sign_in=user,
            family=code.family,
            identity=code.identity,
        )
        shape, scopes = self.server.shape, code.identity.split()
        refresh = include_refresh_token and (
            shape.refresh == "always" or "offline_access" in scopes
        )
        answer = self.server.issue(record, scope, refresh=refresh)
        if OPENID in scopes:
            identity = Identity(
                issuer=self.server.issuer.settings.identifier(user.person.tenant),
                imitation=shape,
                person=user.person,
                client_id=code.client_id,
                nonce=code.nonce,
                auth_time=user.auth_time,
                acr=user.acr,
            )
            token = str(answer["access_token"])
            answer["id_token"] = self.server.issuer.id_token(identity, token)
            if not shape.identity_scopes:
                answer["scope"] = f"{OPENID} {scope}".rstrip()
        return answer


class RefreshGrant(rfc6749.RefreshTokenGrant):
    """Refresh: every use yields a new refresh token, and a second use ends the family."""

    TOKEN_ENDPOINT_AUTH_METHODS = ALL_METHODS
    INCLUDE_NEW_REFRESH_TOKEN = True
    request: ClientRequest
    server: AuthorizationServer

    def authenticate_refresh_token(self, refresh_token: str) -> RefreshToken | None:
        issuer = self.server.issuer
        record = issuer.refresh_tokens.get(digest(refresh_token))
        if record is None:
            return None
        if record.used:
            # A thief or the client used it before; either way one of the two now holds a token
            # that the other should not have (RFC 9700 section 4.14.2).
            record.family.revoked = True
        is_over = record.family.revoked or issuer.now() >= record.family.expires_at
        return None if is_over else record

    def validate_token_request(self) -> None:
        super().validate_token_request()
        self.server.check_target(self.request, self.request.refresh_token.resource)

    def authenticate_user(self, refresh_token: RefreshToken) -> SignIn:
        return refresh_token.sign_in

    def generate_token(self, user: SignIn, scope: str, **_: object) -> dict[str, object]:
        old: RefreshToken = self.request.refresh_token
        fresh = RefreshToken(
            client_id=old.client_id,
            scope=old.scope,
            resource=old.resource,
            sign_in=user,
            family=old.family,
            identity=old.identity,
        )
        return self.server.issue(fresh, scope, refresh=self.server.shape.refresh_rotates)

    def revoke_old_credential(self, refresh_token: RefreshToken) -> None:
        refresh_token.used = self.server.shape.refresh_rotates


class MachineGrant(rfc6749.ClientCredentialsGrant):
    """
    Client credentials: the client itself is the subject, in the tenant for which it was registered.
    """

    TOKEN_ENDPOINT_AUTH_METHODS = SECRET_METHODS
    request: ClientRequest
    server: AuthorizationServer

    def validate_token_request(self) -> None:
        super().validate_token_request()
        self.request.resource = self.server.target(self.request)

    def generate_token(self, scope: str | None = None, **_: object) -> dict[str, object]:
        client: RegisteredClient = self.request.client
        granted = self._granted(client, scope)
        person = TokenSubject(
            username=client.client_id, name=client.name, tenant=client.tenant, machine=True
        )
        # No sign-in, so there is neither auth_time nor acr.
        record = RefreshToken(
            client_id=client.client_id,
            scope=granted,
            resource=self.request.resource,
            sign_in=SignIn(person=person, auth_time=0, acr=""),
            family=self.server.issuer.family(),
        )
        return self.server.issue(record, granted, refresh=False)

    def _granted(self, client: RegisteredClient, scope: str | None) -> str:
        shape, settings = self.server.shape, self.server.issuer.settings
        if shape.machine_scope:
            if scope != shape.machine_scope.format(resource=self.request.resource):
                raise rfc6749.OAuth2Error(error="machine_scope")
            # Programs have the permissions that an administrator granted them, and request none by
            # name.
            return " ".join([*settings.offered, *settings.scopes])
        granted = client.get_allowed_scope(scope)
        if granted is None:
            raise rfc6749.InvalidScopeError()
        return granted


def register(server: AuthorizationServer) -> None:
    """Teach *server* every grant there is."""
    server.register_grant(CodeGrant, [Pkce(required=True)])
    server.register_grant(RefreshGrant)
    server.register_grant(MachineGrant)
    server.register_grant(MintGrant)
