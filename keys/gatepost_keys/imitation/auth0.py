"""How Auth0 issues tokens."""

from gatepost_keys.imitation.shape import OAUTH_INSERTED, OPENID_APPENDED, ErrorShape, Imitation

AUTH0 = "https://auth0.com/docs"
AUTH0_PROFILES = f"{AUTH0}/secure/tokens/access-tokens/access-token-profiles"
AUTH0_TOKENS = f"{AUTH0}/secure/tokens/access-tokens/get-access-tokens"

AUTH0_CLAIMS = {
    "iss": "$iss",
    "aud": "$resource",
    "iat": "$iat",
    "exp": "$exp",
    "azp": "$client",
    "scope": "$scope",
    "org_id": "$org",
}
AUTH0_ROLES = "https://gatepost.example/roles"
AUTH0_IMITATION = Imitation(
    name="auth0",
    sources={
        "issuer": AUTH0_PROFILES,
        "discovery": f"{AUTH0}/get-started/applications/configure-applications-with-oidc-discovery",
        "endpoints": "https://auth0.com/docs/api/authentication",
        "scopes_supported": f"{AUTH0}/get-started/apis/scopes/openid-connect-scopes",
        "access_type": AUTH0_PROFILES,
        "next_key": f"{AUTH0}/get-started/tenant-settings/signing-keys/rotate-signing-keys",
        "person": AUTH0_PROFILES,
        "machine": AUTH0_PROFILES,
        "identity": f"{AUTH0}/secure/tokens/id-tokens/id-token-structure",
        "opaque": AUTH0_TOKENS,
        "unbound_opaque": AUTH0_TOKENS,
        "refresh": f"{AUTH0}/secure/tokens/refresh-tokens/get-refresh-tokens",
        "audience": AUTH0_TOKENS,
        "unknown_scopes": f"{AUTH0}/get-started/apis/scopes/api-scopes",
        "identity_scopes": AUTH0_PROFILES,
        "tenant_claim": f"{AUTH0}/manage-users/organizations/using-tokens",
        "roles_claim": f"{AUTH0}/secure/tokens/json-web-tokens/create-custom-claims",
        "errors": "https://github.com/auth0/node-auth0/issues/292",
    },
    issuer="/",
    discovery=(OPENID_APPENDED, OAUTH_INSERTED),
    endpoints={
        "authorization": "/authorize",
        "token": "/oauth/token",
        "jwks": "/.well-known/jwks.json",
        "registration": "/oidc/register",
        "revocation": "/oauth/revoke",
    },
    scopes_supported=("openid", "profile", "email", "offline_access"),
    access_type="JWT",
    next_key=True,
    person={
        **AUTH0_CLAIMS,
        "sub": "auth0|{hex}",
        "aud": ["$resource", "{iss}userinfo"],
        AUTH0_ROLES: "$roles",
    },
    machine={**AUTH0_CLAIMS, "sub": "{client}@clients", "gty": "client-credentials"},
    identity={
        "iss": "$iss",
        "sub": "auth0|{hex}",
        "aud": "$client",
        "iat": "$iat",
        "exp": "$exp",
        "sid": "$sid",
        "nonce": "$nonce",
        "org_id": "$org",
        "name": "$name",
        "email": "$email",
        "auth_time": "$auth_time",
    },
    opaque="never",
    unbound_opaque=True,
    refresh="offline_access",
    audience="audience",
    unknown_scopes="ignore",
    identity_scopes=True,
    client="{hex}",
    org="org_{hex}",
    tenant_claim="org_id",
    roles_claim=AUTH0_ROLES,
    errors={
        "invalid_target": ErrorShape(
            error="access_denied",
            status=403,
            description="Service not enabled within domain: {asked}",
        ),
        "authorize.invalid_target": ErrorShape(
            error="access_denied", description="Service not found: {asked}"
        ),
        "invalid_client": ErrorShape(error="access_denied", status=401, description="Unauthorized"),
        "invalid_grant": ErrorShape(status=403, description="Invalid authorization code"),
    },
)
