"""Refresh tokens: rotated at every use, and a second use ends everything from that sign-in."""

import pytest

from tests.support.sign_in import CLI, ORIGIN, CodeFlow, walk

__all__ = ["walk"]  # a fixture


async def test_every_refresh_gives_a_new_refresh_token(walk: CodeFlow) -> None:
    """The access token is new too, with the same person, scope and resource."""
    first = await walk.tokens()
    second = (await walk.refresh(first["refresh_token"], resource=f"{ORIGIN}/mcp")).json()
    answer = await walk.introspect(second["access_token"])

    assert second["refresh_token"] != first["refresh_token"]
    assert second["access_token"] != first["access_token"]
    assert (answer["sub"], answer["scope"]) == ("alice", "files:read files:write")
    assert answer["aud"] == f"{ORIGIN}/mcp"


async def test_a_reused_refresh_token_ends_the_family(walk: CodeFlow) -> None:
    """Thief or client: one of them used it before, so both stop (RFC 9700 section 4.14.2)."""
    first = await walk.tokens()
    second = (await walk.refresh(first["refresh_token"])).json()
    reuse = await walk.refresh(first["refresh_token"])
    after = await walk.refresh(second["refresh_token"])

    assert (reuse.status_code, reuse.json()["error"]) == (400, "invalid_grant")
    assert after.json()["error"] == "invalid_grant"
    assert await walk.introspect(second["access_token"]) == {"active": False}


async def test_another_sign_in_is_not_touched_by_a_reuse(walk: CodeFlow) -> None:
    """Families are separate: one stolen token does not sign a person out everywhere."""
    first = await walk.tokens()
    other = (await walk.exchange(await walk_again(walk))).json()
    await walk.refresh(first["refresh_token"])
    await walk.refresh(first["refresh_token"])

    assert (await walk.refresh(other["refresh_token"])).status_code == 200


async def walk_again(walk: CodeFlow) -> str:
    consent = await walk.authorize()
    back = await walk.submit(consent, decision="allow")
    return back.headers["location"].split("code=")[1].split("&")[0]


async def test_a_refresh_may_narrow_the_scope_and_the_next_one_widens_again(walk: CodeFlow) -> None:
    """RFC 6749 section 6: never beyond what the person granted."""
    first = await walk.tokens()
    narrow = (await walk.refresh(first["refresh_token"], scope="files:read")).json()
    wide = (await walk.refresh(narrow["refresh_token"])).json()
    beyond = await walk.refresh(wide["refresh_token"], scope="files:read admin")

    assert narrow["scope"] == "files:read"
    assert wide["scope"] == "files:read files:write"
    assert beyond.json()["error"] == "invalid_scope"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"resource": f"{ORIGIN}/other"}, "invalid_target"),
        ({"refresh_token": "nonsense"}, "invalid_grant"),
        ({"refresh_token": ""}, "invalid_request"),
    ],
)
async def test_a_faulty_refresh_costs_nothing(
    walk: CodeFlow, changes: dict[str, str], error: str
) -> None:
    """What is refused does not use the token up."""
    first = await walk.tokens()
    answer = await walk.refresh(**{"refresh_token": first["refresh_token"], **changes})

    assert (answer.status_code, answer.json()["error"]) == (400, error)
    assert (await walk.refresh(first["refresh_token"])).status_code == 200


async def test_a_refresh_token_belongs_to_its_client(walk: CodeFlow) -> None:
    """Another client gets nothing, and the owner's token stays good."""
    first, owner = await walk.tokens(), walk.client_id
    await walk.register()
    stolen = await walk.refresh(first["refresh_token"])

    assert stolen.json()["error"] == "invalid_grant"
    assert (await walk.refresh(first["refresh_token"], client_id=owner)).status_code == 200


async def test_eight_hours_after_the_sign_in_it_is_over(walk: CodeFlow) -> None:
    """However often it was refreshed: the lifetime is the sign-in's."""
    token = (await walk.tokens())["refresh_token"]
    for _ in range(3):
        walk.clock.now += 2.5 * 3600
        token = (await walk.refresh(token)).json()["refresh_token"]
    walk.clock.now += 0.5 * 3600

    assert (await walk.refresh(token)).json()["error"] == "invalid_grant"


async def test_a_client_may_give_a_token_back(walk: CodeFlow) -> None:
    """RFC 7009: an access token alone, a refresh token with all that came from its sign-in."""
    first = await walk.tokens()
    await revoke(walk, token=first["access_token"])
    alone = await walk.introspect(first["access_token"])
    second = (await walk.refresh(first["refresh_token"])).json()
    await revoke(walk, token=second["refresh_token"], token_type_hint="nonsense")

    assert alone == {"active": False}
    assert await walk.introspect(second["access_token"]) == {"active": False}
    assert (await walk.refresh(second["refresh_token"])).json()["error"] == "invalid_grant"


async def revoke(walk: CodeFlow, **fields: str) -> None:
    fields = {"client_id": walk.client_id} | fields
    answer = await walk.http.post("/dev-as/revoke", data=fields)
    assert answer.status_code == 200, answer.text


async def test_revoking_what_is_unknown_succeeds_and_what_is_foreign_fails(walk: CodeFlow) -> None:
    """An unknown token has no access already; another client's token must not be revoked."""
    first = await walk.tokens()
    await revoke(walk, token="nonsense")
    await walk.register()
    data = {"client_id": walk.client_id, "token": first["access_token"]}
    foreign = await walk.http.post("/dev-as/revoke", data=data)

    assert foreign.json()["error"] == "invalid_grant"
    assert (await walk.introspect(first["access_token"]))["active"] is True


async def test_introspection_tells_resources_about_access_tokens_only(walk: CodeFlow) -> None:
    """A refresh token is never active: a resource would let it through as an access token."""
    tokens = await walk.tokens()
    answer = await walk.introspect(tokens["access_token"])
    walk.clock.now += 600

    assert answer["active"] is True
    assert (answer["sub"], answer["org_id"], answer["dev"]) == ("alice", "acme", True)
    assert await walk.introspect(tokens["refresh_token"]) == {"active": False}
    assert await walk.introspect(tokens["access_token"]) == {"active": False}
    assert await walk.introspect("nonsense") == {"active": False}


async def test_unauthenticated_clients_learn_nothing_from_introspection(walk: CodeFlow) -> None:
    """It needs a secret; a registered client is told about its own tokens only."""
    tokens = await walk.tokens()
    data = {"token": tokens["access_token"]}
    public = await walk.http.post("/dev-as/introspect", data={**data, "client_id": walk.client_id})
    wrong = await walk.http.post("/dev-as/introspect", data=data, auth=(CLI[0], "wrong"))
    other = await walk.register(token_endpoint_auth_method="client_secret_post")
    secret = {"client_id": other["client_id"], "client_secret": other["client_secret"]}
    answer = await walk.http.post("/dev-as/introspect", data=data | secret)

    assert (public.status_code, wrong.status_code) == (401, 401)
    assert answer.json() == {"active": False}


async def test_opaque_tokens_can_be_had_for_tests() -> None:
    """By a setting, for verifiers that introspect."""
    walk = CodeFlow(access_token_format="opaque")
    token = (await walk.tokens("bob"))["access_token"]

    assert "." not in token
    assert (await walk.introspect(token))["org_id"] == "globex"
