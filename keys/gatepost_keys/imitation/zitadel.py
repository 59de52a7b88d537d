"""How Zitadel issues tokens."""

from gatepost_keys.imitation.shape import OPENID_APPENDED, Imitation

ZITADEL = "https://zitadel.com/docs"
ZITADEL_CLAIMS = f"{ZITADEL}/apis/openidoauth/claims"
ZITADEL_ENDPOINTS = f"{ZITADEL}/apis/openidoauth/endpoints"
ZITADEL_SCOPES = f"{ZITADEL}/apis/openidoauth/scopes#reserved-scopes"

ZITADEL_TENANT = "urn:zitadel:iam:user:resourceowner:id"
ZITADEL_TOKEN = {
    "iss": "$iss",
    "sub": "$digits",
    "aud": ["$client", "$api"],
    "exp": "$exp",
    "iat": "$iat",
    "nbf": "$iat",
    "azp": "$client",
    "jti": "$jti",
    ZITADEL_TENANT: "$org",
}
ZITADEL_IMITATION = Imitation(
    name="zitadel",
    sources={
        "discovery": ZITADEL_ENDPOINTS,
        "endpoints": ZITADEL_ENDPOINTS,
        "scopes_supported": f"{ZITADEL}/apis/openidoauth/scopes",
        "access_type": "https://github.com/zitadel/oidc/blob/main/pkg/op/signer.go",
        "person": ZITADEL_CLAIMS,
        "machine": "https://questions.zitadel.com/m/1435721390941540623",
        "identity": ZITADEL_CLAIMS,
        "introspection": f"{ZITADEL_ENDPOINTS}#introspection_endpoint",
        "refresh": f"{ZITADEL}/apis/openidoauth/scopes",
        "audience": ZITADEL_SCOPES,
        "sign_in_scopes": ZITADEL_SCOPES,
        "api": ZITADEL_SCOPES,
        "unknown_scopes": ZITADEL_SCOPES,
        "tenant_claim": ZITADEL_SCOPES,
        "org": ZITADEL_CLAIMS,
        "client": ZITADEL_CLAIMS,
    },
    discovery=(OPENID_APPENDED,),
    endpoints={
        "authorization": "/oauth/v2/authorize",
        "token": "/oauth/v2/token",
        "jwks": "/oauth/v2/keys",
        "introspection": "/oauth/v2/introspect",
        "revocation": "/oauth/v2/revoke",
    },
    scopes_supported=("openid", "profile", "email", "offline_access"),
    access_type="JWT",
    person=ZITADEL_TOKEN,
    machine={
        **{name: value for name, value in ZITADEL_TOKEN.items() if name != "azp"},
        "aud": ["$api"],
        "client_id": "$client",
    },
    identity={
        "iss": "$iss",
        "sub": "$digits",
        "aud": ["$client", "$api"],
        "exp": "$exp",
        "iat": "$iat",
        "auth_time": "$auth_time",
        "nonce": "$nonce",
        "amr": ["pwd"],
        "azp": "$client",
        "at_hash": "$at_hash",
        "sid": "V1_{sid}",
        "name": "$name",
        "email": "$email",
        "preferred_username": "$email",
    },
    introspection={
        "active": True,
        "token_type": "Bearer",
        "scope": "$scope",
        "client_id": "$client",
        "sub": "$digits",
        "aud": ["$client", "$api"],
        "iss": "$iss",
        "exp": "$exp",
        "iat": "$iat",
        "nbf": "$iat",
        "jti": "$jti",
        "username": "$email",
        "preferred_username": "$email",
        "name": "$name",
        "email": "$email",
        ZITADEL_TENANT: "$org",
    },
    refresh="offline_access",
    audience="scope",
    sign_in_scopes=(
        "urn:zitadel:iam:org:project:id:{api}:aud",
        "urn:zitadel:iam:user:resourceowner",
    ),
    api="{digits}",
    unknown_scopes="ignore",
    client="{digits}",
    org="{digits}",
    tenant_claim=ZITADEL_TENANT,
    audiences=("{api}",),
)
