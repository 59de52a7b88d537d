"""What belongs to one caller: sessions, streams, and the token itself."""

import contextlib
import gc
import http.client
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gatepost.runtime.services import Services
from gatepost.tools.calls.runner import GRACE_S
from tests.support.client import (
    comparable_answer,
    failure,
    message,
    modern_request,
    result,
    session_call,
)
from tests.support.issuers import ABSENT, Idp
from tests.support.measuring import each
from tests.support.server import Server, issuer_settings, running_server

TABLE = {"acme": "acme", "globex": "globex", "both": "shared"}


@pytest.fixture(scope="module")
def server(idp: Idp) -> Iterator[Server]:
    """Yield a server with two issuers that share one tenant."""
    issuers = [
        issuer_settings(idp, tenants=TABLE),
        issuer_settings(idp, "twin", tenants={"both": "shared"}),
    ]
    with running_server(idp, issuers) as server:
        yield server


OWNER: dict[str, Any] = {"org_id": "both", "sub": "alice", "client_id": "client-1"}
OTHER_CALLERS: dict[str, tuple[str, dict[str, Any]]] = {
    "same tenant, other subject": ("main", {"sub": "bob"}),
    "other tenant": ("main", {"org_id": "globex"}),
    "same subject at another issuer": ("twin", {}),
    "same subject, other client": ("main", {"client_id": "client-2"}),
    "same subject, no client": ("main", {"client_id": "alice", "sub": "alice"}),
    "subject in another case": ("main", {"sub": "Alice"}),
}


@pytest.mark.requirement("W24", "S-20", "DE-06")
@each("case", OTHER_CALLERS)
@each("version", ["2025-03-26", "2025-06-18", "2025-11-25"])
def test_a_session_belongs_to_one_caller(server: Server, case: str, version: str) -> None:
    """Another caller gets 404 as for an unknown id, and no tool runs."""
    name, changes = OTHER_CALLERS[case]
    session = server.client.open(server.token(**OWNER), version)
    foreign = server.token(name, **OWNER | changes)
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    bodies = [
        session_call("record_call"), message("tools/list"), message("ping"),
        session_call("no_tool"), b"[" + session_call("record_call") + b"]",
        json.dumps(cancel).encode(),
    ]  # fmt: skip
    with server.nothing_runs():
        for body in bodies:
            answer = server.client.within(foreign, session, body)
            unknown = server.client.within(foreign, "garbage", body)
            assert comparable_answer(answer) == comparable_answer(unknown)
            assert answer.status == 404

    assert server.client.within(server.token(**OWNER), session).status == 200


@pytest.mark.requirement("W24", "S-20")
def test_a_session_continues_with_the_owners_next_token(server: Server) -> None:
    """A refreshed token proves the same caller."""
    session = server.client.open(server.token(**OWNER, jti="one"))

    assert server.client.within(server.token(**OWNER, jti="two", scope=""), session).status == 200


@pytest.mark.requirement("A-10", "S-20", "W24")
def test_a_session_id_is_no_credential(server: Server) -> None:
    """A request without a good token of its own gets 401, whatever session it names."""
    session = server.client.open(server.token(**OWNER))
    with server.nothing_runs():
        bare = server.client.send(
            "POST", fields=[("Mcp-Session-Id", session)], body=session_call("record_call")
        )
        expired = server.client.within(server.token(**OWNER, exp=int(time.time()) - 3600), session)

    assert (bare.status, expired.status) == (401, 401)


@pytest.mark.requirement("W24")
def test_a_machine_with_the_name_of_a_person_is_another_caller(server: Server) -> None:
    """A client-credentials token whose subject is a user's id does not take up the session."""
    person = OWNER | {"sub": "service-7", "client_id": "service-7-app"}
    machine = OWNER | {"sub": "service-7", "client_id": "service-7"}
    session = server.client.open(server.token(**person))

    assert server.client.whoami(server.token(**machine))["subject_kind"] == "client"
    assert server.client.within(server.token(**machine), session).status == 404


GRACE = 1.0
WITHIN_S = 30


def shorten_grace(services: Services) -> None:
    services.runner.grace_s = GRACE


@pytest.fixture(scope="module")
def server_with_short_grace(idp: Idp) -> Iterator[Server]:
    """Yield a server whose calls may outlive their token by a second, and not by the usual time."""
    issuer_table = issuer_settings(idp, tenants=TABLE, leeway_s=0)
    with running_server(idp, [issuer_table], prepare=shorten_grace) as server:
        yield server


@contextlib.contextmanager
def open_answer(
    server: Server, token: str, body: bytes, headers: dict[str, str]
) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", server.client.port, timeout=15)
    sent = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"} | headers
    with contextlib.closing(connection):
        connection.request("POST", server.client.path, body, sent)
        yield connection.getresponse()


