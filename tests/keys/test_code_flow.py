"""The authorization code flow: what it grants, and everything it refuses."""

import pytest
from joserfc import jwt
from joserfc.jwk import KeySet

from tests.support.sign_in import (
    CALLBACK,
    ORIGIN,
    RESOURCE,
    CodeFlow,
    code_challenge,
    code_flow,
    named_cases,
    redirect_query,
)

__all__ = ["code_flow"]  # a fixture


def claims_of(code_flow: CodeFlow, token: str) -> dict[str, object]:
    keys = KeySet.import_key_set(code_flow.issuer.keys.document())
    return jwt.decode(token, keys, algorithms=[code_flow.issuer.keys.algorithm]).claims


@pytest.mark.parametrize(
    ("user", "tenant", "roles"),
    [
        ("alice", "acme", ["approver", "admin", "operator"]),
        ("dave", "acme", ["approver"]),
        ("bob", "globex", None),
    ],
)
async def test_a_token_has_the_claims_of_the_user_client_and_resource(
    code_flow: CodeFlow, user: str, tenant: str, roles: list[str] | None
) -> None:
    """The flow is registration, sign-in, consent and exchange; claims follow RFC 9068."""
    answer = await code_flow.tokens(user, scope="files:read")
    claims = claims_of(code_flow, answer["access_token"])

    assert answer["token_type"] == "Bearer"
    assert answer["scope"] == "files:read"
    assert answer["refresh_token"]
    assert {k: v for k, v in claims.items() if k not in {"jti", "email", "name"}} == {
        "iss": f"{ORIGIN}/dev-as",
        "sub": user,
        "aud": RESOURCE,
        "iat": 1_800_000_000,
        "exp": 1_800_000_600,
        "client_id": code_flow.client_id,
        "org_id": tenant,
        "scope": "files:read",
        "auth_time": 1_800_000_000,
        "acr": "urn:gatepost:dev:basic",
        "dev": True,
        **({"roles": roles} if roles else {}),
    }
    assert claims["email"] == f"{user}@{tenant}.example"


async def test_the_answer_carries_state_and_issuer(code_flow: CodeFlow) -> None:
    """RFC 9207: a client of several issuers must know which one answered."""
    await code_flow.register()
    back = await code_flow.submit(await code_flow.sign_in(), decision="allow")
    answer = redirect_query(back)

    assert back.headers["location"].startswith(CALLBACK)
    assert (answer["state"], answer["iss"]) == ("state-1", f"{ORIGIN}/dev-as")


async def test_a_denied_consent_returns_access_denied_with_state_and_iss(
    code_flow: CodeFlow,
) -> None:
    """The client learns nothing else."""
    await code_flow.register()
    answer = redirect_query(await code_flow.submit(await code_flow.sign_in(), decision="deny"))

    assert answer.pop("error_description")
    assert answer == {"error": "access_denied", "state": "state-1", "iss": f"{ORIGIN}/dev-as"}


async def test_unknown_scopes_are_left_out_of_the_token_response(code_flow: CodeFlow) -> None:
    """RFC 6749 section 3.3; scopes of OpenID Connect are not in the access token."""
    answer = await code_flow.tokens(scope="openid files:write offline_access files:write made:up")

    assert answer["scope"] == "openid files:write"
    assert claims_of(code_flow, answer["access_token"])["scope"] == "files:write"


async def test_a_request_without_scope_gets_the_registered_scopes(code_flow: CodeFlow) -> None:
    """The client may still request further scopes."""
    await code_flow.register(scope="files:read nonsense")
    first = (await code_flow.exchange(await code_flow.code(scope=None))).json()
    more = (await code_flow.exchange(await code_flow.code(scope="files:write"))).json()

    assert (first["scope"], more["scope"]) == ("files:read", "files:write")


