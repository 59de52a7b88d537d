"""The gate stands before either era."""

from typing import Any

import pytest

from gatepost_authz.challenge import Challenge
from gatepost_authz.errors import InvalidToken
from gatepost_authz.middleware import BearerMiddleware
from gatepost_authz.protected_resource import Resource, Target
from tests.support.endpoint import JSON, META, URL, VERSION, EndpointClient, message
from tests.support.measuring import each

INITIALIZE = message("initialize", {"protocolVersion": "2025-11-25"}, identity=0)
DISCOVER = message(
    "server/discover",
    {"_meta": {META + "protocolVersion": VERSION, META + "clientCapabilities": {}}},
)
MODERN_HEADERS = [JSON, ("mcp-protocol-version", VERSION), ("mcp-method", "server/discover")]


class RejectingVerifier:
    """A verifier that knows no caller."""

    async def verify(self, token: str, target: Target, *, peer: str = "") -> Any:
        raise InvalidToken("unknown")

    def cached(self, token: bytes, target: Target) -> None:
        return None


@pytest.mark.requirement("DE-23", "A-10", "S-20")
@each("token", [None, "stranger"])
@each("verb", ["POST", "GET", "DELETE"])
@each(
    ("body", "headers"),
    [(DISCOVER, MODERN_HEADERS), (INITIALIZE, [JSON]), (b"nonsense", []), (INITIALIZE, "session")],
)
async def test_a_client_without_a_token_gets_401_in_every_revision(
    token: str | None, verb: str, body: bytes, headers: Any
) -> None:
    """Modern, legacy, within a session or neither: the challenge comes before any meaning."""
    client = EndpointClient()
    if headers == "session":
        headers = [JSON, ("mcp-session-id", await client.open())]
    challenge = Challenge()
    client.endpoint = BearerMiddleware(  # type: ignore[assignment]
        client.endpoint, resource=Resource(URL), verifier=RejectingVerifier(), challenge=challenge
    )
    if token is not None:
        headers = [*headers, ("authorization", f"Bearer {token}")]

    response = await client.send(body, headers, verb=verb)

    assert response.status == 401
    assert response.headers["www-authenticate"].startswith("Bearer resource_metadata=")