@pytest.mark.requirement("W25")
def test_a_stream_ends_soon_after_its_token(server_with_short_grace: Server) -> None:
    """The tool is stopped, and the stream ends with the reason."""
    eras = ("modern", "older", "without a stream")
    with ThreadPoolExecutor(len(eras)) as pool:
        # All at once: each waits until its token has expired.
        for ended in [
            pool.submit(ends_soon_after_its_token, server_with_short_grace, era) for era in eras
        ]:
            ended.result(WITHIN_S)


def ends_soon_after_its_token(server: Server, era: str) -> None:
    ends = int(time.time()) + 3
    token = server.token(exp=ends)
    params: dict[str, Any] = {"name": "count_slowly", "arguments": {"steps": 1000, "delay_s": 0.05}}
    fields, body = modern_request(
        "tools/call", params, progress=None if era == "without a stream" else 7
    )
    headers = dict(fields)
    if era == "older":
        session = server.client.open(token)
        headers = {"Mcp-Session-Id": session, "Accept": "text/event-stream, application/json"}
        body = message("tools/call", params | {"_meta": {"progressToken": 7}})
    with open_answer(server, token, body, headers) as answer:
        text = answer.read().decode()
    late = time.time() - ends

    assert answer.status == 200
    assert 0 <= late < GRACE + 5
    if era != "without a stream":
        assert text.count("notifications/progress") > 2
    last = json.loads(text.rstrip().rsplit("data: ", 1)[-1])["result"]
    assert last["isError"] is True
    assert "token expired" in last["content"][0]["text"]
    assert server.client.call(token).status == 401


@pytest.mark.requirement("W25")
def test_a_stream_outlives_its_token_by_less_than_a_minute(server: Server) -> None:
    """The default is long enough for an ordinary call to end, and no longer than promised."""
    assert server.services.runner.grace_s == GRACE_S
    assert server.services.runner.timeout_s < GRACE_S < 60


def test_a_tools_own_time_limit_still_comes_first(idp: Idp) -> None:
    """A longer token lifetime does not extend a tool's timeout."""
    tools = {"packs": [], "load": ["slow_tool.py"]}
    with open("slow_tool.py", "w", encoding="utf-8") as file:
        file.write(SLOW_PACK)
    with running_server(idp, [issuer_settings(idp, tenants=TABLE)], tools=tools) as server:
        outcome = result(server.client.call(server.token(), "never"))

    assert outcome["isError"] is True
    assert "within 0.2 seconds" in outcome["content"][0]["text"]


SLOW_PACK = '''
import asyncio
from gatepost import CallContext, Pack

pack = Pack("slow")


@pack.tool(timeout_s=0.2)
async def never(ctx: CallContext) -> str:
    """Wait for nothing."""
    await asyncio.Event().wait()
    return "never"
'''


def strings_held_by(root: object) -> Iterator[str | bytes]:
    """Yield every text that can be reached from *root* through objects of the project."""
    seen: set[int] = set()
    waiting: list[object] = [root]
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, type):
            continue
        seen.add(id(value))
        if isinstance(value, str | bytes):
            yield value
        elif len(seen) < 200_000:
            waiting += gc.get_referents(value)
            # Frozen structs may be left out of the collector's sight.
            waiting += [
                getattr(value, name, None) for name in getattr(type(value), "__struct_fields__", ())
            ]


@pytest.mark.requirement("A-17", "W26")
def test_a_token_is_in_no_cache_log_or_refusal(server: Server) -> None:
    """No cache key or value, no log line and no refusal contains it."""
    tokens = {
        "accepted": server.token(),
        "expired": server.token(exp=int(time.time()) - 3600, iat=int(time.time()) - 7200),
        "under-scoped": server.token(scope=""),
        "another's": server.token(aud="https://other.example/mcp"),
        "unknown tenant": server.token(org_id=ABSENT),
        "unknown issuer": server.token(iss="https://unknown.example"),
        "garbage": "garbage-" * 8,
    }
    texts = [str(server.client.call(token, "record_write")) for token in tokens.values()]
    texts += [str(server.client.call(token, "record_write")) for token in tokens.values()]
    strings = list(strings_held_by(server.services.decisions))
    strings += strings_held_by(server.services.verifier)

    assert "acme" in strings, "the search does not see into the cache"
    for who, token in tokens.items():
        secret = token.rsplit(".", 1)[-1][-40:]
        assert not [text for text in texts if secret in text], who
        assert secret not in server.log(), who
        assert not [string for string in strings if (secret in string if isinstance(string, str)
                                            else secret.encode() in string)], who  # fmt: skip


@pytest.mark.requirement("A-17")
def test_failures_never_show_the_token(server: Server) -> None:
    """An unknown tool and bad arguments are answered and logged without the credential."""
    token = server.token()
    answers = [
        server.client.call(token, "no_such_tool"),
        server.client.call(token, "echo", {"text": 5}),
        server.client.ask(token, "no/such/method"),
    ]
    secret = token.rsplit(".", 1)[-1]

    assert failure(answers[0])
    assert not [answer for answer in answers if secret in str(answer)]
    assert secret not in server.log()
