"""The authorization code flow: what it grants, and everything it refuses."""

import pytest
from joserfc import jwt
from joserfc.jwk import KeySet

from tests.support.sign_in import (
    CALLBACK,
    ORIGIN,
    RESOURCE,
    CodeFlow,
    challenge_of,
    query_of,
    table,
    walk,
)

__all__ = ["walk"]  # a fixture


def claims_of(walk: CodeFlow, token: str) -> dict[str, object]:
    keys = KeySet.import_key_set(walk.issuer.keys.document())
    return jwt.decode(token, keys, algorithms=[walk.issuer.keys.algorithm]).claims


@pytest.mark.parametrize(
    ("user", "tenant", "roles"),
    [
        ("alice", "acme", ["approver", "admin", "operator"]),
        ("dave", "acme", ["approver"]),
        ("bob", "globex", None),
    ],
)
async def test_a_token_says_who_signed_in_and_for_what(
    walk: CodeFlow, user: str, tenant: str, roles: list[str] | None
) -> None:
    """The whole way: register, sign in, consent, exchange; the claims are RFC 9068's and ours."""
    answer = await walk.tokens(user, scope="files:read")
    claims = claims_of(walk, answer["access_token"])

    assert answer["token_type"] == "Bearer"
    assert answer["scope"] == "files:read"
    assert answer["refresh_token"]
    assert {k: v for k, v in claims.items() if k not in {"jti", "email", "name"}} == {
        "iss": f"{ORIGIN}/dev-as",
        "sub": user,
        "aud": RESOURCE,
        "iat": 1_800_000_000,
        "exp": 1_800_000_600,
        "client_id": walk.client_id,
        "org_id": tenant,
        "scope": "files:read",
        "auth_time": 1_800_000_000,
        "acr": "urn:gatepost:dev:basic",
        "dev": True,
        **({"roles": roles} if roles else {}),
    }
    assert claims["email"] == f"{user}@{tenant}.example"


async def test_the_answer_carries_state_and_issuer(walk: CodeFlow) -> None:
    """RFC 9207: a client of several issuers must be able to tell whose answer it got."""
    await walk.register()
    back = await walk.submit(await walk.sign_in(), decision="allow")
    answer = query_of(back)

    assert back.headers["location"].startswith(CALLBACK)
    assert (answer["state"], answer["iss"]) == ("state-1", f"{ORIGIN}/dev-as")


async def test_denial_goes_back_as_an_error_with_state_and_issuer(walk: CodeFlow) -> None:
    """The client learns that the person said no, and nothing else."""
    await walk.register()
    answer = query_of(await walk.submit(await walk.sign_in(), decision="deny"))

    assert answer.pop("error_description")
    assert answer == {"error": "access_denied", "state": "state-1", "iss": f"{ORIGIN}/dev-as"}


async def test_scopes_that_do_not_exist_are_left_out_and_the_answer_says_so(walk: CodeFlow) -> None:
    """RFC 6749 section 3.3; scopes of OpenID Connect are the client's and not the token's."""
    answer = await walk.tokens(scope="openid files:write offline_access files:write made:up")

    assert answer["scope"] == "openid files:write"
    assert claims_of(walk, answer["access_token"])["scope"] == "files:write"


async def test_a_client_that_asks_for_no_scope_gets_what_it_registered(walk: CodeFlow) -> None:
    """The registered scope is the default, and never a limit for stepping up."""
    await walk.register(scope="files:read nonsense")
    first = (await walk.exchange(await walk.code(scope=None))).json()
    more = (await walk.exchange(await walk.code(scope="files:write"))).json()

    assert (first["scope"], more["scope"]) == ("files:read", "files:write")


async def test_a_client_from_before_rfc_8707_gets_the_only_resource(walk: CodeFlow) -> None:
    """With one resource there is no doubt which is meant; with two there is."""
    answer = await walk.tokens(resource=None)
    two = CodeFlow(resources=(RESOURCE, f"{ORIGIN}/other"))
    await two.register()

    assert claims_of(walk, answer["access_token"])["aud"] == RESOURCE
    assert query_of(await two.authorize(resource=None))["error"] == "invalid_target"


async def test_each_tenant_may_have_a_resource_of_its_own() -> None:
    """A templated resource accepts exactly one path segment of the tenant grammar."""
    walk = CodeFlow(resources=(f"{ORIGIN}/t/{{tenant}}/mcp",))
    answer = await walk.tokens(resource=f"{ORIGIN}/t/acme/mcp")

    refused = [
        query_of(await walk.authorize(resource=f"{ORIGIN}/t/{part}/mcp"))["error"]
        for part in ("", "ACME", "a/b", "..", "acme\n", "{tenant}")
    ]

    assert claims_of(walk, answer["access_token"])["aud"] == f"{ORIGIN}/t/acme/mcp"
    assert set(refused) == {"invalid_target"}


async def test_a_resource_that_is_an_origin_may_end_in_a_slash() -> None:
    """The TypeScript SDK cannot send it without; the audience is the configured spelling."""
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


@pytest.mark.parametrize(("changes", "error"), table(SENT_BACK))
async def test_a_faulty_request_of_a_known_client_is_sent_back(
    walk: CodeFlow, changes: dict[str, str | None], error: str
) -> None:
    """With `state` and `iss`, and without a code or a page."""
    await walk.register()
    answer = query_of(await walk.authorize(**changes))

    assert answer["error"] == error
    assert (answer["state"], answer["iss"]) == ("state-1", f"{ORIGIN}/dev-as")
    assert "code" not in answer


