"""Dynamic registration (RFC 7591): open, within limits, and harmless to look at."""

import pytest

from tests.support.sign_in import CALLBACK, CodeFlow, code_flow, named_cases, redirect_query

__all__ = ["code_flow"]  # a fixture

VS_CODE = {
    "client_name": "Visual Studio Code",
    "client_uri": "https://code.visualstudio.com",
    "grant_types": [
        "authorization_code",
        "refresh_token",
        "urn:ietf:params:oauth:grant-type:device_code",
    ],
    "response_types": ["code"],
    "redirect_uris": [
        "https://insiders.vscode.dev/redirect",
        "https://vscode.dev/redirect",
        "http://127.0.0.1/",
        "http://127.0.0.1:33418/",
    ],
    "token_endpoint_auth_method": "none",
    "application_type": "native",
}


async def test_a_public_client_gets_an_id_and_no_secret(code_flow: CodeFlow) -> None:
    """The answer repeats the registered members and leaves out unknown ones."""
    answer = await code_flow.register(**VS_CODE, software_id="ignored", logo_uri=None)

    assert answer.pop("client_id").startswith("dev-client-")
    assert answer.pop("client_id_issued_at") == 1_800_000_000
    assert answer == {**VS_CODE, "grant_types": ["authorization_code", "refresh_token"]}


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
async def test_a_client_must_authenticate_by_its_registered_method(
    code_flow: CodeFlow, method: str
) -> None:
    """Otherwise the exchange fails with 401 `invalid_client`."""
    answer = await code_flow.register(token_endpoint_auth_method=method)
    client = (answer["client_id"], answer["client_secret"])
    code = await code_flow.code()
    posted = {"client_id": client[0], "client_secret": client[1]}
    basic, post = ({"client_id": None}, client), (posted, None)
    right, wrong = (basic, post) if method == "client_secret_basic" else (post, basic)

    without = await code_flow.exchange(code)
    otherwise = await exchange(code_flow, code, *wrong)
    properly = await exchange(code_flow, code, *right)

    assert (without.status_code, without.json()["error"]) == (401, "invalid_client")
    assert without.headers["www-authenticate"].startswith("Basic ")
    assert (otherwise.status_code, otherwise.json()["error"]) == (401, "invalid_client")
    assert properly.status_code == 200


async def exchange(
    code_flow: CodeFlow, code: str, fields: dict[str, object], auth: object
) -> object:
    if auth is None:
        return await code_flow.exchange(code, **fields)
    data = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": CALLBACK,
        "code_verifier": code_flow.verifier,
    }
    return await code_flow.http.post("/dev-as/token", data=data, auth=auth)


async def test_the_default_authentication_method_is_that_of_rfc_7591(code_flow: CodeFlow) -> None:
    """A client that names no method expects a secret."""
    body = {"redirect_uris": [CALLBACK]}
    answer = (await code_flow.http.post("/dev-as/register", json=body)).json()

    assert answer["token_endpoint_auth_method"] == "client_secret_basic"
    assert answer["client_secret"]
    assert answer["grant_types"] == ["authorization_code", "refresh_token"]


