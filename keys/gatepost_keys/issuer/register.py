"""Register clients dynamically (RFC 7591), for all clients on this machine."""

import secrets

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gatepost_keys.issuer import redirects, wire
from gatepost_keys.issuer.authlib_records import RegisteredClient
from gatepost_keys.issuer.issuer_endpoint import RouteHandler
from gatepost_keys.issuer.settings import IssuerSettings
from gatepost_keys.issuer.state import DevelopmentIssuer

MAX_REDIRECTS = 20
GRANTS = ("authorization_code", "refresh_token")
PUBLIC = frozenset({"none"})
METHODS = PUBLIC | {"client_secret_basic", "client_secret_post"}
NAME_LENGTH = 80


class ClientMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The members of a registration that are used here; all others are omitted."""

    redirect_uris: tuple[str, ...] = ()
    token_endpoint_auth_method: str = "client_secret_basic"  # noqa: S105 - RFC 7591's default
    grant_types: tuple[str, ...] = GRANTS
    """A client that does not say gets refreshing, because it would ask for it next."""
    response_types: tuple[str, ...] = ("code",)
    client_name: str = ""
    client_uri: str = ""
    application_type: str = ""
    scope: str = ""


class RegistrationRejected(Exception):
    """A registration is refused: an error code of RFC 7591 section 3.2.2 and a sentence."""

    def __init__(self, error: str, sentence: str) -> None:
        super().__init__(sentence)
        self.error = error
        self.sentence = sentence


def serve(issuer: DevelopmentIssuer) -> RouteHandler:
    """Register a client and answer its id and registered metadata."""

    async def post(request: Request) -> Response:
        body = await wire.body_of(request, "application/json")
        try:
            received = msgspec.json.decode(body, type=dict[str, object])
            # Some clients send null for members without a value.
            members = {name: value for name, value in received.items() if value is not None}
            metadata = msgspec.convert(members, ClientMetadata)
            check(metadata, issuer.settings)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            sentence = "The body is not a client's metadata (RFC 7591 section 2)"
            return wire.refuse(sentence, error="invalid_client_metadata")
        except RegistrationRejected as refusal:
            return wire.refuse(refusal.sentence, error=refusal.error)
        client = issuer.register(client_of(metadata))
        return wire.json(described(client, metadata, now=issuer.now()), 201)

    return post


def check(metadata: ClientMetadata, settings: IssuerSettings) -> None:
    """Raise RegistrationRejected if a client of that kind could not work or would be unsafe."""
    if not 1 <= len(metadata.redirect_uris) <= MAX_REDIRECTS:
        raise RegistrationRejected(
            "invalid_redirect_uri", f"Name 1 to {MAX_REDIRECTS} redirect_uris"
        )
    for uri in metadata.redirect_uris:
        if fault := redirects.fault(uri, settings.private_redirects):
            raise RegistrationRejected("invalid_redirect_uri", f"A redirect address {fault}")
        if metadata.application_type == "web" and uri in settings.private_redirects:
            raise RegistrationRejected(
                "invalid_redirect_uri", "A web application has https addresses"
            )
    if metadata.token_endpoint_auth_method not in METHODS:
        raise RegistrationRejected(
            "invalid_client_metadata", f"Authenticate by {', '.join(sorted(METHODS))}"
        )
    if "code" not in metadata.response_types:
        raise RegistrationRejected("invalid_client_metadata", "response_types must have code")
    if "authorization_code" not in metadata.grant_types:
        raise RegistrationRejected(
            "invalid_client_metadata", "grant_types must have authorization_code"
        )
    if metadata.application_type not in {"", "native", "web"}:
        raise RegistrationRejected("invalid_client_metadata", "application_type is native or web")


def client_of(metadata: ClientMetadata) -> RegisteredClient:
    """
    Return a new client; grants that dynamic clients may not have are left out, as section 2 allows.
    """
    return RegisteredClient(
        client_id="dev-client-" + secrets.token_urlsafe(16),
        secret="" if metadata.token_endpoint_auth_method in PUBLIC else secrets.token_urlsafe(32),
        name=displayed_name(metadata.client_name),
        redirect_uris=metadata.redirect_uris,
        auth_methods=frozenset({metadata.token_endpoint_auth_method}),
        grant_types=frozenset(GRANTS) & frozenset(metadata.grant_types),
        scope=metadata.scope,
    )


def described(
    client: RegisteredClient, metadata: ClientMetadata, *, now: float
) -> dict[str, object]:
    """Return the answer of RFC 7591 section 3.2.1: everything registered, as it was registered."""
    answer: dict[str, object] = {
        "client_id": client.client_id,
        "client_id_issued_at": int(now),
        "redirect_uris": client.redirect_uris,
        "token_endpoint_auth_method": metadata.token_endpoint_auth_method,
        "grant_types": [grant for grant in GRANTS if grant in client.grant_types],
        "response_types": ["code"],
    }
    if client.secret:
        answer |= {"client_secret": client.secret, "client_secret_expires_at": 0}
    optional = {
        "client_name": client.name,
        "client_uri": metadata.client_uri,
        "application_type": metadata.application_type,
        "scope": client.scope,
    }
    return answer | {name: value for name, value in optional.items() if value}


def displayed_name(name: str) -> str:
    """Return *name* for the consent page: short, and without direction marks."""
    return "".join(char for char in name if char.isprintable())[:NAME_LENGTH].strip()
