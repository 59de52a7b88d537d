"""The habits of Google."""

from gatepost_keys.imitation.shape import OAUTH_INSERTED, OPENID_APPENDED, ErrorShape, Imitation

GOOGLE = "https://developers.google.com/identity"
GOOGLE_OPENID = f"{GOOGLE}/openid-connect/openid-connect"
GOOGLE_METADATA = "https://accounts.google.com/.well-known/openid-configuration"
GOOGLE_TOKENINFO = "https://cloud.google.com/docs/authentication/token-types#access"
GOOGLE_OAUTH = f"{GOOGLE}/protocols/oauth2/native-app"

GOOGLE_IMITATION = Imitation(
    name="google",
    sources={
        "discovery": GOOGLE_METADATA,
        "endpoints": GOOGLE_METADATA,
        "machine": GOOGLE_OAUTH,
        "person": GOOGLE_TOKENINFO,
        "identity": f"{GOOGLE_OPENID}#an-id-tokens-payload",
        "introspection": GOOGLE_TOKENINFO,
        "tokeninfo": GOOGLE_TOKENINFO,
        "opaque": GOOGLE_TOKENINFO,
        "opaque_prefix": GOOGLE_TOKENINFO,
        "refresh": f"{GOOGLE_OPENID}#access-type-param",
        "refresh_rotates": f"{GOOGLE_OAUTH}#offline",
        "audience": GOOGLE_OAUTH,
        "api_scopes": f"{GOOGLE}/protocols/oauth2/scopes",
        "unknown_scopes": f"{GOOGLE_OAUTH}#authorization-errors",
        "identity_scopes": GOOGLE_TOKENINFO,
        "scope_names": f"{GOOGLE}/protocols/oauth2/scopes#openid-connect",
        "client": GOOGLE_OAUTH,
        "public_clients": GOOGLE_OAUTH,
        "audiences": GOOGLE_TOKENINFO,
        "errors": GOOGLE_OAUTH,
    },
    discovery=(OPENID_APPENDED, OAUTH_INSERTED),
    endpoints={
        "authorization": "/o/oauth2/v2/auth",
        "token": "/token",
        "jwks": "/oauth2/v3/certs",
        "introspection": "/tokeninfo",
        "revocation": "/revoke",
    },
    machine={},
    person={
        "azp": "$client",
        "aud": "$client",
        "sub": "$digits",
        "scope": "$scope",
        "exp": "$exp",
        "email": "$email",
        "email_verified": "true",
    },
    identity={
        "iss": "$iss",
        "azp": "$client",
        "aud": "$client",
        "sub": "$digits",
        "email": "$email",
        "email_verified": True,
        "at_hash": "$at_hash",
        "nonce": "$nonce",
        "name": "$name",
        "iat": "$iat",
        "exp": "$exp",
    },
    introspection={
        "azp": "$azp",
        "aud": "$aud",
        "sub": "$sub",
        "scope": "$scope",
        "exp": "$exp",
        "expires_in": "$expires_in",
        "email": "$email",
        "email_verified": "$email_verified",
        "access_type": "online",
    },
    tokeninfo=True,
    opaque="always",
    opaque_prefix="ya29.",
    refresh="access_type",
    refresh_rotates=False,
    audience="configured",
    api_scopes=("openid",),
    public_clients=False,
    unknown_scopes="refuse",
    identity_scopes=True,
    scope_names={
        "email": "https://www.googleapis.com/auth/userinfo.email",
        "profile": "https://www.googleapis.com/auth/userinfo.profile",
        "offline_access": "",
    },
    client="{digits}.apps.googleusercontent.com",
    audiences=("{clients}",),
    errors={
        "invalid_client": ErrorShape(status=401, description="Unauthorized"),
        "unknown_client": ErrorShape(status=401, description="The OAuth client was not found."),
        "invalid_grant": ErrorShape(description="Bad Request"),
    },
)
