"""Providers that operators run themselves."""

from gatepost_authz.presets.preset import NOT_ACCESS, STANDARD, Preset
from gatepost_authz.token_rules import NO_SUBJECT, SUBJECT_IS_CLIENT, CallerMark

SELF_HOSTED: tuple[Preset, ...] = (
    Preset(
        name="keycloak",
        documentation="https://www.keycloak.org/docs/latest/server_admin/",
        types=frozenset({"jwt", "at+jwt"}),
        required=STANDARD | {"azp", "jti", "typ"},
        client_claims=("azp",),
        tenant_claim="organization",
        # A service account has a `sub` like a person. Only its session has the client's address.
        machine=(SUBJECT_IS_CLIENT, CallerMark(claim="clientAddress")),
        # Its refresh tokens are signed JWTs as well; the payload says what a token is.
        must_equal={"typ": "Bearer"},
    ),
    Preset(
        name="zitadel",
        documentation="https://zitadel.com/docs/apis/openidoauth/claims",
        types=frozenset({"jwt", "at+jwt"}),
        # Its ID tokens have no `jti`.
        required=STANDARD | {"jti"},
        access_marks=frozenset({"jti"}),
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
        access_marks=frozenset({"uid"}),
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
        # It is built on oidc-provider, whose answers about refresh tokens have no `token_type`.
        answers_name_type=True,
    ),
    Preset(
        name="oidc-provider",
        documentation="https://github.com/panva/node-oidc-provider/blob/main/docs/README.md",
        opaque=True,
        # Its answers about a client that acts for itself omit `sub`, and its answers about refresh
        # tokens omit `token_type`.
        machine=(NO_SUBJECT, SUBJECT_IS_CLIENT),
        answers_name_type=True,
    ),
    Preset(
        name="better-auth",
        documentation="https://www.better-auth.com/docs/plugins/oauth-provider",
        # `client_id` and `jti` came later than `azp`, which no ID token and no session token has.
        required=STANDARD | {"azp"},
        access_marks=frozenset({"azp"}),
        client_claims=("client_id", "azp"),
    ),
    Preset(
        name="django-oauth-toolkit",
        documentation="https://django-oauth-toolkit.readthedocs.io/en/latest/resource_server.html",
        # An answer has `username` for a person, nothing for a machine, and no `sub`. It has an
        # `aud` if the client sent `resource` (from 3.4 on).
        client_as_audience=True,
        subject_claims=("username",),
        machine=(NO_SUBJECT,),
        opaque=True,
    ),
    Preset(
        name="django-allauth",
        documentation="https://docs.allauth.org/en/latest/idp/openid-connect/",
        types=frozenset({"jwt"}),
        algorithms=("RS256",),
        # A token names its client and no audience; without a user it has no `sub`.
        required=frozenset({"iss", "exp", "iat", "client_id", "jti", "token_use"}),
        must_equal={"token_use": "access"},
        client_as_audience=True,
        names_resource=False,
        machine=(NO_SUBJECT, SUBJECT_IS_CLIENT),
    ),
    Preset(
        name="lemonldap-ng",
        documentation="https://lemonldap-ng.org/documentation/latest/idpopenidconnect.html",
        algorithms=("RS256", "ES256"),
        names_resource=False,
        opaque=True,
    ),
    Preset(
        name="canaille",
        documentation="https://canaille.readthedocs.io/en/latest/",
        # People's tokens are ID tokens without nonce and hash, and machines' are opaque; only
        # answers name client and scopes. The `aud` lists client ids, and ours must be among them.
        types=frozenset({"jwt"}),
        required=STANDARD,
        names_resource=False,
        # Its machines have no subject. A subject that is a client id is a person's user name.
        machine=(NO_SUBJECT,),
        opaque=True,
        introspects_signed=True,
    ),
    Preset(
        name="cloudflare-workers",
        documentation="https://github.com/cloudflare/workers-oauth-provider",
        algorithms=("RS256", "ES256"),
    ),
)
