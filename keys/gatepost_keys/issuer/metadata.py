"""Serve the issuer's metadata (RFC 8414), at every address where a client may look."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gatepost_keys.imitation.shape import DISCOVERY
from gatepost_keys.issuer.authorization_server import OPENID as OPENID_SCOPE
from gatepost_keys.issuer.issuer_endpoint import RouteHandler
from gatepost_keys.issuer.settings import ACR_VALUES, MOUNT, IssuerSettings
from gatepost_keys.issuer.state import MINT_GRANT

SECRET_METHODS = ["client_secret_basic", "client_secret_post"]


def paths(settings: IssuerSettings) -> dict[str, str]:
    """Return every address of the metadata, with the issuer that the document there names."""
    identifiers_by_path: dict[str, str] = {}
    for identifier in settings.identifiers:
        base = identifier.removeprefix(settings.origin).removesuffix("/")
        identifiers_by_path |= {
            form.format(issuer=base): identifier for form in settings.imitation.discovery
        }
    return identifiers_by_path


def absent_paths(settings: IssuerSettings) -> set[str]:
    """Return where clients look for metadata and registration, and the provider has none."""
    bases = (
        identifier.removeprefix(settings.origin).removesuffix("/")
        for identifier in settings.identifiers
    )
    every = {form.format(issuer=base) for base in bases for form in DISCOVERY}
    registers = settings.path("registration") is not None
    return (every | (set() if registers else {f"{MOUNT}/register"})) - paths(settings).keys()


def document(settings: IssuerSettings, identifier: str = "") -> dict[str, object]:
    """Return the metadata of the issuer; `issuer` is byte-equal to *identifier*."""
    shape = settings.imitation
    endpoints = {
        f"{name}_endpoint": f"{settings.origin}{settings.path(name)}"
        for name in shape.endpoints
        if name != "jwks" and not (name == "introspection" and shape.tokeninfo)
    }
    machines = ["client_credentials"] if shape.machine else []
    grants = ["authorization_code", "refresh_token", *machines]
    methods = {
        f"{name}_endpoint_auth_methods_supported": (
            SECRET_METHODS if name == "introspection" else ["none", *SECRET_METHODS]
        )
        for name in ("token", "revocation", "introspection")
        if f"{name}_endpoint" in endpoints
    }
    written: dict[str, object] = {
        "issuer": identifier or settings.identifiers[0],
        **endpoints,
        "jwks_uri": f"{settings.origin}{settings.path('jwks')}",
        "scopes_supported": list(
            shape.scopes_supported or dict.fromkeys([*settings.offered, OPENID_SCOPE])
        ),
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": [*grants, *([MINT_GRANT] if settings.cli_secret else [])],
        **methods,
        "code_challenge_methods_supported": ["S256"],
        "authorization_response_iss_parameter_supported": shape.names_itself,
        "client_id_metadata_document_supported": False,
        "acr_values_supported": list(ACR_VALUES),
        "prompt_values_supported": ["none", "login", "consent", "select_account"],
        # Two members that OpenID Connect requires and that some clients insist on.
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": [settings.algorithm],
    }
    return {name: value for name, value in written.items() if name not in shape.metadata_lacks}


async def absent(request: Request) -> Response:
    """Answer that there is nothing: to a client, 401 would mean something else."""
    return Response(status_code=404)


def serve(settings: IssuerSettings, identifier: str) -> RouteHandler:
    """Return the document as an endpoint, encoded once."""
    encoded = msgspec.json.encode(document(settings, identifier))

    async def get(request: Request) -> Response:
        headers = {"Cache-Control": "max-age=60"}
        return Response(encoded, 200, headers, "application/json")

    return get
