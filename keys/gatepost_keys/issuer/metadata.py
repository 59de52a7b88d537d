"""The issuer's metadata (RFC 8414), at every address where a client may look."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gatepost_keys.issuer.guard import Handler
from gatepost_keys.issuer.server import OPENID as OPENID_SCOPE
from gatepost_keys.issuer.settings import ACR_VALUES, MOUNT, IssuerSettings
from gatepost_keys.issuer.state import MINT_GRANT

OAUTH = "/.well-known/oauth-authorization-server"
OPENID = "/.well-known/openid-configuration"
PATHS = (f"{OAUTH}{MOUNT}", f"{OPENID}{MOUNT}", f"{MOUNT}{OPENID}", f"{MOUNT}{OAUTH}")
"""RFC 8414 inserts the well-known part before the issuer's path, OpenID Connect appends it."""

SECRET_METHODS = ["client_secret_basic", "client_secret_post"]


def document(settings: IssuerSettings) -> dict[str, object]:
    """Return the metadata of the issuer; `issuer` is byte-equal to the setting."""
    at = settings.issuer
    grants = ["authorization_code", "refresh_token", "client_credentials"]
    return {
        "issuer": at,
        "authorization_endpoint": f"{at}/authorize",
        "token_endpoint": f"{at}/token",
        "registration_endpoint": f"{at}/register",
        "revocation_endpoint": f"{at}/revoke",
        "introspection_endpoint": f"{at}/introspect",
        "jwks_uri": f"{at}/jwks",
        "scopes_supported": [*settings.scopes, OPENID_SCOPE],
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": [*grants, *([MINT_GRANT] if settings.cli_secret else [])],
        "token_endpoint_auth_methods_supported": ["none", *SECRET_METHODS],
        "revocation_endpoint_auth_methods_supported": ["none", *SECRET_METHODS],
        "introspection_endpoint_auth_methods_supported": SECRET_METHODS,
        "code_challenge_methods_supported": ["S256"],
        "authorization_response_iss_parameter_supported": True,
        "client_id_metadata_document_supported": False,
        "acr_values_supported": list(ACR_VALUES),
        "prompt_values_supported": ["none", "login", "consent", "select_account"],
        # Two members that OpenID Connect requires and that some clients insist on.
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": [settings.algorithm],
    }


def serve(settings: IssuerSettings) -> Handler:
    """Return the document as an endpoint, encoded once."""
    encoded = msgspec.json.encode(document(settings))

    async def get(request: Request) -> Response:
        headers = {"Cache-Control": "max-age=60"}
        return Response(encoded, 200, headers, "application/json")

    return get
