"""The grant behind `gatepost token`: a token at a command line, without a browser."""
# mypy: disallow-subclassing-any=False

from authlib.oauth2 import rfc6749  # type: ignore[import-untyped]

from gatepost_keys.issuer.audience import named
from gatepost_keys.issuer.authlib_records import RefreshToken
from gatepost_keys.issuer.authorization_server import AuthorizationServer, ClientRequest
from gatepost_keys.issuer.settings import TENANT
from gatepost_keys.issuer.state import MINT_GRANT
from gatepost_keys.subject import TokenSubject


class MintGrant(rfc6749.BaseGrant, rfc6749.TokenEndpointMixin):
    """
    The grant behind `gatepost token`: a token for any tenant and subject, for `gatepost-cli` alone.

    Parameters: `tenant`; `subject` (default: the tenant's first user); `scope`; `resource`;
    `access_token_format`, `jwt` or `opaque`. Unlike elsewhere an unknown scope is refused:
    no client reads the answer's `scope` at a command line.
    """

    GRANT_TYPE = MINT_GRANT
    TOKEN_ENDPOINT_AUTH_METHODS = ["client_secret_basic", "client_secret_post"]
    request: ClientRequest
    server: AuthorizationServer

    def validate_token_request(self) -> None:
        self.request.client = self.authenticate_token_endpoint_client()
        if not self.request.client.check_grant_type(self.GRANT_TYPE):
            raise rfc6749.UnauthorizedClientError()
        resources = self.server.resources
        # Asked by its own name under every imitation: a command line imitates no provider.
        self.request.resource = named(self.request.resources, resources, default=resources.default)
        self.request.user = self._person()
        settings = self.server.issuer.settings
        if unknown := settings.unknown((self.request.payload.scope or "").split()):
            raise rfc6749.InvalidScopeError(
                f"No such scope: {description_text(' '.join(unknown))}. "
                f"There are: {description_text(' '.join(settings.scopes)) or 'none'}"
            )
        if self.request.form.get("access_token_format", "jwt") not in {"jwt", "opaque"}:
            raise rfc6749.InvalidRequestError("access_token_format is jwt or opaque")

    def create_token_response(self) -> tuple[int, dict[str, object], list[tuple[str, str]]]:
        request = self.request
        scope = self._spelled(request.payload.scope or "")
        record = RefreshToken(
            client_id=self.server.issuer.settings.token_client or request.client.client_id,
            scope=scope,
            resource=request.resource,
            sign_in=self.server.issuer.sign_in(request.user),
            family=self.server.issuer.family(),
        )
        requested_format = request.form.get("access_token_format", "")
        body = self.server.issue(record, scope, refresh=False, token_format=requested_format)
        return 200, body, self.TOKEN_RESPONSE_HEADER

    def _spelled(self, scope: str) -> str:
        """Return the scopes of the tools as clients of the provider ask for them."""
        settings, shape = self.server.issuer.settings, self.server.shape
        if shape.api_scopes:
            return " ".join(settings.offered)
        form, resource = shape.scope_form, self.request.resource
        return " ".join(form.format(resource=resource, scope=name) for name in scope.split())

    def _person(self) -> TokenSubject:
        values, users = self.request.form, self.server.issuer.settings.users
        tenant, subject = values.get("tenant", ""), values.get("subject", "")
        if not TENANT.fullmatch(tenant):
            raise rfc6749.InvalidRequestError(
                "tenant is required: lower-case letters, digits, - and _"
            )
        if len(subject) > 255 or not subject.isprintable():
            raise rfc6749.InvalidRequestError("subject is too long or not printable")
        if not self.server.shape.has_tenants and tenant not in self.server.issuer.settings.tenants:
            tenants = ", ".join(self.server.issuer.settings.tenants)
            raise rfc6749.InvalidRequestError(
                f"Tokens of {self.server.shape.name} name no tenant, so there is only: {tenants}"
            )
        at_tenant = [person for person in users if person.tenant == tenant]
        for person in at_tenant:
            if subject in {"", person.username}:
                return person
        return TokenSubject(username=subject or "dev", tenant=tenant)


def description_text(text: str) -> str:
    """Return *text* restricted to the characters of an error description (RFC 6749 section 5.2)."""
    return "".join(char if " " <= char <= "~" and char not in '"\\' else "?" for char in text[:200])
