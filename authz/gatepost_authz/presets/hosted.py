"""Providers that run as a service."""

from gatepost_authz.presets.preset import GUID, REQUIRED, STANDARD, Preset
from gatepost_authz.token_rules import NO_SUBJECT, SUBJECT_IS_CLIENT, CallerMark

# `idtyp` is optional; `scp` is "only included for user tokens".
ENTRA_MACHINE = (CallerMark(claim="idtyp", value="app"), CallerMark(absent="scp"))
ENTRA_PERSON = (CallerMark(claim="scp"), CallerMark(claim="idtyp", value="user"))

HOSTED: tuple[Preset, ...] = (
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
        machine=(
            SUBJECT_IS_CLIENT,
            CallerMark(claim="gty", value="client-credentials"),
            CallerMark(subject_is_client=True, suffix="@clients"),
        ),
    ),
    Preset(
        name="okta",
        documentation="https://developer.okta.com/docs/api/openapi/okta-oauth/guides/overview/",
        types=frozenset({"", "at+jwt"}),
        algorithms=("RS256",),
        required=STANDARD | {"cid", "jti"},
        access_marks=frozenset({"cid"}),
        scope_claims=("scp",),
        client_claims=("cid",),
        # `sub` is the login name, which an administrator can reassign.
        # A machine has no `uid`; its `sub` is its client id.
        subject_claims=("uid", "sub"),
        discovery_paths=("/.well-known/oauth-authorization-server",),
    ),
    Preset(
        name="entra-v2",
        documentation="https://learn.microsoft.com/en-us/entra/identity-platform/access-token-claims-reference",
        types=frozenset({"jwt"}),
        algorithms=("RS256",),
        required=STANDARD | {"nbf", "tid", "ver", "azp"},
        access_marks=frozenset({"azp"}),
        names_resource=False,
        # Permissions of users are in `scp`, those of programs in `roles`.
        scope_claims=("scp", "roles"),
        client_claims=("azp",),
        # `sub` differs between applications for the same person.
        subject_claims=("oid", "sub"),
        token_id_claims=("uti",),
        tenant_claim="tid",
        must_equal={"ver": "2.0"},
        machine=ENTRA_MACHINE,
        person=ENTRA_PERSON,
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
        access_marks=frozenset({"appid"}),
        scope_claims=("scp", "roles"),
        client_claims=("appid",),
        subject_claims=("oid", "sub"),
        token_id_claims=("uti",),
        tenant_claim="tid",
        must_equal={"ver": "1.0"},
        machine=ENTRA_MACHINE,
        person=ENTRA_PERSON,
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
        person=(CallerMark(claim="username"),),
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
        access_marks=frozenset({"client_id"}),
        machine=(NO_SUBJECT, SUBJECT_IS_CLIENT),
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
)
