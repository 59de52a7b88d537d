"""The parts of one imitation; the defaults are the behaviour of the development issuer itself."""

from collections.abc import Mapping
from typing import Literal

import msgspec

OPENID_APPENDED = "{issuer}/.well-known/openid-configuration"
OAUTH_APPENDED = "{issuer}/.well-known/oauth-authorization-server"
OPENID_INSERTED = "/.well-known/openid-configuration{issuer}"
OAUTH_INSERTED = "/.well-known/oauth-authorization-server{issuer}"
DISCOVERY = (OAUTH_INSERTED, OPENID_INSERTED, OPENID_APPENDED, OAUTH_APPENDED)
"""Where clients look for metadata; RFC 8414 inserts before the path, OpenID Connect appends."""

ENDPOINTS: Mapping[str, str] = {
    "authorization": "/authorize",
    "token": "/token",
    "jwks": "/jwks",
    "registration": "/register",
    "introspection": "/introspect",
    "revocation": "/revoke",
}
ACCESS: Mapping[str, object] = {
    "iss": "$iss",
    "sub": "$username",
    "aud": "$resource",
    "exp": "$exp",
    "iat": "$iat",
    "jti": "$jti",
    "client_id": "$client",
    "org_id": "$tenant",
    "scope": "$scope",
    "roles": "$roles",
    "email": "$email",
    "name": "$name",
    "auth_time": "$auth_time",
    "acr": "$acr",
}
IDENTITY: Mapping[str, object] = {
    "iss": "$iss",
    "sub": "$username",
    "aud": "$client",
    "exp": "$exp",
    "iat": "$iat",
    "org_id": "$tenant",
    "nonce": "$nonce",
    "at_hash": "$at_hash",
    "name": "$name",
    "email": "$email",
    "auth_time": "$auth_time",
    "acr": "$acr",
}
ERROR: Mapping[str, object] = {"error": "$error", "error_description": "$description"}

AudienceRule = Literal[
    "default_resource", "resource", "audience", "configured", "scope", "matching_scope"
]


class ErrorShape(msgspec.Struct, frozen=True, kw_only=True):
    """How a provider writes one error. Empty members stay as the development issuer has them."""

    error: str = ""
    description: str = ""
    """`{asked}` stands for the resource that the client asked for."""
    status: int = 0
    code: int = 0
    """The provider's own number of the error (AADSTS)."""
    body: Mapping[str, object] = {}
    """The answer's members, if they differ from the provider's other errors."""


