"""Scopes over HTTP: what is listed, what is called, what a refusal asks for."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost import CallContext, Pack
from tests.support.client import (
    challenge_of,
    comparable_answer,
    failure,
    modern_request,
    session_call,
)
from tests.support.issuers import Idp
from tests.support.server import CALLS, Server, issuer_settings, running_server

TOOLS = {"packs": [], "load": [__name__]}
IMPLIED_SCOPES = {"c": ["a"]}
SCOPES = st.frozensets(st.sampled_from(["a", "b", "c", "other"]))
Open = Callable[[frozenset[str] | None], Server]


pack = Pack("scoped")


NEEDED_SCOPES: dict[str, frozenset[str]] = {
    "open": frozenset(),
    "needs_a": frozenset({"a"}),
    "needs_b": frozenset({"b"}),
    "needs_c": frozenset({"c"}),
    "needs_ab": frozenset({"a", "b"}),
    "needs_abc": frozenset({"a", "b", "c"}),
}


@pack.tool(name="open")
async def no_scope(ctx: CallContext) -> str:
    """Record a call that needs no scope."""
    CALLS.append(ctx.caller)
    return "done"


@pack.tool(scopes={"a"})
async def needs_a(ctx: CallContext) -> str:
    """Record a call that needs scope a."""
    CALLS.append(ctx.caller)
    return "done"


@pack.tool(scopes={"b"})
async def needs_b(ctx: CallContext, count: int = 1) -> str:
    """Record a call that needs scope b, with an argument that can be invalid."""
    CALLS.append(ctx.caller)
    return "done"


@pack.tool(scopes={"c"})
async def needs_c(ctx: CallContext) -> str:
    """Record a call that needs scope c."""
    CALLS.append(ctx.caller)
    return "done"


@pack.tool(scopes={"a", "b"})
async def needs_ab(ctx: CallContext) -> str:
    """Record a call that needs the scopes a and b."""
    CALLS.append(ctx.caller)
    return "done"


@pack.tool(scopes={"a", "b", "c"}, acr_values=("phr",))
async def needs_abc(ctx: CallContext) -> str:
    """Record a call that needs all scopes and a strong sign-in."""
    CALLS.append(ctx.caller)
    return "done"


@pytest.fixture(scope="module")
def server_with_scopes(idp: Idp) -> Iterator[Open]:
    """Yield a function that starts one server for each set of obtainable scopes."""
    running: dict[frozenset[str] | None, Server] = {}
    with ExitStack() as stack:

        def open_(obtainable: frozenset[str] | None) -> Server:
            if obtainable not in running:
                scopes: dict[str, Any] = {"implied": IMPLIED_SCOPES}
                if obtainable is not None:
                    scopes["obtainable"] = sorted(obtainable)
                issuers = [issuer_settings(idp, tenants={"acme": "acme"})]
                running[obtainable] = stack.enter_context(
                    running_server(idp, issuers, tools=TOOLS, scopes=scopes)
                )
            return running[obtainable]

        yield open_


@pytest.mark.requirement("TL-02", "A-25", "A-28", "A-12")
@given(granted=SCOPES, obtainable=st.none() | SCOPES)
def test_a_list_and_a_call_never_disagree(
    server_with_scopes: Open, granted: frozenset[str], obtainable: frozenset[str] | None
) -> None:
    """For any scopes, a listed tool runs or is challenged, and any other is unknown."""
    server = server_with_scopes(obtainable)
    token = server.token(scope=" ".join(sorted(granted)))
    held_scopes = granted | {"a"} if "c" in granted else granted
    reachable = NEEDED_SCOPES.keys() if obtainable is None else within(held_scopes | obtainable)

    assert server.client.listed(token) == sorted(reachable)
    for name, needed in NEEDED_SCOPES.items():
        answer = server.client.call(token, name)
        if name not in reachable:
            nothing = "x" * len(name)
            assert comparable_answer(answer, name=name) == comparable_answer(
                server.client.call(token, nothing), name=nothing
            )
        elif needed <= held_scopes and name != "needs_abc":
            assert answer.status == 200
        elif needed <= held_scopes:
            assert (answer.status, "acr_values" in challenge_of(answer)) == (401, True)
        else:
            assert answer.status == 403
            assert f'scope="{" ".join(sorted(needed))}"' in challenge_of(answer)


def within(scopes: frozenset[str]) -> list[str]:
    return [name for name, needed in NEEDED_SCOPES.items() if needed <= scopes]


@pytest.mark.requirement("TL-11", "A-12")
@pytest.mark.parametrize(
    "arguments", [{}, {"count": "many"}, {"unknown": 1}, [], None, "text", {"count": 10**400}]
)
def test_a_hidden_tool_is_unknown_for_any_arguments(
    server_with_scopes: Open, arguments: Any
) -> None:
    """In both eras the answer is that for a name that no tool has."""
    server = server_with_scopes(frozenset())
    token = server.token(scope="a")
    session = server.client.open(token)
    seen = []
    with server.nothing_runs():
        for name in ("needs_b", "nothing"):
            fields, body = modern_request("tools/call", {"name": name, "arguments": arguments})
            now = server.client.send("POST", fields=fields, body=body, token=token)
            before = server.client.within(token, session, session_call(name, arguments))
            seen.append((comparable_answer(now, name=name), comparable_answer(before, name=name)))

    assert seen[0] == seen[1]


@pytest.fixture(scope="module")
def server(idp: Idp) -> Iterator[Server]:
    """Yield a server with a baseline and an implication, where all tools' scopes are obtainable."""
    scopes = {"baseline": ["mcp:use"], "implied": {"files:write": ["files:read"]}}
    with running_server(
        idp, [issuer_settings(idp, tenants={"acme": "acme"})], scopes=scopes
    ) as server:
        yield server


