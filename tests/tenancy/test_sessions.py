"""What belongs to one caller: sessions, streams, and the token itself."""

import contextlib
import gc
import http.client
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gatepost.runtime.services import Services
from gatepost.tools.runner import GRACE_S
from tests.support.cases import each
from tests.support.client import failure, looks, message, modern, old_call, result
from tests.support.issuers import Idp
from tests.support.server import Server, issuer_settings, running_server
from tests.support.tokens import ABSENT

TABLE = {"acme": "acme", "globex": "globex", "both": "shared"}


@pytest.fixture(scope="module")
def site(idp: Idp) -> Iterator[Server]:
    """Two issuers that share one tenant."""
    issuers = [
        issuer_settings(idp, tenants=TABLE),
        issuer_settings(idp, "twin", tenants={"both": "shared"}),
    ]
    with running_server(idp, issuers) as site:
        yield site


OWNER: dict[str, Any] = {"org_id": "both", "sub": "alice", "client_id": "client-1"}
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "same tenant, other subject": ("main", {"sub": "bob"}),
    "other tenant": ("main", {"org_id": "globex"}),
    "same subject at another issuer": ("twin", {}),
    "same subject, other client": ("main", {"client_id": "client-2"}),
    "same subject, no client": ("main", {"client_id": "alice", "sub": "alice"}),
    "subject in another case": ("main", {"sub": "Alice"}),
}


@pytest.mark.requirement("W24", "S-20", "DE-06")
@each("who", OTHERS)
@each("version", ["2025-03-26", "2025-06-18", "2025-11-25"])
def test_a_session_is_nobody_elses(site: Server, who: str, version: str) -> None:
    """404 as for an id that never was, nothing runs, and the owner goes on."""
    name, changes = OTHERS[who]
    session = site.client.open(site.token(**OWNER), version)
    stranger = site.token(name, **OWNER | changes)
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    bodies = [old_call("witness"), message("tools/list"), message("ping"), old_call("no_such_tool"),
              b"[" + old_call("witness") + b"]", json.dumps(cancel).encode()]  # fmt: skip
    with site.nothing_runs():
        for body in bodies:
            answer = site.client.within(stranger, session, body)
            unknown = site.client.within(stranger, "garbage", body)
            assert looks(answer) == looks(unknown)
            assert answer.status == 404

    assert site.client.within(site.token(**OWNER), session).status == 200


@pytest.mark.requirement("W24", "S-20")
def test_a_session_goes_on_with_the_owners_next_token(site: Server) -> None:
    """A refreshed token is the same caller: whose it is counts, not which it is."""
    session = site.client.open(site.token(**OWNER, jti="one"))

    assert site.client.within(site.token(**OWNER, jti="two", scope=""), session).status == 200


@pytest.mark.requirement("A-10", "S-20", "W24")
def test_a_session_is_no_credential(site: Server) -> None:
    """Without a good token of its own a request is 401, whatever session it names."""
    session = site.client.open(site.token(**OWNER))
    with site.nothing_runs():
        bare = site.client.send(
            "POST", fields=[("Mcp-Session-Id", session)], body=old_call("witness")
        )
        expired = site.client.within(site.token(**OWNER, exp=int(time.time()) - 3600), session)

    assert (bare.status, expired.status) == (401, 401)


@pytest.mark.requirement("W24")
def test_a_machine_that_is_called_like_a_person_is_somebody_else(site: Server) -> None:
    """A client-credentials token whose subject is a user's id does not take up the session."""
    person = OWNER | {"sub": "service-7", "client_id": "service-7-app"}
    machine = OWNER | {"sub": "service-7", "client_id": "service-7"}
    session = site.client.open(site.token(**person))

    assert site.client.whoami(site.token(**machine))["subject_kind"] == "client"
    assert site.client.within(site.token(**machine), session).status == 404


GRACE = 1.0


def impatient(services: Services) -> None:
    services.runner.grace_s = GRACE


@pytest.fixture(scope="module")
def short(idp: Idp) -> Iterator[Server]:
    """Calls may outlive their token by a second instead of the usual time, and nothing is late."""
    one = issuer_settings(idp, tenants=TABLE, leeway_s=0)
    with running_server(idp, [one], prepare=impatient) as site:
        yield site


@contextlib.contextmanager
def asking(
    site: Server, token: str, body: bytes, headers: dict[str, str]
) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", site.client.port, timeout=15)
    sent = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"} | headers
    with contextlib.closing(connection):
        connection.request("POST", site.client.path, body, sent)
        yield connection.getresponse()


