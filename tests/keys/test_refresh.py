"""Refresh tokens: rotated at every use, and a second use ends everything from that sign-in."""

import pytest

from tests.support.sign_in import CLI, ORIGIN, CodeFlow, code_flow

__all__ = ["code_flow"]  # a fixture


async def test_every_refresh_gives_a_new_refresh_token(code_flow: CodeFlow) -> None:
    """The access token is new too, with the same person, scope and resource."""
    first = await code_flow.tokens()
    second = (await code_flow.refresh(first["refresh_token"], resource=f"{ORIGIN}/mcp")).json()
    answer = await code_flow.introspect(second["access_token"])

    assert second["refresh_token"] != first["refresh_token"]
    assert second["access_token"] != first["access_token"]
    assert (answer["sub"], answer["scope"]) == ("alice", "files:read files:write")
    assert answer["aud"] == f"{ORIGIN}/mcp"


async def test_a_reused_refresh_token_revokes_all_tokens_of_its_sign_in(
    code_flow: CodeFlow,
) -> None:
    """The thief or the client has used it before (RFC 9700 section 4.14.2)."""
    first = await code_flow.tokens()
    second = (await code_flow.refresh(first["refresh_token"])).json()
    reuse = await code_flow.refresh(first["refresh_token"])
    after = await code_flow.refresh(second["refresh_token"])

    assert (reuse.status_code, reuse.json()["error"]) == (400, "invalid_grant")
    assert after.json()["error"] == "invalid_grant"
    assert await code_flow.introspect(second["access_token"]) == {"active": False}


async def test_a_reused_refresh_token_does_not_affect_another_sign_in(code_flow: CodeFlow) -> None:
    """One stolen token must not sign the person out everywhere."""
    first = await code_flow.tokens()
    other = (await code_flow.exchange(await walk_again(code_flow))).json()
    await code_flow.refresh(first["refresh_token"])
    await code_flow.refresh(first["refresh_token"])

    assert (await code_flow.refresh(other["refresh_token"])).status_code == 200


async def walk_again(code_flow: CodeFlow) -> str:
    consent = await code_flow.authorize()
    back = await code_flow.submit(consent, decision="allow")
    return back.headers["location"].split("code=")[1].split("&")[0]


async def test_a_refresh_may_narrow_and_later_widen_the_scope(code_flow: CodeFlow) -> None:
    """RFC 6749 section 6: the scope never exceeds the grant of the person."""
    first = await code_flow.tokens()
    narrow = (await code_flow.refresh(first["refresh_token"], scope="files:read")).json()
    wide = (await code_flow.refresh(narrow["refresh_token"])).json()
    beyond = await code_flow.refresh(wide["refresh_token"], scope="files:read admin")

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
    code_flow: CodeFlow, changes: dict[str, str], error: str
) -> None:
    """The same token works afterwards."""
    first = await code_flow.tokens()
    answer = await code_flow.refresh(**{"refresh_token": first["refresh_token"], **changes})

    assert (answer.status_code, answer.json()["error"]) == (400, error)
    assert (await code_flow.refresh(first["refresh_token"])).status_code == 200


async def test_a_refresh_token_belongs_to_its_client(code_flow: CodeFlow) -> None:
    """An attempt of another client does not revoke it."""
    first, owner = await code_flow.tokens(), code_flow.client_id
    await code_flow.register()
    stolen = await code_flow.refresh(first["refresh_token"])

    assert stolen.json()["error"] == "invalid_grant"
    assert (await code_flow.refresh(first["refresh_token"], client_id=owner)).status_code == 200


async def test_refresh_tokens_end_eight_hours_after_the_sign_in(code_flow: CodeFlow) -> None:
    """Refreshing does not extend the lifetime."""
    token = (await code_flow.tokens())["refresh_token"]
    for _ in range(3):
        code_flow.clock.now += 2.5 * 3600
        token = (await code_flow.refresh(token)).json()["refresh_token"]
    code_flow.clock.now += 0.5 * 3600

    assert (await code_flow.refresh(token)).json()["error"] == "invalid_grant"


async def test_a_client_can_revoke_its_tokens(code_flow: CodeFlow) -> None:
    """RFC 7009: a refresh token is revoked with all tokens of its sign-in."""
    first = await code_flow.tokens()
    await revoke(code_flow, token=first["access_token"])
    alone = await code_flow.introspect(first["access_token"])
    second = (await code_flow.refresh(first["refresh_token"])).json()
    await revoke(code_flow, token=second["refresh_token"], token_type_hint="nonsense")

    assert alone == {"active": False}
    assert await code_flow.introspect(second["access_token"]) == {"active": False}
    assert (await code_flow.refresh(second["refresh_token"])).json()["error"] == "invalid_grant"


async def revoke(code_flow: CodeFlow, **fields: str) -> None:
    fields = {"client_id": code_flow.client_id} | fields
    answer = await code_flow.http.post("/dev-as/revoke", data=fields)
    assert answer.status_code == 200, answer.text


async def test_revoking_an_unknown_token_succeeds_and_a_foreign_token_fails(
    code_flow: CodeFlow,
) -> None:
    """An unknown token gives no access, but another client's token must stay valid."""
    first = await code_flow.tokens()
    await revoke(code_flow, token="nonsense")
    await code_flow.register()
    data = {"client_id": code_flow.client_id, "token": first["access_token"]}
    foreign = await code_flow.http.post("/dev-as/revoke", data=data)

    assert foreign.json()["error"] == "invalid_grant"
    assert (await code_flow.introspect(first["access_token"]))["active"] is True


async def test_introspection_describes_access_tokens_only(code_flow: CodeFlow) -> None:
    """A resource would accept an active refresh token as an access token."""
    tokens = await code_flow.tokens()
    answer = await code_flow.introspect(tokens["access_token"])
    code_flow.clock.now += 600

    assert answer["active"] is True
    assert (answer["sub"], answer["org_id"], answer["dev"]) == ("alice", "acme", True)
    assert await code_flow.introspect(tokens["refresh_token"]) == {"active": False}
    assert await code_flow.introspect(tokens["access_token"]) == {"active": False}
    assert await code_flow.introspect("nonsense") == {"active": False}


async def test_introspection_needs_a_client_secret(code_flow: CodeFlow) -> None:
    """A registered client gets answers about its own tokens only."""
    tokens = await code_flow.tokens()
    data = {"token": tokens["access_token"]}
    public = await code_flow.http.post(
        "/dev-as/introspect", data={**data, "client_id": code_flow.client_id}
    )
    wrong = await code_flow.http.post("/dev-as/introspect", data=data, auth=(CLI[0], "wrong"))
    other = await code_flow.register(token_endpoint_auth_method="client_secret_post")
    secret = {"client_id": other["client_id"], "client_secret": other["client_secret"]}
    answer = await code_flow.http.post("/dev-as/introspect", data=data | secret)

    assert (public.status_code, wrong.status_code) == (401, 401)
    assert answer.json() == {"active": False}


async def test_a_setting_makes_the_issuer_issue_opaque_tokens() -> None:
    """Tests of verifiers that introspect use it."""
    walk = CodeFlow(access_token_format="opaque")
    token = (await walk.tokens("bob"))["access_token"]

    assert "." not in token
    assert (await walk.introspect(token))["org_id"] == "globex"
