"""The differences between identity providers, as data."""

from typing import Literal

import msgspec

ALGORITHMS = ("RS256", "PS256", "ES256", "EdDSA", "Ed25519")
REQUIRED = frozenset({"iss", "aud", "exp", "iat", "sub", "client_id", "jti"})
PRESENCE: frozenset[str] = frozenset()
OTHER_TOKENS = {
    # Nonces and hashes bind an ID token to one sign-in (OpenID Connect Core 1.0, 2 and 3.3.2.11):
    # an access token has no use for them, and an ID token must never open a resource.
    "nonce": PRESENCE,
    "at_hash": PRESENCE,
    "c_hash": PRESENCE,
    "s_hash": PRESENCE,
    # Back-channel logout tokens and security events (RFC 8417) are signed with the same keys.
    "events": PRESENCE,
    "typ": frozenset({"id", "refresh", "offline", "logout"}),
    "token_use": frozenset({"id", "refresh"}),
}
# authentik makes access tokens out of ID tokens and leaves nonce and hashes in.
NOT_ACCESS = {name: values for name, values in OTHER_TOKENS.items() if values or name == "events"}
STANDARD = frozenset({"iss", "aud", "exp", "iat", "sub"})
GUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """
    How one provider's access tokens differ from the RFC 9068 profile.

    Every default is the strict profile: a row names only where its provider departs from it.
    Where several claims are listed, the first that is present decides; they are never joined.
    """

    name: str
    documentation: str
    """Where the provider describes its tokens."""
    types: frozenset[str] = frozenset({"at+jwt"})
    """
    The accepted ``typ`` values, in lower case, without ``application/``; ``""`` if it may be
    absent.
    """
    algorithms: tuple[str, ...] = ALGORITHMS
    """The signature algorithms of its keys."""
    required: frozenset[str] = REQUIRED
    """Claims that must be present."""
    audience_claims: tuple[str, ...] = ("aud",)
    names_resource: bool = True
    """The provider can put our URL into the audience; if not, ``audiences`` must be settled."""
    client_as_audience: bool = False
    """If ``aud`` is absent, the client id must be one of the issuer's ``audiences``."""
    scope_claims: tuple[str, ...] = ("scope",)
    client_claims: tuple[str, ...] = ("client_id",)
    subject_claims: tuple[str, ...] = ("sub",)
    """The claims with the stable id of the subject."""
    token_id_claims: tuple[str, ...] = ("jti",)
    tenant_claim: str = ""
    """The claim with the organisation, unless the issuer's ``tenant`` rule names another."""
    forbidden: dict[str, frozenset[str]] = msgspec.field(default_factory=lambda: OTHER_TOKENS)
    """Payload members and lower-case values of other kinds of tokens; empty means any value."""
    must_equal: dict[str, str] = {}
    """Payload members that an access token always carries with this value."""
    client_markers: dict[str, str] = {}
    """Payload members that, with this value, say that the subject is a machine."""
    display_claims: tuple[str, ...] = ("name", "email", "preferred_username")
    """Claims for display; they have no effect on decisions."""
    opaque: bool = False
    """Whether access tokens may be opaque and are introspected (RFC 7662)."""
    introspection_form: Literal["rfc7662", "tokeninfo"] = "rfc7662"
    """``tokeninfo`` (Google): ``access_token`` is posted without a client, no ``active``."""
    introspection_endpoint: str = ""
    """The introspection endpoint, if the provider's metadata do not name it."""
    clients_without_subject: bool = False
    """Answers about a client that speaks for itself leave ``sub`` out."""
    issuer_pattern: str = ""
    """The template that a multi-tenant application's issuers follow."""
    segment_claim: str = ""
    """The claim that must equal what the template captured."""
    segment_pattern: str = r"[A-Za-z0-9_-]{1,64}"
    """What the captured segment may be, as a regular expression that must match fully."""
    discovery_paths: tuple[str, ...] = ()
    """Paths tried under the issuer after the standard ones."""
    key_hosts: tuple[str, ...] = ()
    """Hosts beside the issuer's own where its metadata may place its keys."""
    resource_parameter: Literal["resource", "audience", ""] = "resource"
    """
    How a sign-in names our resource: by RFC 8707, by Auth0's own parameter, or not at all, where
    the parameter is an error and a scope says it.
    """


PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            name="generic",
            documentation="https://www.rfc-editor.org/rfc/rfc9068",
        ),
        Preset(
            name="keycloak",
            documentation="https://www.keycloak.org/docs/latest/server_admin/",
            types=frozenset({"jwt", "at+jwt"}),
            required=STANDARD | {"azp", "jti", "typ"},
            client_claims=("azp",),
            tenant_claim="organization",
            # Its refresh tokens are signed JWTs as well; the payload says what a token is.
            must_equal={"typ": "Bearer"},
        ),
        Preset(
            name="auth0",
            documentation="https://auth0.com/docs/secure/tokens/access-tokens/access-token-profiles",
            types=frozenset({"jwt", "at+jwt"}),
            algorithms=("RS256", "PS256"),
            resource_parameter="audience",
            # `client_id` and `jti` come with its RFC 9068 profile only, `azp` with its own.
            required=STANDARD,
            client_claims=("client_id", "azp"),
            tenant_claim="org_id",
            client_markers={"gty": "client-credentials"},
        ),
        Preset(
            name="okta",
            documentation="https://developer.okta.com/docs/api/openapi/okta-oauth/guides/overview/",
            types=frozenset({"", "at+jwt"}),
            algorithms=("RS256",),
            required=STANDARD | {"cid", "jti"},
            scope_claims=("scp",),
            client_claims=("cid",),
            # `sub` is the login name, which an administrator can reassign.
            subject_claims=("uid", "sub"),
            discovery_paths=("/.well-known/oauth-authorization-server",),
        ),
        Preset(
            name="entra-v2",
            documentation="https://learn.microsoft.com/en-us/entra/identity-platform/access-token-claims-reference",
            types=frozenset({"jwt"}),
            algorithms=("RS256",),
            required=STANDARD | {"nbf", "tid", "ver", "azp"},
            names_resource=False,
            # Permissions of users stand in `scp`, those of programs in `roles`.
            scope_claims=("scp", "roles"),
            client_claims=("azp",),
            # `sub` differs from application to application for the same person.
            subject_claims=("oid", "sub"),
            token_id_claims=("uti",),
            tenant_claim="tid",
            must_equal={"ver": "2.0"},
            client_markers={"idtyp": "app"},
            issuer_pattern="https://login.microsoftonline.com/{tid}/v2.0",
            segment_claim="tid",
            segment_pattern=GUID,
            resource_parameter="",
        ),
        Preset(
            name="entra-v1",
            documentation="https://learn.microsoft.com/en-us/entra/identity-platform/access-token-claims-reference",
            types=frozenset({"jwt"}),
            algorithms=("RS256",),
            required=STANDARD | {"nbf", "tid", "ver", "appid"},
            scope_claims=("scp", "roles"),
            client_claims=("appid",),
            subject_claims=("oid", "sub"),
            token_id_claims=("uti",),
            tenant_claim="tid",
            must_equal={"ver": "1.0"},
            client_markers={"idtyp": "app"},
            issuer_pattern="https://sts.windows.net/{tid}/",
            key_hosts=("login.microsoftonline.com", "login.windows.net"),
            segment_claim="tid",
            segment_pattern=GUID,
            resource_parameter="",
            display_claims=("name", "email", "upn"),
        ),
        Preset(
            name="cognito",
            documentation="https://docs.aws.amazon.com/cognito/latest/developerguide/amazon-cognito-user-pools-using-the-access-token.html",
            types=frozenset({""}),
            algorithms=("RS256",),
            required=frozenset({"iss", "exp", "iat", "sub", "client_id", "jti", "token_use"}),
            # Only resource binding (Essentials and Plus) puts an `aud` into access tokens.
            client_as_audience=True,
            must_equal={"token_use": "access"},
            display_claims=("username",),
        ),
        Preset(
            name="google",
            documentation="https://developers.google.com/identity/protocols/oauth2",
            required=frozenset({"aud", "exp", "sub"}),
            names_resource=False,
            client_claims=("azp",),
            opaque=True,
            introspection_form="tokeninfo",
            introspection_endpoint="https://oauth2.googleapis.com/tokeninfo",
            display_claims=("email",),
        ),
        Preset(
            name="pingone",
            documentation="https://developer.pingidentity.com/pingone-api/foundations/authentication-concepts/access-tokens-and-id-tokens/token-claims.html",
            # `typ` is optional until 2 March 2027; `sub` is left out for programs.
            types=frozenset({"", "at+jwt"}),
            algorithms=("RS256",),
            required=frozenset({"iss", "aud", "exp", "iat", "client_id"}),
        ),
        Preset(
            name="workos",
            documentation="https://workos.com/docs/authkit/mcp",
            types=frozenset({"", "jwt", "at+jwt"}),
            algorithms=("RS256",),
            required=STANDARD,
            tenant_claim="org_id",
        ),
        Preset(
            name="descope",
            documentation="https://docs.descope.com/agentic-identity-hub/mcp-servers",
            types=frozenset({"", "jwt", "at+jwt"}),
            algorithms=("RS256",),
            required=STANDARD,
            client_claims=("client_id", "azp"),
        ),
        Preset(
            name="stytch",
            documentation="https://stytch.com/docs/b2b/api/connected-app-access-token",
            types=frozenset({"", "jwt", "at+jwt"}),
            algorithms=("RS256",),
            required=REQUIRED,
            names_resource=False,
        ),
        Preset(
            name="zitadel",
            documentation="https://zitadel.com/docs/apis/openidoauth/claims",
            types=frozenset({"jwt", "at+jwt"}),
            # Its ID tokens have no `jti`.
            required=STANDARD | {"jti"},
            names_resource=False,
            client_claims=("azp", "client_id"),
            tenant_claim="urn:zitadel:iam:user:resourceowner:id",
            opaque=True,
        ),
        Preset(
            name="authentik",
            documentation="https://docs.goauthentik.io/add-secure-apps/providers/oauth2/",
            types=frozenset({"jwt", "at+jwt"}),
            # `uid` is what it adds to an ID token to make an access token of it.
            required=STANDARD | {"azp", "uid"},
            names_resource=False,
            client_claims=("azp",),
            forbidden=NOT_ACCESS,
        ),
        Preset(
            name="hydra",
            documentation="https://www.ory.com/docs/oauth2-oidc/jwt-access-token",
            types=frozenset({"jwt", "at+jwt"}),
            scope_claims=("scp", "scope"),
            opaque=True,
        ),
        Preset(
            name="logto",
            documentation="https://docs.logto.io/authorization/validate-access-tokens",
            algorithms=("ES384", "RS256"),
            tenant_claim="organization_id",
            opaque=True,
        ),
        Preset(
            name="oidc-provider",
            documentation="https://github.com/panva/node-oidc-provider/blob/main/docs/README.md",
            opaque=True,
            clients_without_subject=True,
        ),
    )
}
"""Every preset by the name that ``[[issuers]] preset`` takes."""
