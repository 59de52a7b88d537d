"""Retries as an agent platform sends them, over REST and `/mcp`, with its connection or without."""

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gatepost.tools.context.idempotency_key import CORRELATION, IDEMPOTENCY
from tests.rest.conftest import CALL_STARTED, MAY_CONTINUE, RUNS
from tests.support.client import RestAnswer, RestClient, failure, request, result, session_call
from tests.support.measuring import eventually

pytestmark = pytest.mark.requirement("O12")

EPISODE = CORRELATION.decode()
KEY = IDEMPOTENCY.decode()
BOOKING_ARGUMENTS = {"day": "monday"}


@pytest.fixture(autouse=True)
def slow_bookings() -> Iterator[None]:
    """Hold each booking until the test releases it or ends."""
    CALL_STARTED.clear()
    MAY_CONTINUE.clear()
    yield
    MAY_CONTINUE.set()


class BackgroundBooking(threading.Thread):
    """A booking that runs while the test goes on."""

    def __init__(self, rest_client: RestClient, *fields: tuple[str, str]) -> None:
        super().__init__(daemon=True)
        self.rest_client, self.fields = rest_client, fields
        self.start()

    def run(self) -> None:
        self.heard = self.rest_client.call("book_appointment", BOOKING_ARGUMENTS, *self.fields)

    def done(self) -> RestAnswer:
        MAY_CONTINUE.set()
        self.join(60)
        assert not self.is_alive()
        return self.heard


def bookings(before: int) -> int:
    return len(RUNS) - before


@pytest.mark.parametrize("name", [KEY, EPISODE])
def test_o12_a_retried_call_runs_once(rest_client: RestClient, name: str) -> None:
    """The second answer is the first one."""
    mark, before = (name, f"again-{name}"), len(RUNS)
    first = rest_client.call("create_ticket", {"subject": "a", "priority": "high"}, mark)
    again = rest_client.post("create_ticket", b'{"priority":"high", "subject":"\\u0061"}', mark)

    assert first.status == again.status == 200
    assert first.json == again.json
    assert bookings(before) == 1


@pytest.mark.parametrize("name", [KEY, EPISODE])
def test_o12_a_retry_while_the_first_runs_waits_for_it(rest_client: RestClient, name: str) -> None:
    """Octopus retries a call that timed out; the appointment is booked once."""
    mark, before = (name, f"meanwhile-{name}"), len(RUNS)
    first = BackgroundBooking(rest_client, mark)
    assert CALL_STARTED.wait(60)
    second = BackgroundBooking(rest_client, mark)

    assert first.done().json == second.done().json
    assert bookings(before) == 1


def test_o12_a_retry_after_a_broken_connection_gets_the_outcome(rest_client: RestClient) -> None:
    """A client that hung up retries with the same id and gets the outcome of the running call."""
    mark, before = (EPISODE, "broken"), len(RUNS)
    client, body = rest_client.server.client, json.dumps(BOOKING_ARGUMENTS).encode()
    fields = [
        ("Host", client.authority),
        ("Authorization", f"Bearer {rest_client.token}"),
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(body))),
        mark,
    ]
    with socket.create_connection(("127.0.0.1", client.port), timeout=60) as connection:
        connection.sendall(request("POST", "/tool/book_appointment/call", fields, body))
        assert CALL_STARTED.wait(60)
    eventually(lambda: '"correlation":"broken"' in rest_client.server.log(), within=10)
    again = BackgroundBooking(rest_client, mark)

    assert again.done().json["status"] == "monday"
    assert bookings(before) == 1


def test_o12_other_arguments_under_a_key_are_a_conflict(rest_client: RestClient) -> None:
    """409; an episode's id is no such key, so there it is another call."""
    before = len(RUNS)
    for subject in ("a", "b"):
        heard = rest_client.call("create_ticket", {"subject": subject}, (KEY, "other"))
    assert heard.error == (409, "conflict")
    for subject in ("a", "b"):
        heard = rest_client.call("create_ticket", {"subject": subject}, (EPISODE, "other"))

    assert heard.status == 200
    assert bookings(before) == 3


def test_o12_idempotency_keys_of_tenants_are_isolated(rest_client: RestClient) -> None:
    """Key, tool and arguments are the same."""
    before = len(RUNS)
    globex = RestClient(rest_client.server, rest_client.server.token(org_id="globex"))
    answers = [
        rest_client.call("create_ticket", {"subject": "a"}, (KEY, "x"))
        for rest_client in (rest_client, globex)
    ]

    assert answers[0].json != answers[1].json
    assert bookings(before) == 2


def test_o12_both_protocols_share_their_keys(rest_client: RestClient) -> None:
    """The same caller, tool and key have one effect, over either protocol."""
    before, client, token = len(RUNS), rest_client.server.client, rest_client.token
    arguments = {"subject": "shared"}
    rest = rest_client.call("create_ticket", arguments, (KEY, "shared")).json
    modern = result(client.call(token, "create_ticket", arguments, fields=[(KEY, "shared")]))
    session = [("Mcp-Session-Id", client.open(token)), (KEY, "shared")]
    legacy = result(
        client.send("POST", None, session, session_call("create_ticket", arguments), token=token)
    )

    assert rest == modern["structuredContent"] == legacy["structuredContent"]
    assert bookings(before) == 1


def test_o12_a_refused_call_leaves_its_key_free(rest_client: RestClient) -> None:
    """Arguments are corrected and permissions fetched under the same key."""
    before = len(RUNS)
    assert rest_client.call("create_ticket", {"subject": 7}, (KEY, "free")).error[0] == 422
    assert rest_client.call("close_ticket", {"ticket_id": 1}, (KEY, "free")).error[0] == 403
    assert bookings(before) == 0
    able = RestClient(rest_client.server, rest_client.server.token(scope="tickets:close"))

    assert able.call("create_ticket", {"subject": "a"}, (KEY, "free")).status == 200
    assert able.call("close_ticket", {"ticket_id": 1}, (KEY, "free")).status == 200


REFUSED_KEYS: list[Any] = ["two words", "", "x" * 256, "caf\xe9"]


@pytest.mark.parametrize("key", REFUSED_KEYS, ids=["space", "empty", "long", "accent"])
@pytest.mark.parametrize("name", [KEY, EPISODE])
def test_o12_a_key_that_cannot_be_used_is_refused(
    rest_client: RestClient, name: str, key: str
) -> None:
    """400 on both protocols, before anything runs."""
    before, client = len(RUNS), rest_client.server.client
    rest = rest_client.call("create_ticket", {"subject": "a"}, (name, key))
    modern = client.call(rest_client.token, "create_ticket", {"subject": "a"}, fields=[(name, key)])

    assert rest.status == modern.status == 400
    assert failure(modern)["code"] == -32602
    assert bookings(before) == 0
