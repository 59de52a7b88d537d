"""How Keycloak issues tokens."""

from gatepost_keys.imitation.shape import OAUTH_INSERTED, OPENID_APPENDED, ErrorShape, Imitation

KEYCLOAK = "https://www.keycloak.org/docs/latest"
KEYCLOAK_ADMIN = f"{KEYCLOAK}/server_admin/"
KEYCLOAK_ENDPOINTS = "https://www.keycloak.org/securing-apps/oidc-layers"
KEYCLOAK_SCOPES = (
    "https://github.com/keycloak/keycloak/blob/main/services/src/main/java/org/keycloak/"
    "protocol/oidc/endpoints/AuthorizationEndpointChecker.java"
)
KEYCLOAK_SOURCE = (
    "https://github.com/keycloak/keycloak/blob/main/services/src/main/java/org/keycloak"
)

KEYCLOAK_CLAIMS = {
    "iss": "$iss",
    "aud": ["$resource", "account"],
    "sub": "$guid",
    "typ": "Bearer",
    "azp": "$client",
    "jti": "$jti",
    "iat": "$iat",
    "exp": "$exp",
    "acr": "1",
    "realm_access": {"roles": "$roles"},
    "scope": "$scope",
    "organization": ["$org"],
}
KEYCLOAK_IMITATION = Imitation(
    name="keycloak",
    sources={
        "issuer": KEYCLOAK_ENDPOINTS,
        "discovery": KEYCLOAK_ENDPOINTS,
        "endpoints": KEYCLOAK_ENDPOINTS,
        "access_type": f"{KEYCLOAK_SOURCE}/jose/jws/DefaultTokenManager.java",
        "person": KEYCLOAK_ADMIN,
        "machine": f"{KEYCLOAK_ADMIN}#_service_accounts",
        "identity": KEYCLOAK_ADMIN,
        "opaque": KEYCLOAK_ADMIN,
        "audience": f"{KEYCLOAK_ADMIN}#_audience",
        "unknown_scopes": KEYCLOAK_SCOPES,
        "identity_scopes": f"{KEYCLOAK_ADMIN}#_client_scopes",
        "tenant_claim": f"{KEYCLOAK_ADMIN}#_managing_organizations",
        "roles_claim": f"{KEYCLOAK_ADMIN}#_role_scope_mappings",
        "errors": f"{KEYCLOAK_SOURCE}/authentication/AuthenticationProcessor.java",
    },
    issuer="/realms/gatepost",
    discovery=(OPENID_APPENDED, OAUTH_INSERTED),
    endpoints={
        "authorization": "/realms/gatepost/protocol/openid-connect/auth",
        "token": "/realms/gatepost/protocol/openid-connect/token",
        "jwks": "/realms/gatepost/protocol/openid-connect/certs",
        "registration": "/realms/gatepost/clients-registrations/openid-connect",
        "introspection": "/realms/gatepost/protocol/openid-connect/token/introspect",
        "revocation": "/realms/gatepost/protocol/openid-connect/revoke",
    },
    access_type="JWT",
    person={
        **KEYCLOAK_CLAIMS,
        "sid": "$sid",
        "auth_time": "$auth_time",
        "name": "$name",
        "email": "$email",
        "preferred_username": "$username",
    },
    # A service account belongs to no organisation; the claim is that of a hardcoded-claim mapper.
    machine={
        **KEYCLOAK_CLAIMS,
        "client_id": "$client",
        "clientHost": "127.0.0.1",
        "clientAddress": "127.0.0.1",
        "preferred_username": "service-account-{client}",
    },
    identity={
        "iss": "$iss",
        "aud": "$client",
        "sub": "$guid",
        "typ": "ID",
        "azp": "$client",
        "jti": "$jti",
        "nonce": "$nonce",
        "sid": "$sid",
        "at_hash": "$at_hash",
        "acr": "1",
        "auth_time": "$auth_time",
        "iat": "$iat",
        "exp": "$exp",
        "name": "$name",
        "email": "$email",
        "preferred_username": "$username",
    },
    opaque="never",
    audience="configured",
    unknown_scopes="refuse",
    identity_scopes=True,
    tenant_claim="organization",
    roles_claim="realm_access.roles",
    errors={
        "invalid_client": ErrorShape(
            error="unauthorized_client",
            status=401,
            description="Invalid client or Invalid client credentials",
        ),
        "unknown_client": ErrorShape(
            status=401, description="Invalid client or Invalid client credentials"
        ),
        "invalid_grant": ErrorShape(description="Code not valid"),
        "invalid_scope": ErrorShape(description="Invalid scopes"),
        "unsupported_grant_type": ErrorShape(description="Unsupported grant_type"),
    },
)