class Imitation(msgspec.Struct, frozen=True, kw_only=True):
    """
    How one provider issues tokens, as far as its documentation differs from the development issuer.

    Claims, introspection responses and error bodies are templates. A value `$name` is replaced by
    the fact of that name, `{name}` inside a text by its text, and a member without a value is left
    out. `imitation/facts.py` lists the facts.
    """

    name: str
    sources: Mapping[str, str] = {}
    """The page or source file that documents each field, by the field's name."""

    # Addresses, each behind the development issuer's own path.
    issuer: str = ""
    """The end of the issuer's path; `{org}` is the tenant as the provider spells it."""
    discovery: tuple[str, ...] = DISCOVERY
    """Where the metadata are; `{issuer}` stands for the issuer's path without a trailing slash."""
    endpoints: Mapping[str, str] = msgspec.field(default_factory=lambda: ENDPOINTS)
    """The endpoints by name; a missing one does not exist."""
    metadata_lacks: frozenset[str] = frozenset()
    """Metadata members that the provider does not publish."""
    scopes_supported: tuple[str, ...] = ()
    """The scopes that the metadata list; empty: all that exist."""
    names_itself: bool = True
    """Authorization responses name their issuer (RFC 9207)."""

    # Signatures.
    algorithm: str = "RS256"
    access_type: str = "at+jwt"
    """The `typ` of access tokens; empty: the header has none."""
    identity_type: str = "JWT"
    """The `typ` of ID tokens; empty: the header has none."""
    key_lacks: frozenset[str] = frozenset()
    """Members that published keys do not have."""
    next_key: bool = False
    """The key that will sign next is published before it signs."""
    identity_key: Literal["same", "other"] = "same"
    """`other`: ID tokens are signed with another key than access tokens."""

    # Tokens.
    person: Mapping[str, object] = msgspec.field(default_factory=lambda: ACCESS)
    """The access token of a person."""
    machine: Mapping[str, object] = msgspec.field(default_factory=lambda: ACCESS)
    """The access token of a client that speaks for itself; empty: there are none."""
    identity: Mapping[str, object] = msgspec.field(default_factory=lambda: IDENTITY)
    """The ID token."""
    introspection: Mapping[str, object] = {}
    """The introspection response; empty: the claims of the access token."""
    tokeninfo: bool = False
    """The introspection endpoint is Google's: no client, texts for numbers, 400 if inactive."""
    opaque: Literal["never", "on request", "always"] = "on request"
    """Whether access tokens can be opaque, with an endpoint that says what they mean."""
    unbound_opaque: bool = False
    """A token that is for no API is opaque, and nothing but the provider can use it."""
    opaque_prefix: str = ""
    refresh: Literal["always", "offline_access", "access_type"] = "always"
    """The scope that a client requests to get a refresh token."""
    refresh_rotates: bool = True
    """Every refresh gives a new refresh token and ends the old one."""

    # Audience and scopes.
    audience: AudienceRule = "default_resource"
    """
    The rule that decides whether a token is for the resource: `resource` (RFC 8707), `audience`
    (Auth0's parameter, or `resource`), the provider's configuration, a scope that names the API, or
    a scope that begins with the resource and that `resource` has to match.
    """
    api: str = "$resource"
    """The provider's id of our API, for templates."""
    other_api: str = ""
    """The audience of a token that is for no API of ours."""
    scope_form: str = "{scope}"
    """How a client asks for a scope of the resource."""
    scope_short: bool = False
    """The token has the scope without what `scope_form` puts before it."""
    api_scopes: tuple[str, ...] = ()
    """The scopes of the API, if they are not those of the tools."""
    machine_scope: str = ""
    """The only scope that a machine asks for."""
    unknown_scopes: Literal["leave out", "ignore", "refuse"] = "leave out"
    """`leave out` refuses a request whose scopes are all unknown, `ignore` grants it none."""
    identity_scopes: bool = False
    """Access tokens list `openid` and the other scopes about the person."""
    scope_names: Mapping[str, str] = {}
    """Scopes that the provider spells differently in tokens; an empty name is left out."""

    # Clients, tenants and roles.
    public_clients: bool = True
    """A client on a person's computer has no secret."""
    sign_in_scopes: tuple[str, ...] = ()
    """Scopes that every client has to ask for; `{api}` stands for the id of our API."""
    client: str = "{name}"
    """How the provider spells client ids."""
    org: str = "{name}"
    """How the provider spells tenants."""
    tenant_claim: str = ""
    """The claim with the tenant; empty: tokens name none, so that there is one tenant only."""
    roles_claim: str = ""
    """The claim with a person's roles; empty: tokens name none."""
    audiences: tuple[str, ...] = ()
    """Audiences that a resource server has to accept: `{api}`, or the client ids by `{clients}`."""

    # Errors.
    errors: Mapping[str, ErrorShape] = {}
    """By OAuth's code; `authorize.CODE` for the redirect, `unknown_client` for an unknown id."""
    error_body: Mapping[str, object] = msgspec.field(default_factory=lambda: ERROR)
    """The members of an error answer."""

    @property
    def has_tenants(self) -> bool:
        """Return whether tokens can belong to several tenants."""
        return bool(self.tenant_claim)


DEVELOPMENT = Imitation(name="development", tenant_claim="org_id", roles_claim="roles")
"""The development issuer as it is without `--as`."""
