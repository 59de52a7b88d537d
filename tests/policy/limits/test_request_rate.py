"""Every request of a caller counts, whether it becomes a call or is refused before (P12)."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.client import RawAnswer, failure, message, result
from tests.support.issuers import Idp
from tests.support.measuring import each
from tests.support.server import SAMPLE_TOOLS, Server, issuer_settings, running_server

BURST_SIZE = 5
CANCEL_NOTIFICATION = {
    "jsonrpc": "2.0",
    "method": "notifications/cancelled",
    "params": {"requestId": 1},
}


@pytest.fixture(scope="module")
def server(idp: Idp) -> Iterator[Server]:
    """Run a server that takes a request in ten minutes and five at once."""
    settings: dict[str, Any] = {
        "limits": {"requests_per_second": 1 / 600, "burst": BURST_SIZE},
        "tenancy": {"create_on_first_use": True},
        "scopes": {"obtainable": ["files:read"]},
        "tools": {"packs": [], "load": [SAMPLE_TOOLS]},
    }
    with running_server(idp, [issuer_settings(idp)], **settings) as server:
        yield server


Ask = Callable[[Server, str], RawAnswer]


def session_request(body: bytes) -> Ask:
    """Send a request of 2025-06-18, within a session that is opened for it."""

    def ask(server: Server, token: str) -> RawAnswer:
        session = SESSIONS.get(token) or SESSIONS.setdefault(token, server.client.open(token))
        return server.client.within(token, session, body)

    return ask


SESSIONS: dict[str, str] = {}
CALL = {"name": "record_call", "arguments": {}}

REQUESTS: dict[str, Ask] = {
    "a list": lambda server, token: server.client.ask(token, "tools/list"),
    "discovery": lambda server, token: server.client.ask(token, "server/discover"),
    "a list of prompts": lambda server, token: server.client.ask(token, "prompts/list"),
    "a poll": lambda server, token: server.client.ask(token, "tasks/get", {"taskId": "t_none"}),
    "an unknown method": lambda server, token: server.client.ask(token, "none/such"),
    "an unknown tool": lambda server, token: server.client.call(token, "none_such"),
    "a tool that is out of reach": lambda server, token: server.client.call(token, "record_write"),
    "a missing scope": lambda server, token: server.client.call(token, "record_read"),
    "no name": lambda server, token: server.client.ask(token, "tools/call", {"arguments": {}}),
    "an unknown resource": lambda s, token: s.client.ask(token, "resources/read", {"uri": "no:x"}),
    "an unknown prompt": lambda server, token: server.client.ask(
        token, "prompts/get", {"name": "no"}
    ),
    "no JSON": lambda server, token: server.client.send("POST", body=b"{", token=token),
    "an unserved version": lambda server, token: server.client.send(
        "POST", None, [("MCP-Protocol-Version", "1999-01-01")], message("ping"), token=token
    ),
    "a handshake": lambda server, token: server.client.send(
        "POST",
        body=message(
            "initialize",
            {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "x", "version": "1"},
            },
        ),
        token=token,
    ),
    "a ping": session_request(message("ping")),
    "an older list": session_request(message("tools/list")),
    "an older unknown method": session_request(message("none/such")),
    "an empty batch": lambda server, token: server.client.send("POST", body=b"[]", token=token),
    "a key that is none": lambda server, token: server.client.send(
        "POST", None, [("Idempotency-Key", "")], message("tools/call", CALL), token=token
    ),
    "a list with a key that is none": lambda server, token: server.client.ask(
        token, "tools/list", fields=[("Idempotency-Key", "")]
    ),
}


WITHOUT_ID = ("no JSON", "an empty batch")


@pytest.mark.requirement("P12")
@each("kind", REQUESTS)
def test_every_kind_of_request_spends_from_the_callers_bucket(server: Server, kind: str) -> None:
    """Beyond the burst a request with an id gets -32000 in HTTP 200, and others get 429."""
    token, ask = server.token(org_id=f"acme-{abs(hash(kind))}", scope="other"), REQUESTS[kind]
    before = [ask(server, token) for _ in range(BURST_SIZE - (kind in OLDER_REQUESTS))]
    refused = ask(server, token)

    assert all(json.loads(answer.body).get("error", {}).get("code") != -32000 for answer in before)
    status = 429 if kind in WITHOUT_ID else 200
    assert (refused.status, failure(refused)["code"]) == (status, -32000)
    assert failure(refused)["data"]["limit"] == "caller"
    assert 0 < int(refused.field("retry-after") or 0) <= 600
    with server.nothing_runs():
        assert failure(server.client.call(token))["code"] == -32000


OLDER_REQUESTS = ("a ping", "an older list", "an older unknown method")


@pytest.mark.requirement("P12", "O10")
@pytest.mark.parametrize(
    "kind", ["list", "unknown", "no object", "not JSON", "another tenant", "no such verb"]
)
def test_over_rest_a_refused_request_gets_429(server: Server, kind: str) -> None:
    """Lists and refusals count there, too, with the seconds after which to come back."""
    token = server.token(org_id=f"rest-{abs(hash(kind))}")
    path = "/tool/record_call/call"
    asks: dict[str, Callable[[], RawAnswer]] = {
        "list": lambda: server.client.send("GET", "/tools", token=token),
        "unknown": lambda: server.client.send("POST", "/tool/none/call", body=b"{}", token=token),
        "no object": lambda: server.client.send("POST", path, body=b"[]", token=token),
        "not JSON": lambda: server.client.send("POST", path, body=b"{", token=token),
        "another tenant": lambda: server.client.send(
            "POST", path, [("X-Octopus-Tenant-Id", "other")], b"{}", token=token
        ),
        "no such verb": lambda: server.client.send("GET", path, token=token),
    }
    before = [asks[kind]() for _ in range(BURST_SIZE)]
    refused = asks[kind]()

    assert all(answer.status != 429 for answer in before)
    assert refused.status == 429
    assert json.loads(refused.body)["error"] == "rate_limited"
    assert int(refused.field("retry-after") or 0) > 0


def test_a_call_counts_as_one_request(server: Server) -> None:
    """Neither the protocol nor a failure makes it count twice."""
    token = server.token(org_id="once")
    for number in range(BURST_SIZE):
        answer = server.client.call(token, "record_call" if number % 2 else "none_such")
        assert json.loads(answer.body).get("error", {}).get("code") != -32000

    assert failure(server.client.call(token))["code"] == -32000


def test_a_caller_without_requests_left_can_still_send_notifications(server: Server) -> None:
    """They have their own bucket; beyond it the status is 429."""
    token = server.token(org_id="cancelling")
    session = server.client.open(token)
    while "result" in json.loads(server.client.call(token).body):
        pass
    answers = [
        server.client.within(token, session, json.dumps(CANCEL_NOTIFICATION).encode())
        for _ in range(BURST_SIZE)
    ]
    refused = server.client.within(token, session, json.dumps(CANCEL_NOTIFICATION).encode())

    assert {answer.status for answer in answers} == {202}
    assert (refused.status, failure(refused)["code"]) == (429, -32000)
    assert int(refused.field("retry-after") or 0) > 0


@pytest.mark.parametrize("verb", ["GET", "DELETE"])
def test_a_request_without_a_body_is_refused_by_its_status(server: Server, verb: str) -> None:
    """200 would say that a session has ended, or that a stream is open."""
    token = server.token(org_id=f"verb-{verb.lower()}")
    before = [server.client.send(verb, token=token) for _ in range(BURST_SIZE)]
    refused = server.client.send(verb, token=token)

    assert all(answer.status != 429 for answer in before)
    assert (refused.status, failure(refused)["code"]) == (429, -32000)
    with server.nothing_runs():
        assert failure(server.client.call(token))["code"] == -32000


def test_notifications_of_a_batch_count(server: Server) -> None:
    """They count even without a session, where they have no effect."""
    token = server.token(org_id="batch")
    batch = json.dumps([CANCEL_NOTIFICATION] * BURST_SIZE).encode()
    assert server.client.send("POST", body=batch, token=token).status == 202

    refused = server.client.send("POST", body=json.dumps(CANCEL_NOTIFICATION).encode(), token=token)
    assert (refused.status, failure(refused)["code"]) == (429, -32000)


def test_the_first_requests_of_a_client_fit_the_default_burst(idp: Idp) -> None:
    """Handshake, every list and some calls at once, with the limits that a configuration has."""
    limits: dict[str, Any] = {}
    with running_server(
        idp, [issuer_settings(idp)], tenancy={"create_on_first_use": True}, limits=limits
    ) as server:
        token = server.token(org_id="acme")
        session = server.client.open(token)
        lists = ("tools/list", "prompts/list", "resources/list", "resources/templates/list")
        for method in (*lists, "ping", *lists):
            answer = json.loads(server.client.within(token, session, message(method)).body)
            assert answer.get("error", {}).get("code") != -32000
        for _ in range(8):
            result(server.client.call(token))