def begins(server: Server) -> str:
    return f'Bearer resource_metadata="{server.client.metadata_url}", '


@pytest.mark.requirement("A-21", "A-28", "A3")
def test_a_client_without_a_token_learns_which_scopes_to_request(server: Server) -> None:
    """The baseline scopes come last, after the documented beginning of the challenge."""
    answer = server.client.call(None)

    assert answer.status == 401
    assert challenge_of(answer) == f'{begins(server)}error="invalid_token", scope="mcp:use"'


@pytest.mark.requirement("A-12", "A-28")
@pytest.mark.parametrize("method", ["ping", "tools/list", "server/discover", "initialize"])
def test_without_the_baseline_scopes_every_request_is_refused(server: Server, method: str) -> None:
    """This includes lists and the handshake."""
    answer = server.client.ask(server.token(scope="files:write"), method)

    assert answer.status == 403
    assert challenge_of(answer) == (
        f'{begins(server)}error="insufficient_scope", scope="mcp:use", '
        'error_description="More permissions are required"'
    )
    assert json.loads(answer.body)["error"] == "insufficient_scope"


@pytest.mark.requirement("A-12", "A-28")
@pytest.mark.parametrize("era", ["now", "before"])
def test_a_step_up_names_everything_the_operation_needs(server: Server, era: str) -> None:
    """It includes the baseline, since some clients replace their former scopes."""
    token = server.token(scope="mcp:use")
    with server.nothing_runs():
        if era == "now":
            answer = server.client.call(token, "record_write")
        else:
            session = server.client.open(token)
            answer = server.client.within(token, session, session_call("record_write"))

    assert answer.status == 403
    assert challenge_of(answer) == (
        f'{begins(server)}error="insufficient_scope", scope="mcp:use files:write", '
        'error_description="More permissions are required"'
    )
    assert failure(answer)["data"]["scopes"] == ["files:write"]


@pytest.mark.requirement("A-25")
@pytest.mark.parametrize(
    ("scope", "tool", "status"),
    [("files:write", "record_read", 200), ("files:write", "record_write", 200),
     ("files:read", "record_read", 200), ("files:read", "record_write", 403),
     ("files", "record_read", 403), ("files:write2", "record_read", 403),
     ("FILES:WRITE", "record_write", 403), ("files:write:all", "record_write", 403)],
)  # fmt: skip
def test_a_broad_scope_brings_the_narrow_one_and_not_the_reverse(
    server: Server, scope: str, tool: str, status: int
) -> None:
    """Implications are exactly those configured; scopes are compared whole."""
    assert server.client.call(server.token(scope=f"mcp:use {scope}"), tool).status == status


def signed_in(acr: str, seconds_ago: int) -> dict[str, Any]:
    return {"acr": acr, "auth_time": int(time.time()) - seconds_ago}


WEAK_SIGN_INS = [
    {},
    {"acr": "phr"},
    signed_in("pwd", 0),
    signed_in("phr", 400),
    signed_in("PHR", 0),
]


@pytest.mark.requirement("A-12", "A-15")
@pytest.mark.parametrize("claims", WEAK_SIGN_INS)
def test_a_tool_can_ask_for_a_stronger_or_newer_sign_in(
    server: Server, claims: dict[str, Any]
) -> None:
    """RFC 9470: 401 and not 403, saying which strength and age would do."""
    with server.nothing_runs():
        answer = server.client.call(server.token(scope="mcp:use", **claims), "record_strong")

    assert answer.status == 401
    assert challenge_of(answer) == (
        f'{begins(server)}error="insufficient_user_authentication", acr_values="phr", '
        'max_age="300", error_description="A stronger or newer sign-in is required"'
    )
    assert answer.field("cache-control") == "no-store"


@pytest.mark.requirement("A-12")
def test_a_strong_and_recent_sign_in_satisfies_the_tool(server: Server) -> None:
    """The caller is the same person."""
    token = server.token(scope="mcp:use", **signed_in("phr", 100))

    assert server.client.call(token, "record_strong").status == 200


@pytest.mark.requirement("A-15", "A-28")
@pytest.mark.parametrize("scope", ["", "mcp:use"])
def test_an_expired_token_is_reported_as_expired_before_missing_scopes(
    server: Server, scope: str
) -> None:
    """More scopes would not help it; a new token would."""
    past = int(time.time()) - 3600
    answer = server.client.call(server.token(scope=scope, iat=past, exp=past + 60), "record_write")

    assert answer.status == 401
    assert 'error="invalid_token"' in challenge_of(answer)
    assert 'error_description="The access token expired"' in challenge_of(answer)