async def test_a_request_without_resource_gets_the_only_resource(code_flow: CodeFlow) -> None:
    """Clients before RFC 8707 send no resource; with two resources they are refused."""
    answer = await code_flow.tokens(resource=None)
    two = CodeFlow(resources=(RESOURCE, f"{ORIGIN}/other"))
    await two.register()

    assert claims_of(code_flow, answer["access_token"])["aud"] == RESOURCE
    assert redirect_query(await two.authorize(resource=None))["error"] == "invalid_target"


async def test_a_templated_resource_accepts_one_valid_tenant_segment() -> None:
    """The segment must be a valid tenant id."""
    walk = CodeFlow(resources=(f"{ORIGIN}/t/{{tenant}}/mcp",))
    answer = await walk.tokens(resource=f"{ORIGIN}/t/acme/mcp")

    refused = [
        redirect_query(await walk.authorize(resource=f"{ORIGIN}/t/{part}/mcp"))["error"]
        for part in ("", "ACME", "a/b", "..", "acme\n", "{tenant}")
    ]

    assert claims_of(walk, answer["access_token"])["aud"] == f"{ORIGIN}/t/acme/mcp"
    assert set(refused) == {"invalid_target"}


async def test_an_origin_resource_is_accepted_with_a_trailing_slash() -> None:
    """The TypeScript SDK always adds it; the audience has the configured form."""
    walk = CodeFlow(resources=(ORIGIN,))
    answer = await walk.tokens(resource=f"{ORIGIN}/")

    assert claims_of(walk, answer["access_token"])["aud"] == ORIGIN


SENT_BACK = [
    ("no challenge", {"code_challenge": None, "code_challenge_method": None}, "invalid_request"),
    ("no challenge method", {"code_challenge_method": None}, "invalid_request"),
    ("plain", {"code_challenge_method": "plain"}, "invalid_request"),
    ("method in lower case", {"code_challenge_method": "s256"}, "invalid_request"),
    ("method without challenge", {"code_challenge": None}, "invalid_request"),
    ("challenge too short", {"code_challenge": "abc"}, "invalid_request"),
    ("challenge with newline", {"code_challenge": "a" * 43 + "\n"}, "invalid_request"),
    ("challenge with padding", {"code_challenge": "a" * 42 + "="}, "invalid_request"),
    ("implicit", {"response_type": "token"}, "unsupported_response_type"),
    ("hybrid", {"response_type": "code token"}, "unsupported_response_type"),
    ("unprintable type", {"response_type": 'co"\u2028de'}, "unsupported_response_type"),
    ("no response type", {"response_type": None}, "invalid_request"),
    ("fragment mode", {"response_mode": "fragment"}, "invalid_request"),
    ("form_post mode", {"response_mode": "form_post"}, "invalid_request"),
    ("only unknown scopes", {"scope": "admin:everything"}, "invalid_scope"),
    ("resource elsewhere", {"resource": "https://mcp.example.com/mcp"}, "invalid_target"),
    ("resource prefix", {"resource": f"{RESOURCE}/more"}, "invalid_target"),
    ("resource slash", {"resource": f"{RESOURCE}/"}, "invalid_target"),
    ("resource with fragment", {"resource": f"{RESOURCE}#x"}, "invalid_target"),
    ("resource in capitals", {"resource": RESOURCE.upper()}, "invalid_target"),
    ("empty resource", {"resource": ""}, "invalid_target"),
    ("silence without session", {"prompt": "none"}, "login_required"),
]


@pytest.mark.parametrize(("changes", "error"), named_cases(SENT_BACK))
async def test_an_invalid_request_of_a_known_client_redirects_with_an_error(
    code_flow: CodeFlow, changes: dict[str, str | None], error: str
) -> None:
    """The redirect has `state` and `iss` and no code."""
    await code_flow.register()
    answer = redirect_query(await code_flow.authorize(**changes))

    assert answer["error"] == error
    assert (answer["state"], answer["iss"]) == ("state-1", f"{ORIGIN}/dev-as")
    assert "code" not in answer