REGISTRATIONS = [
    ("no address", {"redirect_uris": []}, "invalid_redirect_uri"),
    ("no addresses", {"redirect_uris": None}, "invalid_redirect_uri"),
    ("too many", {"redirect_uris": [CALLBACK] * 21}, "invalid_redirect_uri"),
    ("one bad", {"redirect_uris": [CALLBACK, "javascript:x"]}, "invalid_redirect_uri"),
    ("plain http", {"redirect_uris": ["http://evil.example/"]}, "invalid_redirect_uri"),
    ("dot segments", {"redirect_uris": [CALLBACK + "/../x"]}, "invalid_redirect_uri"),
    ("fragment", {"redirect_uris": [CALLBACK + "#x"]}, "invalid_redirect_uri"),
    ("a web page's private scheme", {
        "redirect_uris": ["cursor://anysphere.cursor-mcp/oauth/callback"],
        "application_type": "web",
    }, "invalid_redirect_uri"),
    ("a string", {"redirect_uris": CALLBACK}, "invalid_client_metadata"),
    ("numbers", {"redirect_uris": [1]}, "invalid_client_metadata"),
    ("a name that is none", {"client_name": {"a": 1}}, "invalid_client_metadata"),
    ("own keys", {"token_endpoint_auth_method": "private_key_jwt"}, "invalid_client_metadata"),
    ("implicit", {"response_types": ["token"]}, "invalid_client_metadata"),
    ("password", {"grant_types": ["password"]}, "invalid_client_metadata"),
    ("machine", {"grant_types": ["client_credentials"]}, "invalid_client_metadata"),
    ("odd type", {"application_type": "toaster"}, "invalid_client_metadata"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "error"), named_cases(REGISTRATIONS))
async def test_unusable_and_unsafe_registrations_are_refused(
    code_flow: CodeFlow, changes: dict[str, object], error: str
) -> None:
    """The error code is one of RFC 7591 section 3.2.2, and no client is stored."""
    body = {"redirect_uris": [CALLBACK], "token_endpoint_auth_method": "none"} | changes
    answer = await code_flow.http.post("/dev-as/register", json=body)

    assert (answer.status_code, answer.json()["error"]) == (400, error)
    assert len(code_flow.issuer.clients) == 0


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"", "application/json", 400),
        (b"[]", "application/json", 400),
        (b"null", "application/json", 400),
        (b"{", "application/json", 400),
        (b'{"client_name": "\xff"}', "application/json", 400),
        (b'{"x": ' + b"[" * 8000, "application/json", 400),
        (b'{"x": "' + b"x" * 20_000 + b'"}', "application/json", 413),
        (b'{"redirect_uris": ["https://a.example/"]}', "text/plain", 415),
        (b'{"redirect_uris": ["https://a.example/"]}', "application/x-www-form-urlencoded", 415),
    ],
)
async def test_a_malformed_registration_body_is_refused(
    code_flow: CodeFlow, content: bytes, kind: str, status: int
) -> None:
    """It is too large, too deep, not JSON, or of a type that needs no preflight."""
    answer = await code_flow.http.post(
        "/dev-as/register", content=content, headers={"Content-Type": kind}
    )

    assert answer.status_code == status
    assert len(code_flow.issuer.clients) == 0


async def test_a_flood_of_registrations_does_not_evict_the_built_in_client(
    code_flow: CodeFlow,
) -> None:
    """The number of registered clients is limited to a thousand."""
    for _ in range(1_010):
        await code_flow.register()

    assert len(code_flow.issuer.clients) == 1_000
    assert code_flow.issuer.client("gatepost-cli") is not None


async def test_an_unknown_client_gets_invalid_client_at_the_token_endpoint(
    code_flow: CodeFlow,
) -> None:
    """A 401 with that code makes clients register again."""
    code_flow.client_id = "dev-client-of-yesterday"
    answer = await code_flow.exchange("code")

    assert (answer.status_code, answer.json()["error"]) == (401, "invalid_client")


async def test_client_names_are_shortened_and_have_no_reordering_characters(
    code_flow: CodeFlow,
) -> None:
    """Otherwise a client could imitate text of the consent page."""
    await code_flow.register(client_name="\u202eedoC \u2066SV\n" + "x" * 500)
    page = await code_flow.sign_in()

    assert "\u202e" not in page.text
    assert "\u2066" not in page.text
    assert "x" * 81 not in page.text


async def test_a_client_without_the_refresh_grant_gets_no_refresh_token(
    code_flow: CodeFlow,
) -> None:
    """The registration lists its grant types."""
    await code_flow.register(grant_types=["authorization_code"])
    answer = await code_flow.exchange(await code_flow.code())

    assert "refresh_token" not in answer.json()
    assert redirect_query(await code_flow.authorize(prompt="none"))["error"] == "consent_required"
