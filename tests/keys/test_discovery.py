"""What clients find: metadata at every address, keys, CORS, and the marks of development."""

from contextlib import nullcontext

import pytest
from authlib.oauth2.rfc8414 import AuthorizationServerMetadata
from joserfc import jwt
from joserfc.errors import SecurityWarning
from joserfc.jwk import KeySet

from gatepost_keys.issuer import metadata
from tests.support.sign_in import CLI, ORIGIN, PATHS, RESOURCE, CodeFlow, code_flow

__all__ = ["code_flow"]  # a fixture

INSPECTOR = "http://localhost:6274"


@pytest.mark.parametrize("path", PATHS)
async def test_the_issuer_metadata_is_the_same_at_every_location(
    code_flow: CodeFlow, path: str
) -> None:
    """RFC 8414 inserts the well-known part, OpenID Connect appends it; clients try both."""
    answer = await code_flow.http.get(path)
    document = answer.json()

    AuthorizationServerMetadata(document).validate()
    assert answer.status_code == 200
    assert document == metadata.document(code_flow.issuer.settings)
    assert document["issuer"] == f"{ORIGIN}/dev-as"


async def test_the_issuer_metadata_has_members_that_clients_require(code_flow: CodeFlow) -> None:
    """Without S256, `none`, registration or the `iss` flag some client refuses the issuer."""
    document = (await code_flow.http.get(PATHS[0])).json()

    assert document["code_challenge_methods_supported"] == ["S256"]
    assert "none" in document["token_endpoint_auth_methods_supported"]
    assert document["registration_endpoint"] == f"{ORIGIN}/dev-as/register"
    assert document["authorization_response_iss_parameter_supported"] is True
    assert document["scopes_supported"] == ["files:read", "files:write", "openid"]


async def test_every_endpoint_in_the_metadata_exists(code_flow: CodeFlow) -> None:
    """A client that follows the document never gets 404."""
    document = (await code_flow.http.get(PATHS[0])).json()
    addresses = [v for k, v in document.items() if k.endswith(("_endpoint", "jwks_uri"))]

    answers = [await code_flow.http.request("TRACE", address) for address in addresses]

    assert len(addresses) == 6
    assert {answer.status_code for answer in answers} == {405}


@pytest.mark.parametrize(
    "algorithm", ["RS256", "PS384", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"]
)
async def test_tokens_verify_with_the_published_keys(algorithm: str) -> None:
    """The key set has public keys only, with ids that no production verifier accepts."""
    walk = CodeFlow(algorithm=algorithm)
    token = (await walk.tokens())["access_token"]
    document = (await walk.http.get("/dev-as/jwks")).json()

    # joserfc refuses the older name of Ed25519 by a warning.
    algorithms = [algorithm]
    with pytest.warns(SecurityWarning) if algorithm == "EdDSA" else nullcontext():
        verified = jwt.decode(token, KeySet.import_key_set(document), algorithms=algorithms)

    assert verified.header["typ"] == "at+jwt"
    assert verified.header["kid"].startswith("dev-")
    assert verified.claims["aud"] == RESOURCE
    assert all("d" not in key for key in document["keys"])


async def test_a_rotated_key_is_published_at_once_and_old_keys_can_be_removed(
    code_flow: CodeFlow,
) -> None:
    """Tests of key rotation need both."""
    first = code_flow.issuer.keys.ids
    unauthenticated = await code_flow.http.post("/dev-as/rotate")
    rotated = await code_flow.http.post("/dev-as/rotate", auth=CLI)
    beside = [key["kid"] for key in (await code_flow.http.get("/dev-as/jwks")).json()["keys"]]
    await code_flow.http.post("/dev-as/rotate", data={"remove_old": "true"}, auth=CLI)
    alone = [key["kid"] for key in (await code_flow.http.get("/dev-as/jwks")).json()["keys"]]

    assert unauthenticated.status_code == 401
    assert beside == [rotated.json()["kid"], *first]
    assert len(alone) == 1
    assert alone[0] not in beside


async def test_a_single_old_key_can_be_withdrawn(code_flow: CodeFlow) -> None:
    """Tests in the same process use the method of the issuer."""
    (first,) = code_flow.issuer.keys.ids
    second = code_flow.issuer.rotate()

    code_flow.issuer.keys.remove(first)

    assert code_flow.issuer.keys.ids == (second,)


@pytest.mark.parametrize("path", [*PATHS, "/dev-as/jwks"])
async def test_metadata_and_keys_can_be_read_from_every_origin(
    code_flow: CodeFlow, path: str
) -> None:
    """Clients in a browser discover the issuer from their own origin."""
    answer = await code_flow.http.get(path, headers={"Origin": "https://anywhere.example"})

    assert answer.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize("path", ["/dev-as/register", "/dev-as/token"])
async def test_the_inspectors_origin_may_use_registration_and_token_endpoint(
    code_flow: CodeFlow, path: str
) -> None:
    """Its pages are on another port of this machine."""
    preflight = await code_flow.http.options(
        path,
        headers={
            "Origin": INSPECTOR,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "content-type, mcp-protocol-version",
        },
    )
    refused = await code_flow.http.post(path, headers={"Origin": INSPECTOR}, content=b"")

    assert preflight.status_code == 204
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert "mcp-protocol-version" in preflight.headers["access-control-allow-headers"].lower()
    assert preflight.headers["access-control-allow-origin"] == INSPECTOR
    assert refused.status_code == 400
    assert refused.headers["access-control-allow-origin"] == INSPECTOR


FOREIGN_ORIGINS = ["https://evil.example", "null", "http://127.0.0.1.evil.example", "http://[", ""]


@pytest.mark.parametrize("origin", FOREIGN_ORIGINS)
@pytest.mark.parametrize("method", ["POST", "OPTIONS"])
async def test_a_foreign_page_cannot_register_a_client(
    code_flow: CodeFlow, origin: str, method: str
) -> None:
    """A page in the browser must not become a client of the issuer on this machine."""
    answer = await code_flow.http.request(
        method,
        "/dev-as/register",
        json={"redirect_uris": ["https://evil.example/"]},
        headers={"Origin": origin, "Access-Control-Request-Method": "POST"},
    )

    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers
    assert len(code_flow.issuer.clients) == 0


async def test_options_without_preflight_headers_gets_405(code_flow: CodeFlow) -> None:
    """The answer names the allowed methods."""
    answer = await code_flow.http.options("/dev-as/token")

    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