async def test_two_resources_at_once_are_refused(code_flow: CodeFlow) -> None:
    """One of the resources could use the token at the other."""
    await code_flow.register()
    query = [*code_flow.request().items(), ("resource", RESOURCE)]

    answer = await code_flow.http.get("/dev-as/authorize", params=query)

    assert redirect_query(answer)["error"] == "invalid_target"


SHOWN_ON_A_PAGE = [
    ("no client", {"client_id": None}),
    ("unknown client", {"client_id": "someone"}),
    ("another address", {"redirect_uri": "https://evil.example/callback"}),
    ("another path", {"redirect_uri": CALLBACK + "/more"}),
    ("dot segments", {"redirect_uri": CALLBACK + "/../x"}),
    ("user information", {"redirect_uri": "http://evil.example@127.0.0.1:41717/callback"}),
    ("a host in disguise", {"redirect_uri": "http://127.0.0.1:41717@evil.example/callback"}),
    ("script", {"redirect_uri": "javascript:alert(1)"}),
    ("a fragment", {"redirect_uri": CALLBACK + "#x"}),
    ("another query", {"redirect_uri": CALLBACK + "?x=1"}),
    ("another name of this machine", {"redirect_uri": "http://localhost:41717/callback"}),
    ("not text", {"redirect_uri": '"><script>\u202e'}),
]


@pytest.mark.parametrize("changes", named_cases(SHOWN_ON_A_PAGE))
async def test_a_browser_is_not_redirected_to_an_unchecked_address(
    code_flow: CodeFlow, changes: dict[str, str | None]
) -> None:
    """The page repeats nothing of the request (open redirect, XSS)."""
    await code_flow.register()
    answer = await code_flow.authorize(**changes)

    assert answer.status_code == 400
    assert answer.headers["content-type"].startswith("text/html")
    assert "location" not in answer.headers
    assert "evil.example" not in answer.text
    assert "script" not in answer.text


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("client_id=a&client_id=b", 400),
        ("client_id=%ff", 400),
        ("client_id", 400),
        ("a=b&&c=d", 400),
        ("&".join(f"p{n}=1" for n in range(60)), 400),
        ("state=" + "a" * 9000, 414),
    ],
)
async def test_an_ambiguous_query_is_refused(code_flow: CodeFlow, query: str, status: int) -> None:
    """The cases are repeated, undecodable and very long parameters."""
    answer = await code_flow.http.get(f"/dev-as/authorize?{query}")

    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("text/html")


EXCHANGES = [
    ("no verifier", {"code_verifier": None}, "invalid_request"),
    ("wrong verifier", {"code_verifier": "b" * 64}, "invalid_grant"),
    ("the challenge as verifier", {"code_verifier": code_challenge("x" * 64)}, "invalid_grant"),
    ("short verifier", {"code_verifier": "short"}, "invalid_request"),
    ("wrong code", {"code": "nonsense"}, "invalid_grant"),
    ("no code", {"code": None}, "invalid_request"),
    ("no redirect address", {"redirect_uri": None}, "invalid_grant"),
    ("another port", {"redirect_uri": "http://127.0.0.1:1/callback"}, "invalid_grant"),
    ("another resource", {"resource": f"{ORIGIN}/other"}, "invalid_target"),
    ("two resources", {"resource": [RESOURCE, RESOURCE + "/x"]}, "invalid_target"),
    ("unknown grant", {"grant_type": "password"}, "unsupported_grant_type"),
    ("no grant", {"grant_type": None}, "invalid_request"),
]


