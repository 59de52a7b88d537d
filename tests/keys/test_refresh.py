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


async def test_a_reused_refresh_token_revokes_all_tokens_of_its_sign_in(walk: CodeFlow) -> None:
    """The thief or the client has used it before (RFC 9700 section 4.14.2)."""
    first = await walk.tokens()
    second = (await walk.refresh(first["refresh_token"])).json()
    reuse = await walk.refresh(first["refresh_token"])
    after = await walk.refresh(second["refresh_token"])

    assert (reuse.status_code, reuse.json()["error"]) == (400, "invalid_grant")
    assert after.json()["error"] == "invalid_grant"
    assert await walk.introspect(second["access_token"]) == {"active": False}


async def test_a_reused_refresh_token_does_not_affect_another_sign_in(walk: CodeFlow) -> None:
    """One stolen token must not sign the person out everywhere."""
    first = await walk.tokens()
    other = (await walk.exchange(await walk_again(walk))).json()
    await walk.refresh(first["refresh_token"])
    await walk.refresh(first["refresh_token"])

    assert (await walk.refresh(other["refresh_token"])).status_code == 200


async def walk_again(walk: CodeFlow) -> str:
    consent = await walk.authorize()
    back = await walk.submit(consent, decision="allow")
    return back.headers["location"].split("code=")[1].split("&")[0]


async def test_a_refresh_may_narrow_and_later_widen_the_scope(walk: CodeFlow) -> None:
    """RFC 6749 section 6: the scope never exceeds the grant of the person."""
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
async def test_a_refused_refresh_does_not_use_up_the_token(
    walk: CodeFlow, changes: dict[str, str], error: str
) -> None:
    """The same token works afterwards."""
    first = await walk.tokens()
    answer = await walk.refresh(**{"refresh_token": first["refresh_token"], **changes})

    assert (answer.status_code, answer.json()["error"]) == (400, error)
    assert (await walk.refresh(first["refresh_token"])).status_code == 200


async def test_a_refresh_token_belongs_to_its_client(walk: CodeFlow) -> None:
    """An attempt of another client does not revoke it."""
    first, owner = await walk.tokens(), walk.client_id
    await walk.register()
    stolen = await walk.refresh(first["refresh_token"])

    assert stolen.json()["error"] == "invalid_grant"
    assert (await walk.refresh(first["refresh_token"], client_id=owner)).status_code == 200


async def test_refresh_tokens_end_eight_hours_after_the_sign_in(walk: CodeFlow) -> None:
    """Refreshing does not extend the lifetime."""
    token = (await walk.tokens())["refresh_token"]
    for _ in range(3):
        walk.clock.now += 2.5 * 3600
        token = (await walk.refresh(token)).json()["refresh_token"]
    walk.clock.now += 0.5 * 3600

    assert (await walk.refresh(token)).json()["error"] == "invalid_grant"


async def test_a_client_can_revoke_its_tokens(walk: CodeFlow) -> None:
    """RFC 7009: a refresh token is revoked with all tokens of its sign-in."""
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


async def test_revoking_an_unknown_token_succeeds_and_a_foreign_token_fails(walk: CodeFlow) -> None:
    """An unknown token gives no access, but another client's token must stay valid."""
    first = await walk.tokens()
    await revoke(walk, token="nonsense")
    await walk.register()
    data = {"client_id": walk.client_id, "token": first["access_token"]}
    foreign = await walk.http.post("/dev-as/revoke", data=data)

    assert foreign.json()["error"] == "invalid_grant"
    assert (await walk.introspect(first["access_token"]))["active"] is True


async def test_introspection_describes_access_tokens_only(walk: CodeFlow) -> None:
    """A resource would accept an active refresh token as an access token."""
    tokens = await walk.tokens()
    answer = await walk.introspect(tokens["access_token"])
    walk.clock.now += 600

    assert answer["active"] is True
    assert (answer["sub"], answer["org_id"], answer["dev"]) == ("alice", "acme", True)
    assert await walk.introspect(tokens["refresh_token"]) == {"active": False}
    assert await walk.introspect(tokens["access_token"]) == {"active": False}
    assert await walk.introspect("nonsense") == {"active": False}


async def test_introspection_needs_a_client_secret(walk: CodeFlow) -> None:
    """A registered client gets answers about its own tokens only."""
    tokens = await walk.tokens()
    data = {"token": tokens["access_token"]}
    public = await walk.http.post("/dev-as/introspect", data={**data, "client_id": walk.client_id})
    wrong = await walk.http.post("/dev-as/introspect", data=data, auth=(CLI[0], "wrong"))
    other = await walk.register(token_endpoint_auth_method="client_secret_post")
    secret = {"client_id": other["client_id"], "client_secret": other["client_secret"]}
    answer = await walk.http.post("/dev-as/introspect", data=data | secret)

    assert (public.status_code, wrong.status_code) == (401, 401)
    assert answer.json() == {"active": False}


async def test_a_setting_makes_the_issuer_issue_opaque_tokens() -> None:
    """Tests of verifiers that introspect use it."""
    walk = CodeFlow(access_token_format="opaque")
    token = (await walk.tokens("bob"))["access_token"]

    assert "." not in token
    assert (await walk.introspect(token))["org_id"] == "globex"
