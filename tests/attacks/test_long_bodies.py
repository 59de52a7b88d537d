"""The long bodies of one caller cost neither another caller its turn nor the server much time."""

import asyncio
import json

import pytest

from gatepost.execution.cpu_thread import MAX_WAITING
from gatepost_packs import demo
from tests.support.endpoint import EndpointClient, Response, a_caller
from tests.support.endpoint_clients import RestEndpoint
from tests.support.measuring import HOLD_S, server_garbage_collection, shortest_hold

BOB = a_caller(tenant_id="globex", subject="bob")
LONG_BODY = json.dumps({"zz": '\\"' * 300_000}).encode()
"""What `whoami` does not take, and what takes long to redact."""
ECHO = json.dumps({"text": "x" * 300_000}).encode()


def _rest() -> RestEndpoint:
    client = EndpointClient(demo.pack.tools.values())
    return RestEndpoint(client.runner, client.registry)


async def test_long_bodies_of_one_tenant_do_not_delay_another_tenant() -> None:
    """A caller does not wait for twelve long bodies that another caller sent before."""
    rest, ended = _rest(), list[str]()

    async def post(who: str) -> None:
        if who == "bob":
            answer = await rest.post(BOB, "echo", ECHO)
            assert answer.status == 200
        else:
            answer = await rest.post(a_caller(), "whoami", LONG_BODY)
            assert answer.status == 422
        ended.append(who)

    await asyncio.gather(*(post("alice") for _ in range(12)), post("bob"))
    assert ended.index("bob") <= 2, ended


@pytest.mark.requirement("P12")
async def test_too_many_long_bodies_at_once_are_refused_as_by_a_rate_limit() -> None:
    """Over REST, waiting bodies and all other requests are answered."""
    rest = _rest()
    many = [rest.post(a_caller(), "whoami", LONG_BODY) for _ in range(MAX_WAITING + 10)]
    *answers, other = await asyncio.gather(*many, rest.post(BOB, "echo", ECHO))
    refused = [answer for answer in answers if answer.status == 429]
    # One runs; what the first ones still need finds the queue full, too.
    assert 9 <= len(refused) <= 20
    assert {answer.status for answer in answers} == {422, 429}
    assert refused[0].json["error"] == "rate_limited"
    assert refused[0].json["retry_after"] == 1
    assert "retry-after" in refused[0].headers
    assert other.status == 200


MANY_VALUES = b"[" + b",".join([b'"\\\\\\""'] * 60_000) + b"]"
"""More values than a body may hold; to count them takes milliseconds."""
MESSAGES = {
    "request": b'{"jsonrpc":"2.0","id":7,"method":"tools/list","params":%b}',
    "notification": b'{"jsonrpc":"2.0","method":"notifications/x","params":%b}',
    "response": b'{"jsonrpc":"2.0","id":"7","result":%b}',
    "batch": b"%b",
}


@pytest.mark.requirement("P12")
@pytest.mark.parametrize("kind", MESSAGES)
async def test_too_many_long_messages_at_once_are_refused_as_by_a_rate_limit(kind: str) -> None:
    """Requests get an error with their id, other messages HTTP 429; waiting bodies are served."""
    alice, bob = EndpointClient(demo.pack.tools.values()), EndpointClient(demo.pack.tools.values())
    bob.caller = BOB
    body, order = MESSAGES[kind] % MANY_VALUES, list[str]()

    async def send() -> Response:
        answer = await alice.send(body)
        order.append("alice")
        return answer

    async def call() -> Response:
        answer = await bob.call("echo", {"text": "x" * 300_000})
        order.append("bob")
        return answer

    *answers, other = await asyncio.gather(*(send() for _ in range(MAX_WAITING + 20)), call())
    codes = [
        (answer.status, answer.json["error"]["code"], answer.json.get("id")) for answer in answers
    ]
    identity, status = (7, 200) if kind == "request" else (None, 429)
    busy = codes.index((status, -32000, identity))
    assert set(codes) == {(413, -32600, identity), (status, -32000, identity)}
    assert answers[busy].json["error"]["data"] == {"retryAfter": 1, "limit": "caller"}
    assert answers[busy].headers["retry-after"] == "1"
    assert codes.count(codes[busy]) == 19  # one was counted, and the others waited
    assert other.status == 200
    assert order.index("bob") <= 19 + 8, order  # behind the refused, and one for each of his calls


async def test_a_batch_of_millions_of_messages_is_refused_before_it_is_parsed() -> None:
    """A thread counts the messages, so that the event loop is not blocked."""
    client, body = EndpointClient(), b"[0" + b",0" * 2_090_000 + b"]"

    async def send() -> None:
        assert (await client.send(body)).error == (413, -32600)

    with server_garbage_collection():
        hold_s, limit = await shortest_hold(send, HOLD_S)
    assert hold_s < limit
