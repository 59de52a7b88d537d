"""How Okta issues tokens with a custom authorization server."""

from gatepost_keys.imitation.shape import OAUTH_APPENDED, OPENID_APPENDED, ErrorShape, Imitation

OKTA = "https://developer.okta.com/docs"
OKTA_API = f"{OKTA}/api/openapi/okta-oauth/oauth/tag/CustomAS"
OKTA_TOKENS = f"{OKTA}/api/openapi/okta-oauth/guides/overview"

OKTA_IMITATION = Imitation(
    name="okta",
    sources={
        "issuer": f"{OKTA}/concepts/auth-servers/#default-custom-authorization-server",
        "discovery": f"{OKTA_API}/#tag/CustomAS/operation/getWellKnownOAuthConfigurationCustomAS",
        "endpoints": f"{OKTA_API}/",
        "scopes_supported": f"{OKTA_API}/",
        "access_type": f"{OKTA_TOKENS}/#access-token-header",
        "identity_type": f"{OKTA_TOKENS}/#id-token-header",
        "person": f"{OKTA_TOKENS}/#access-token-payload",
        "machine": f"{OKTA}/guides/implement-grant-type/clientcreds/main/",
        "identity": f"{OKTA_TOKENS}/#id-token-payload",
        "next_key": f"{OKTA}/concepts/key-rotation/",
        "opaque": f"{OKTA_TOKENS}/#access-token",
        "refresh": f"{OKTA}/guides/refresh-tokens/main/",
        "audience": f"{OKTA}/guides/customize-authz-server/main/",
        "unknown_scopes": f"{OKTA_API}/#tag/CustomAS/operation/tokenCustomAS",
        "identity_scopes": f"{OKTA_TOKENS}/#access-token-payload",
        "roles_claim": f"{OKTA}/guides/customize-tokens-groups-claim/main/",
        "errors": f"{OKTA_API}/#tag/CustomAS/operation/tokenCustomAS",
    },
    issuer="/oauth2/default",
    discovery=(OPENID_APPENDED, OAUTH_APPENDED),
    endpoints={
        "authorization": "/oauth2/default/v1/authorize",
        "token": "/oauth2/default/v1/token",
        "jwks": "/oauth2/default/v1/keys",
        "introspection": "/oauth2/default/v1/introspect",
        "revocation": "/oauth2/default/v1/revoke",
    },
    scopes_supported=("openid", "profile", "email", "offline_access"),
    access_type="",
    identity_type="",
    next_key=True,
    person={
        "ver": 1,
        "jti": "AT.{jti}",
        "iss": "$iss",
        "aud": "$resource",
        "iat": "$iat",
        "exp": "$exp",
        "cid": "$client",
        "uid": "00u{hex}",
        "scp": "$scopes",
        "auth_time": "$auth_time",
        "sub": "$email",
        "groups": "$roles",
    },
    machine={
        "ver": 1,
        "jti": "AT.{jti}",
        "iss": "$iss",
        "aud": "$resource",
        "iat": "$iat",
        "exp": "$exp",
        "cid": "$client",
        "scp": "$scopes",
        "sub": "$client",
    },
    identity={
        "ver": 1,
        "jti": "ID.{jti}",
        "iss": "$iss",
        "aud": "$client",
        "sub": "00u{hex}",
        "iat": "$iat",
        "exp": "$exp",
        "amr": ["pwd"],
        "idp": "00o{hex}",
        "auth_time": "$auth_time",
        "at_hash": "$at_hash",
        "nonce": "$nonce",
        "name": "$name",
        "email": "$email",
        "preferred_username": "$email",
    },
    opaque="never",
    refresh="offline_access",
    audience="configured",
    unknown_scopes="refuse",
    identity_scopes=True,
    client="0oa{hex}",
    roles_claim="groups",
    errors={
        "invalid_client": ErrorShape(
            status=401,
            description="The client secret supplied for a confidential client is invalid.",
        ),
        "unknown_client": ErrorShape(
            status=401,
            body={
                "errorCode": "invalid_client",
                "errorSummary": "Invalid value for 'client_id' parameter.",
                "errorLink": "invalid_client",
                "errorId": "oae{trace}",
            },
        ),
        "invalid_grant": ErrorShape(
            description="The authorization code is invalid or has expired."
        ),
        "invalid_scope": ErrorShape(
            description="One or more scopes are not configured for the authorization server "
            "resource."
        ),
    },
)
