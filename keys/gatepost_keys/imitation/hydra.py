"""How Ory Hydra issues tokens."""

from gatepost_keys.imitation.shape import OAUTH_INSERTED, OPENID_APPENDED, ErrorShape, Imitation

HYDRA = "https://www.ory.com/docs"
HYDRA_JWT = f"{HYDRA}/oauth2-oidc/jwt-access-token"
HYDRA_API = f"{HYDRA}/reference/api#tag/oAuth2"
FOSITE = "https://github.com/ory/fosite/blob/master"

HYDRA_CLAIMS = {
    "iss": "$iss",
    "aud": ["$resource"],
    "client_id": "$client",
    "jti": "$jti",
    "iat": "$iat",
    "nbf": "$iat",
    "exp": "$exp",
    "scp": "$scopes",
    # The consent application puts these into the session, for machines the token hook.
    "ext": {"org": "$org", "roles": "$roles"},
}
HYDRA_IMITATION = Imitation(
    name="hydra",
    sources={
        "discovery": HYDRA_API,
        "endpoints": HYDRA_API,
        "scopes_supported": HYDRA_API,
        "access_type": f"{FOSITE}/token/jwt/jwt.go",
        "person": HYDRA_JWT,
        "machine": HYDRA_JWT,
        "identity": f"{HYDRA}/oauth2-oidc/overview/oidc-concepts",
        "introspection": "https://github.com/ory/hydra/blob/master/oauth2/introspector.go",
        "opaque_prefix": f"{HYDRA}/oauth2-oidc/jwt-access-token",
        "refresh": f"{HYDRA}/oauth2-oidc/authorization-code-flow",
        "audience": f"{HYDRA}/hydra/guides/audiences",
        "unknown_scopes": f"{FOSITE}/errors.go",
        "identity_scopes": HYDRA_JWT,
        "tenant_claim": f"{HYDRA}/oauth2-oidc/claims-at-refresh",
        "roles_claim": HYDRA_JWT,
        "errors": f"{FOSITE}/errors.go",
    },
    discovery=(OPENID_APPENDED, OAUTH_INSERTED),
    endpoints={
        "authorization": "/oauth2/auth",
        "token": "/oauth2/token",
        "jwks": "/.well-known/jwks.json",
        "registration": "/oauth2/register",
        "introspection": "/admin/oauth2/introspect",
        "revocation": "/oauth2/revoke",
    },
    scopes_supported=("offline_access", "openid"),
    access_type="JWT",
    person={**HYDRA_CLAIMS, "sub": "$guid"},
    machine={**HYDRA_CLAIMS, "sub": "$client"},
    identity={
        "iss": "$iss",
        "aud": ["$client"],
        "sub": "$guid",
        "at_hash": "$at_hash",
        "auth_time": "$auth_time",
        "nonce": "$nonce",
        "rat": "$iat",
        "iat": "$iat",
        "exp": "$exp",
        "jti": "$jti",
        "sid": "$sid",
        "name": "$name",
        "email": "$email",
    },
    introspection={
        "active": True,
        "scope": "$scope",
        "client_id": "$client",
        "sub": "$sub",
        "exp": "$exp",
        "iat": "$iat",
        "nbf": "$iat",
        "aud": ["$resource"],
        "iss": "$iss",
        "token_type": "Bearer",
        "token_use": "access_token",
        "ext": {"org": "$org", "roles": "$roles"},
    },
    opaque_prefix="ory_at_",
    refresh="offline_access",
    audience="configured",
    unknown_scopes="refuse",
    identity_scopes=True,
    client="{guid}",
    tenant_claim="ext.org",
    roles_claim="ext.roles",
    errors={
        "invalid_client": ErrorShape(
            status=401,
            description="Client authentication failed (e.g., unknown client, no client "
            "authentication included, or unsupported authentication method).",
        ),
        "invalid_grant": ErrorShape(
            description="The provided authorization grant (e.g., authorization code, resource "
            "owner credentials) or refresh token is invalid, expired, revoked, does not match the "
            "redirection URI used in the authorization request, or was issued to another client."
        ),
        "invalid_scope": ErrorShape(
            description="The requested scope is invalid, unknown, or malformed."
        ),
    },
)