@pytest.mark.requirement("W25")
@pytest.mark.parametrize("era", ["modern", "older", "without a stream"])
def test_a_stream_ends_soon_after_its_token(short: Server, era: str) -> None:
    """The tool is stopped, the stream says why and ends; the same token opens nothing more."""
    ends = int(time.time()) + 3
    token = short.token(exp=ends)
    params: dict[str, Any] = {"name": "count_slowly", "arguments": {"steps": 1000, "delay_s": 0.05}}
    fields, body = modern("tools/call", params, progress=None if era == "without a stream" else 7)
    headers = dict(fields)
    if era == "older":
        session = short.client.open(token)
        headers = {"Mcp-Session-Id": session, "Accept": "text/event-stream, application/json"}
        body = message("tools/call", params | {"_meta": {"progressToken": 7}})
    with asking(short, token, body, headers) as answer:
        text = answer.read().decode()
    late = time.time() - ends

    assert answer.status == 200
    assert 0 <= late < GRACE + 5
    if era != "without a stream":
        assert text.count("notifications/progress") > 2
    last = json.loads(text.rstrip().rsplit("data: ", 1)[-1])["result"]
    assert last["isError"] is True
    assert "token expired" in last["content"][0]["text"]
    assert short.client.call(token).status == 401


@pytest.mark.requirement("W25")
def test_the_time_beyond_the_token_is_less_than_a_minute(site: Server) -> None:
    """As shipped: long enough for an ordinary call to end, and no longer than promised."""
    assert site.services.runner.grace_s == GRACE_S
    assert site.services.runner.timeout_s < GRACE_S < 60


def test_a_tools_own_time_limit_still_comes_first(idp: Idp) -> None:
    """A token that lasts changes nothing about a tool that takes too long."""
    tools = {"packs": [], "load": ["slow_tool.py"]}
    with open("slow_tool.py", "w", encoding="utf-8") as file:
        file.write(SLOW)
    with running_server(idp, [issuer_settings(idp, tenants=TABLE)], tools=tools) as site:
        outcome = result(site.client.call(site.token(), "never"))

    assert outcome["isError"] is True
    assert "within 0.2 seconds" in outcome["content"][0]["text"]


SLOW = '''
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
    """Every text that can be reached from *root* through objects of ours."""
    seen: set[int] = set()
    waiting: list[object] = [root]
    while waiting:
        held = waiting.pop()
        if id(held) in seen or isinstance(held, type):
            continue
        seen.add(id(held))
        if isinstance(held, str | bytes):
            yield held
        elif len(seen) < 200_000:
            waiting += gc.get_referents(held)
            # Frozen structs may be left out of the collector's sight.
            waiting += [
                getattr(held, name, None) for name in getattr(type(held), "__struct_fields__", ())
            ]


@pytest.mark.requirement("A-17", "W26")
def test_a_token_is_kept_nowhere(site: Server) -> None:
    """Not as a cache's key or value, not in the log, not in what a refusal says."""
    tokens = {
        "accepted": site.token(),
        "expired": site.token(exp=int(time.time()) - 3600, iat=int(time.time()) - 7200),
        "under-scoped": site.token(scope=""),
        "another's": site.token(aud="https://other.example/mcp"),
        "unknown tenant": site.token(org_id=ABSENT),
        "unknown issuer": site.token(iss="https://unknown.example"),
        "garbage": "garbage-" * 8,
    }
    texts = [str(site.client.call(token, "witness_write")) for token in tokens.values()]
    texts += [str(site.client.call(token, "witness_write")) for token in tokens.values()]
    held = list(strings_held_by(site.services.decisions))
    held += strings_held_by(site.services.verifier)

    assert "acme" in held, "the search does not see into the cache"
    for who, token in tokens.items():
        secret = token.rsplit(".", 1)[-1][-40:]
        assert not [text for text in texts if secret in text], who
        assert secret not in site.log(), who
        assert not [one for one in held if (secret in one if isinstance(one, str)
                                            else secret.encode() in one)], who  # fmt: skip


@pytest.mark.requirement("A-17")
def test_a_failing_tool_says_nothing_of_the_token(site: Server) -> None:
    """An unknown tool and bad arguments are answered and logged without the credential."""
    token = site.token()
    answers = [
        site.client.call(token, "no_such_tool"),
        site.client.call(token, "echo", {"text": 5}),
        site.client.ask(token, "no/such/method"),
    ]
    secret = token.rsplit(".", 1)[-1]

    assert failure(answers[0])
    assert not [answer for answer in answers if secret in str(answer)]
    assert secret not in site.log()
