"""How Node's `oidc-provider`, and Logto, which is built on it, issue tokens."""

from gatepost_keys.imitation.shape import OAUTH_APPENDED, OPENID_APPENDED, ErrorShape, Imitation

LOGTO = "https://docs.logto.io"
LOGTO_SOURCE = (
    "https://github.com/logto-io/logto/blob/master/packages/core/src/middleware/"
    "koa-oidc-error-handler.ts"
)
OIDC_PROVIDER = "https://github.com/panva/node-oidc-provider/blob/main"

PROVIDER_CLAIMS = {
    "jti": "$jti",
    "iss": "$iss",
    "aud": "$resource",
    "client_id": "$client",
    "iat": "$iat",
    "exp": "$exp",
    "scope": "$scope",
}
PROVIDER_IDENTITY = {
    "iss": "$iss",
    "aud": "$client",
    "sub": "$hex",
    "nonce": "$nonce",
    "at_hash": "$at_hash",
    "iat": "$iat",
    "exp": "$exp",
    "name": "$name",
    "email": "$email",
}
PROVIDER_ANSWER = {
    "active": True,
    "client_id": "$client",
    "exp": "$exp",
    "iat": "$iat",
    "iss": "$iss",
    "scope": "$scope",
    "aud": "$resource",
    "token_type": "Bearer",
}
PROVIDER_ERRORS = {
    "invalid_grant": ErrorShape(description="grant request is invalid"),
    "invalid_client": ErrorShape(status=401, description="client authentication failed"),
}
UNKNOWN_RESOURCE = "resource indicator is missing, or unknown"
LOGTO_CUSTOM = {"tenant": "$org", "roles": "$roles"}
LOGTO_IMITATION = Imitation(
    name="logto",
    sources={
        "issuer": f"{LOGTO}/integrate-logto/application-data-structure",
        "discovery": f"{LOGTO}/integrate-logto/application-data-structure",
        "endpoints": f"{LOGTO}/integrate-logto/application-data-structure",
        "scopes_supported": f"{LOGTO}/integrate-logto/application-data-structure",
        "algorithm": f"{LOGTO}/developers/signing-keys",
        "person": f"{OIDC_PROVIDER}/lib/models/formats/jwt.js",
        "machine": f"{OIDC_PROVIDER}/lib/models/formats/jwt.js",
        "identity": f"{LOGTO}/developers/custom-id-token",
        "introspection": f"{OIDC_PROVIDER}/lib/actions/introspection.js",
        "unbound_opaque": f"{LOGTO}/authorization/global-api-resources",
        "refresh": f"{LOGTO}/developers/sdk-conventions",
        "audience": f"{LOGTO}/authorization/global-api-resources",
        "unknown_scopes": f"{OIDC_PROVIDER}/lib/actions/authorization/check_scope.js",
        "tenant_claim": f"{LOGTO}/developers/custom-token-claims",
        "roles_claim": f"{LOGTO}/developers/custom-token-claims",
        "errors": LOGTO_SOURCE,
        "error_body": LOGTO_SOURCE,
    },
    issuer="/oidc",
    discovery=(OPENID_APPENDED,),
    endpoints={
        "authorization": "/oidc/auth",
        "token": "/oidc/token",
        "jwks": "/oidc/jwks",
        "introspection": "/oidc/token/introspection",
        "revocation": "/oidc/token/revocation",
    },
    scopes_supported=("openid", "profile", "email", "offline_access"),
    algorithm="ES384",
    person={**PROVIDER_CLAIMS, "sub": "$hex", **LOGTO_CUSTOM},
    machine={**PROVIDER_CLAIMS, "sub": "$client", "tenant": "$org"},
    identity=PROVIDER_IDENTITY,
    introspection={**PROVIDER_ANSWER, "sub": "$sub", **LOGTO_CUSTOM},
    unbound_opaque=True,
    refresh="offline_access",
    audience="resource",
    unknown_scopes="ignore",
    client="{hex}",
    org="{hex}",
    tenant_claim="tenant",
    roles_claim="roles",
    errors={
        **PROVIDER_ERRORS,
        "invalid_target": ErrorShape(description=UNKNOWN_RESOURCE, error="invalid_target"),
    },
    error_body={
        "code": "oidc.{error}",
        "message": "$description",
        "error": "$error",
        "error_description": "$description",
    },
)

OIDC_PROVIDER_IMITATION = Imitation(
    name="oidc-provider",
    sources={
        "discovery": f"{OIDC_PROVIDER}/lib/helpers/initialize_app.js",
        "endpoints": f"{OIDC_PROVIDER}/lib/helpers/defaults.js",
        "person": f"{OIDC_PROVIDER}/lib/models/formats/jwt.js",
        "machine": f"{OIDC_PROVIDER}/lib/models/formats/jwt.js",
        "identity": f"{OIDC_PROVIDER}/docs/README.md",
        "introspection": f"{OIDC_PROVIDER}/lib/actions/introspection.js",
        "unbound_opaque": f"{OIDC_PROVIDER}/lib/models/formats/jwt.js",
        "refresh": f"{OIDC_PROVIDER}/docs/README.md#issuerefreshtoken",
        "audience": f"{OIDC_PROVIDER}/docs/README.md#featuresresourceindicators",
        "unknown_scopes": f"{OIDC_PROVIDER}/lib/actions/authorization/check_scope.js",
        "tenant_claim": f"{OIDC_PROVIDER}/docs/README.md#extratokenclaims",
        "roles_claim": f"{OIDC_PROVIDER}/docs/README.md#extratokenclaims",
        "errors": f"{OIDC_PROVIDER}/lib/helpers/errors.js",
    },
    discovery=(OPENID_APPENDED, OAUTH_APPENDED),
    endpoints={
        "authorization": "/auth",
        "token": "/token",
        "jwks": "/jwks",
        "registration": "/reg",
        "introspection": "/token/introspection",
        "revocation": "/token/revocation",
    },
    person={**PROVIDER_CLAIMS, "sub": "$hex", "org_id": "$org", "roles": "$roles"},
    machine={**PROVIDER_CLAIMS, "sub": "$client", "org_id": "$org"},
    identity=PROVIDER_IDENTITY,
    # A machine's answer has no `sub`, and no `jti` either, which would be the token itself.
    introspection={
        **PROVIDER_ANSWER,
        "sub": "$person_sub",
        "org_id": "$org",
        "roles": "$roles",
    },
    unbound_opaque=True,
    refresh="offline_access",
    audience="resource",
    unknown_scopes="ignore",
    client="{hex}",
    org="{hex}",
    tenant_claim="org_id",
    roles_claim="roles",
    errors={
        **PROVIDER_ERRORS,
        "invalid_target": ErrorShape(description=UNKNOWN_RESOURCE),
        "unsupported_grant_type": ErrorShape(description="unsupported grant_type requested"),
    },
)