async def test_two_resources_at_once_are_refused(walk: CodeFlow) -> None:
    """A token for two resources lets one of them use it at the other."""
    await walk.register()
    query = [*walk.request().items(), ("resource", RESOURCE)]

    answer = await walk.http.get("/dev-as/authorize", params=query)

    assert query_of(answer)["error"] == "invalid_target"


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


@pytest.mark.parametrize("changes", table(SHOWN_ON_A_PAGE))
async def test_a_browser_is_not_redirected_to_an_unchecked_address(
    walk: CodeFlow, changes: dict[str, str | None]
) -> None:
    """The person gets a page, which repeats nothing of the request (open redirect, XSS)."""
    await walk.register()
    answer = await walk.authorize(**changes)

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
async def test_a_doubtful_query_is_not_guessed_at(walk: CodeFlow, query: str, status: int) -> None:
    """Repeated, undecodable, endless: no reading of it is safe."""
    answer = await walk.http.get(f"/dev-as/authorize?{query}")

    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("text/html")


EXCHANGES = [
    ("no verifier", {"code_verifier": None}, "invalid_request"),
    ("wrong verifier", {"code_verifier": "b" * 64}, "invalid_grant"),
    ("the challenge as verifier", {"code_verifier": challenge_of("x" * 64)}, "invalid_grant"),
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


@pytest.mark.parametrize(("changes", "error"), table(EXCHANGES))
async def test_a_faulty_exchange_yields_nothing(
    walk: CodeFlow, changes: dict[str, object], error: str
) -> None:
    """400 with the code of RFC 6749 section 5.2, never cached; the right one still works after."""
    await walk.register()
    code = await walk.code()
    answer = await walk.exchange(code, **changes)
    right = await walk.exchange(code)

    assert (answer.status_code, answer.json()["error"]) == (400, error)
    assert answer.headers["cache-control"] == "no-store"
    assert right.status_code == 200


async def test_a_code_belongs_to_its_client(walk: CodeFlow) -> None:
    """Another registered client cannot redeem it, even with the verifier (code injection)."""
    await walk.register()
    code, owner = await walk.code(), walk.client_id
    await walk.register()
    stolen = await walk.exchange(code)

    assert stolen.json()["error"] == "invalid_grant"
    assert (await walk.exchange(code, client_id=owner)).status_code == 200


async def test_a_code_lives_a_minute(walk: CodeFlow) -> None:
    """Long enough for a client, too short to find it in a log."""
    await walk.register()
    code = await walk.code()
    walk.clock.now += 60

    assert (await walk.exchange(code)).json()["error"] == "invalid_grant"


async def test_a_replayed_code_takes_back_what_it_gave(walk: CodeFlow) -> None:
    """Who came first cannot be told, so both lose it (RFC 6749 section 4.1.2)."""
    await walk.register()
    code = await walk.code()
    first = (await walk.exchange(code)).json()
    walk.clock.now += 120
    replay = await walk.exchange(code)

    assert replay.json()["error"] == "invalid_grant"
    assert await walk.introspect(first["access_token"]) == {"active": False}
    assert (await walk.refresh(first["refresh_token"])).json()["error"] == "invalid_grant"


async def test_confidential_clients_need_pkce_too(walk: CodeFlow) -> None:
    """OAuth 2.1: a secret does not protect against an injected code."""
    await walk.register(token_endpoint_auth_method="client_secret_basic")

    answer = query_of(await walk.authorize(code_challenge=None, code_challenge_method=None))

    assert answer["error"] == "invalid_request"


async def test_the_only_registered_address_may_be_left_out(walk: CodeFlow) -> None:
    """With one address it is known where to go; with two the request must say."""
    await walk.register()
    code = await walk.code(redirect_uri=None)
    exchanged = await walk.exchange(code, redirect_uri=None)
    await walk.register(redirect_uris=[CALLBACK, "https://claude.ai/cb"])

    assert exchanged.status_code == 200
    assert (await walk.authorize(redirect_uri=None)).status_code == 400


async def test_a_native_client_may_listen_on_any_port(walk: CodeFlow) -> None:
    """RFC 8252 section 7.3: the free port is found after the registration."""
    await walk.register(redirect_uris=["http://127.0.0.1/callback"])
    redirect_uri = "http://127.0.0.1:50505/callback"
    back = await walk.submit(await walk.sign_in(redirect_uri=redirect_uri), decision="allow")

    assert back.headers["location"].startswith(redirect_uri + "?")
    exchanged = await walk.exchange(query_of(back)["code"], redirect_uri=redirect_uri)
    assert exchanged.status_code == 200


async def test_cursor_comes_back_by_its_own_scheme(walk: CodeFlow) -> None:
    """A registrar that rejects it breaks that client entirely."""
    scheme = "cursor://anysphere.cursor-mcp/oauth/callback"
    await walk.register(
        redirect_uris=[
            scheme,
            "https://www.cursor.com/agents/mcp/oauth/callback",
            "http://localhost:8787/callback",
        ]
    )
    back = await walk.submit(await walk.sign_in(redirect_uri=scheme), decision="allow")

    assert back.headers["location"].startswith(scheme + "?code=")
