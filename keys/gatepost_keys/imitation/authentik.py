"""How authentik issues tokens."""

from gatepost_keys.imitation.shape import OPENID_APPENDED, ErrorShape, Imitation

AUTHENTIK = "https://docs.goauthentik.io/add-secure-apps/providers/oauth2/"
AUTHENTIK_SOURCE = "https://github.com/goauthentik/authentik/blob/main/authentik/providers/oauth2"

AUTHENTIK_IDENTITY = {
    "iss": "$iss",
    "sub": "$hex",
    "aud": "$client",
    "exp": "$exp",
    "iat": "$iat",
    "auth_time": "$auth_time",
    "acr": "goauthentik.io/providers/oauth2/default",
    "amr": ["pwd"],
    "nonce": "$nonce",
    "sid": "$sid",
    "name": "$name",
    "email": "$email",
    "preferred_username": "$username",
    "groups": "$roles",
}
AUTHENTIK_IMITATION = Imitation(
    name="authentik",
    sources={
        "issuer": AUTHENTIK,
        "discovery": AUTHENTIK,
        "endpoints": AUTHENTIK,
        "access_type": f"{AUTHENTIK_SOURCE}/models.py",
        "person": f"{AUTHENTIK_SOURCE}/id_token.py",
        "machine": f"{AUTHENTIK_SOURCE}/views/token.py",
        "identity": f"{AUTHENTIK_SOURCE}/id_token.py",
        "opaque": AUTHENTIK,
        "refresh": AUTHENTIK,
        "audience": f"{AUTHENTIK_SOURCE}/id_token.py",
        "unknown_scopes": f"{AUTHENTIK_SOURCE}/views/authorize.py",
        "identity_scopes": f"{AUTHENTIK_SOURCE}/id_token.py",
        "roles_claim": AUTHENTIK,
        "audiences": f"{AUTHENTIK_SOURCE}/id_token.py",
        "errors": f"{AUTHENTIK_SOURCE}/errors.py",
    },
    issuer="/application/o/gatepost/",
    discovery=(OPENID_APPENDED,),
    endpoints={
        "authorization": "/application/o/authorize/",
        "token": "/application/o/token/",
        "jwks": "/application/o/gatepost/jwks/",
        "introspection": "/application/o/introspect/",
        "revocation": "/application/o/revoke/",
    },
    access_type="JWT",
    person={**AUTHENTIK_IDENTITY, "azp": "$client", "uid": "$jti", "scope": "$scope"},
    machine={
        "iss": "$iss",
        "sub": "$hex",
        "aud": "$client",
        "exp": "$exp",
        "iat": "$iat",
        "auth_time": "$iat",
        "acr": "goauthentik.io/providers/oauth2/default",
        "preferred_username": "ak-{client}-client_credentials",
        "azp": "$client",
        "uid": "$jti",
        "scope": "$scope",
    },
    identity={**AUTHENTIK_IDENTITY, "at_hash": "$at_hash"},
    opaque="never",
    refresh="offline_access",
    audience="configured",
    unknown_scopes="ignore",
    identity_scopes=True,
    roles_claim="groups",
    audiences=("{clients}",),
    errors={
        "invalid_client": ErrorShape(
            status=400,
            description="Client authentication failed (e.g., unknown client, no client "
            "authentication included, or unsupported authentication method)",
        ),
        "invalid_grant": ErrorShape(
            description="The provided authorization grant or refresh token is invalid, expired, "
            "revoked, does not match the redirection URI used in the authorization request, or "
            "was issued to another client"
        ),
        "unsupported_grant_type": ErrorShape(
            description="The authorization grant type is not supported by the authorization server"
        ),
    },
)
