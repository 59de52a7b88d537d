"""Authlib's framework-neutral authorization server, with this issuer's memory behind it."""
# mypy: disallow-subclassing-any=False

import base64
import binascii
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from authlib.common.urls import add_params_to_uri  # type: ignore[import-untyped]
from authlib.oauth2 import rfc6749  # type: ignore[import-untyped]
from authlib.oauth2.rfc6749.requests import (  # type: ignore[import-untyped]
    BasicOAuth2Payload,
)

from gatepost_keys.imitation import Imitation
from gatepost_keys.imitation.errors import error_body, written_as
from gatepost_keys.issuer.audience import InvalidTarget, resource_of
from gatepost_keys.issuer.authlib_records import RefreshToken, RegisteredClient
from gatepost_keys.issuer.resource_indicators import Resources
from gatepost_keys.issuer.state import DevelopmentIssuer
from gatepost_keys.mint import AccessTokenClaims

OPENID = "openid"
IDENTITY = frozenset({OPENID, "profile", "email", "offline_access"})
"""Scopes that are about the person and not about a resource; they are in no access token."""


class RequestForm(msgspec.Struct, frozen=True):
    """One request's parameters, each at most once, but for `resource` (RFC 8707 section 2)."""

    method: str
    url: str
    values: Mapping[str, str]
    resources: tuple[str, ...] = ()
    authorization: str | None = None


class IssuerResponse(msgspec.Struct, frozen=True):
    """The response to send: a JSON body, or a redirect if *location* is set."""

    status: int
    body: Mapping[str, Any]
    headers: Mapping[str, str]
    location: str = ""


class AuthlibPayload(BasicOAuth2Payload):
    """The parameters as Authlib reads them."""

    @property
    def scope(self) -> str | None:
        """
        Return the scope without `offline_access` and the scopes of OpenID Connect.

        Here every authorization yields a refresh token, and none of these means anything to a
        resource.
        """
        value: str | None = self.data.get("scope")
        return value and " ".join(name for name in value.split() if name not in IDENTITY)

    @property
    def identity(self) -> str:
        """Return the scopes about the person."""
        requested = str(self.data.get("scope", "")).split()
        offline = ["offline_access"] if self.data.get("access_type") == "offline" else []
        return " ".join(dict.fromkeys(name for name in [*requested, *offline] if name in IDENTITY))


class ClientRequest(rfc6749.OAuth2Request):
    """A request as Authlib's grants read it."""

    def __init__(self, form: RequestForm) -> None:
        headers = {"Authorization": form.authorization} if form.authorization else {}
        super().__init__(form.method, form.url, headers=headers)
        self.payload = AuthlibPayload(dict(form.values))
        self.resources = form.resources
        self.resource = ""
        self.named = client_named(form)

    @property
    def args(self) -> Mapping[str, str]:
        return self.form

    @property
    def form(self) -> Mapping[str, str]:
        values: Mapping[str, str] = self.payload.data
        return values