@pytest.mark.parametrize(("changes", "error"), named_cases(EXCHANGES))
async def test_an_invalid_code_exchange_is_refused(
    code_flow: CodeFlow, changes: dict[str, object], error: str
) -> None:
    """The error follows RFC 6749 section 5.2, and the correct exchange still works."""
    await code_flow.register()
    code = await code_flow.code()
    answer = await code_flow.exchange(code, **changes)
    right = await code_flow.exchange(code)

    assert (answer.status_code, answer.json()["error"]) == (400, error)
    assert answer.headers["cache-control"] == "no-store"
    assert right.status_code == 200


async def test_a_code_belongs_to_its_client(code_flow: CodeFlow) -> None:
    """Another registered client fails, even with the verifier (code injection)."""
    await code_flow.register()
    code, owner = await code_flow.code(), code_flow.client_id
    await code_flow.register()
    stolen = await code_flow.exchange(code)

    assert stolen.json()["error"] == "invalid_grant"
    assert (await code_flow.exchange(code, client_id=owner)).status_code == 200


async def test_a_code_lives_a_minute(code_flow: CodeFlow) -> None:
    """Long enough for a client, too short to find it in a log."""
    await code_flow.register()
    code = await code_flow.code()
    code_flow.clock.now += 60

    assert (await code_flow.exchange(code)).json()["error"] == "invalid_grant"


async def test_a_replayed_code_revokes_the_tokens_it_gave(code_flow: CodeFlow) -> None:
    """The server cannot tell the thief from the client (RFC 6749 section 4.1.2)."""
    await code_flow.register()
    code = await code_flow.code()
    first = (await code_flow.exchange(code)).json()
    code_flow.clock.now += 120
    replay = await code_flow.exchange(code)

    assert replay.json()["error"] == "invalid_grant"
    assert await code_flow.introspect(first["access_token"]) == {"active": False}
    assert (await code_flow.refresh(first["refresh_token"])).json()["error"] == "invalid_grant"


async def test_confidential_clients_need_pkce_too(code_flow: CodeFlow) -> None:
    """OAuth 2.1: a secret does not protect against an injected code."""
    await code_flow.register(token_endpoint_auth_method="client_secret_basic")

    answer = redirect_query(
        await code_flow.authorize(code_challenge=None, code_challenge_method=None)
    )

    assert answer["error"] == "invalid_request"


async def test_redirect_uri_is_optional_for_a_single_registered_address(
    code_flow: CodeFlow,
) -> None:
    """With two registered addresses the request must name one."""
    await code_flow.register()
    code = await code_flow.code(redirect_uri=None)
    exchanged = await code_flow.exchange(code, redirect_uri=None)
    await code_flow.register(redirect_uris=[CALLBACK, "https://claude.ai/cb"])

    assert exchanged.status_code == 200
    assert (await code_flow.authorize(redirect_uri=None)).status_code == 400


async def test_a_loopback_redirect_uri_matches_any_port(code_flow: CodeFlow) -> None:
    """RFC 8252 section 7.3: a native client finds a free port after the registration."""
    await code_flow.register(redirect_uris=["http://127.0.0.1/callback"])
    redirect_uri = "http://127.0.0.1:50505/callback"
    back = await code_flow.submit(
        await code_flow.sign_in(redirect_uri=redirect_uri), decision="allow"
    )

    assert back.headers["location"].startswith(redirect_uri + "?")
    exchanged = await code_flow.exchange(redirect_query(back)["code"], redirect_uri=redirect_uri)
    assert exchanged.status_code == 200


async def test_the_redirect_scheme_of_cursor_is_accepted(code_flow: CodeFlow) -> None:
    """Cursor cannot sign in if its registration is refused."""
    scheme = "cursor://anysphere.cursor-mcp/oauth/callback"
    await code_flow.register(
        redirect_uris=[
            scheme,
            "https://www.cursor.com/agents/mcp/oauth/callback",
            "http://localhost:8787/callback",
        ]
    )
    back = await code_flow.submit(await code_flow.sign_in(redirect_uri=scheme), decision="allow")

    assert back.headers["location"].startswith(scheme + "?code=")