class AuthorizationServer(rfc6749.AuthorizationServer):
    """The grants' view of an issuer: its clients and its tokens."""

    def __init__(self, issuer: DevelopmentIssuer) -> None:
        super().__init__()
        self.issuer = issuer
        self.shape = issuer.settings.imitation
        self.resources = Resources(issuer.settings.resources)

    def answer(
        self, form: RequestForm, respond: Callable[[RequestForm], IssuerResponse]
    ) -> IssuerResponse:
        """Call *respond* for a client that authenticates in at most one way."""
        try:
            check_authentication(form)
            return respond(form)
        except rfc6749.OAuth2Error as error:
            return self.handle_error_response(form, error)

    def target(self, request: ClientRequest) -> str:
        """Return the one resource that an authorization is for; InvalidTarget otherwise."""
        return resource_of(self.shape, self.resources, request.form, request.resources)

    def check_target(self, request: ClientRequest, granted: str) -> None:
        """Check that a token request names no other resource than the granted one."""
        ignored = self.shape.audience in {"configured", "scope"}
        other_targets = (
            target for target in request.resources if self.resources.find(target) != granted
        )
        if not ignored and any(other_targets):
            raise InvalidTarget("The authorization was for another resource")

    def issue(
        self, record: RefreshToken, scope: str, *, refresh: bool, token_format: str = ""
    ) -> dict[str, object]:
        """
        Return a token answer (RFC 6749 section 5.1); the refresh token keeps the record's scope.
        """
        person, shape = record.sign_in.person, self.shape
        grant = AccessTokenClaims(
            issuer=self.issuer.settings.identifier(person.tenant),
            person=person,
            client_id=record.client_id,
            resource=record.resource,
            scopes=scopes_in_token(shape, record, scope),
            imitation=shape,
            auth_time=record.sign_in.auth_time,
            acr=record.sign_in.acr,
        )
        body: dict[str, object] = {
            "access_token": self.issuer.access_token(grant, record.family, token_format),
            "token_type": "Bearer",
            "expires_in": self.issuer.settings.token_lifetime_s,
            "scope": f"{record.identity} {scope}".strip() if shape.identity_scopes else scope,
        }
        if refresh:
            body["refresh_token"] = self.issuer.refresh_token(record)
        return body

    # The methods that Authlib requires of an integration.

    def query_client(self, client_id: str) -> RegisteredClient | None:
        return self.issuer.client(client_id)

    def save_token(self, token: Mapping[str, object], request: ClientRequest) -> None:
        """Do nothing; `issue` has already stored the token."""

    def send_signal(self, name: str, *args: object, **kwargs: object) -> None:
        """Do nothing; there are no signals."""

    def create_oauth2_request(self, request: RequestForm | ClientRequest) -> ClientRequest:
        return request if isinstance(request, ClientRequest) else ClientRequest(request)

    def handle_response(
        self, status: int, body: Any, headers: list[tuple[str, str]]
    ) -> IssuerResponse:
        response_headers = dict(headers)
        location = response_headers.pop("Location", "")
        if location:
            # RFC 9207: every authorization response, errors included, names its issuer. Otherwise a
            # client of several issuers could be made to send this code to another one.
            sender = self.issuer.settings.identifiers[0]
            if self.shape.names_itself:
                location = add_params_to_uri(location, {"iss": sender})
            return IssuerResponse(status, {}, {}, location)
        return IssuerResponse(status, body, {"Cache-Control": "no-store", "Pragma": "no-cache"})

    def handle_error_response(self, request: object, error: rfc6749.OAuth2Error) -> IssuerResponse:
        resource = error.requested if isinstance(error, InvalidTarget) else ""
        is_known_client = self._knows_client(request)
        written = written_as(self.shape, error, is_known_client=is_known_client, resource=resource)
        if error.redirect_uri:
            error.error, error.description = written.error, written.description
            answer: IssuerResponse = super().handle_error_response(request, error)
            return answer
        headers = {"Cache-Control": "no-store", "Pragma": "no-cache"}
        if written.status == 401:
            headers["WWW-Authenticate"] = 'Basic realm="Gatepost development issuer"'
        return IssuerResponse(
            written.status, error_body(self.shape, written, self.issuer.now()), headers
        )

    def _knows_client(self, request: object) -> bool:
        """Return whether the client that a token request names exists."""
        client_id = client_named(request) if isinstance(request, RequestForm) else ""
        if isinstance(request, ClientRequest):
            client_id = request.named
        return self.query_client(client_id) is not None


def check_authentication(form: RequestForm) -> None:
    """Refuse what Authlib cannot read, and clients that authenticate twice (RFC 6749 2.3)."""
    if form.authorization is None:
        return
    scheme, _, credentials = form.authorization.partition(" ")
    if scheme.lower() != "basic":
        raise rfc6749.InvalidClientError()
    try:
        name = basic_client(credentials)
    except (binascii.Error, ValueError):
        raise rfc6749.InvalidClientError() from None
    if "client_secret" in form.values or form.values.get("client_id", name) != name:
        raise rfc6749.InvalidRequestError("Authenticate the client in one way only")


def basic_client(credentials: str) -> str:
    """Return the client id in the credentials of a Basic header; ValueError if there is none."""
    return base64.b64decode(credentials.strip(), validate=True).decode().partition(":")[0]


def client_named(form: RequestForm) -> str:
    """Return the client id that a request names, in its header or its form."""
    if form.authorization is not None:
        with suppress(ValueError):
            return basic_client(form.authorization.partition(" ")[2])
    return form.values.get("client_id", "")


def scopes_in_token(shape: Imitation, record: RefreshToken, scope: str) -> str:
    """Return the scopes as the access token lists them."""
    prefix = shape.scope_form.format(resource=record.resource, scope="")
    requested = [*(record.identity.split() if shape.identity_scopes else []), *scope.split()]
    if shape.scope_short:
        requested = [name.removeprefix(prefix) for name in requested]
    names = (shape.scope_names.get(name, name) for name in requested)
    return " ".join(dict.fromkeys(name for name in names if name))
