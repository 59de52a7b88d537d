"""What hostile upstreams answer: each has its documented answer, and other calls go on."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.attacks.upstreams.conftest import UpstreamDeployment, outcome_of, text_result
from tests.support.internet import (
    EVENTS,
    Answer,
    Posted,
    begin_answer,
    error_answer,
    event_bytes,
    raw_answer,
    result_answer,
    send_final_event,
    send_more,
)
from tests.support.issuers import Send

MEGABYTE = b"x" * 1_000_000
NESTED_JSON = b'{"a":' * 100_000 + b"1" + b"}" * 100_000


def body(posted: Posted, value: Any) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": posted.id, "result": value})


async def huge(posted: Posted, send: Send) -> None:
    """Send a text of 100 MB."""
    await begin_answer(send)
    await send_more(send, b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"text":"' % posted.id)
    try:
        for _ in range(100):
            await send_more(send, MEGABYTE)
    except OSError:
        return


async def endless(posted: Posted, send: Send) -> None:
    """Send a stream of comments that never ends."""
    await begin_answer(send, kind=EVENTS)
    for _ in range(200_000):
        await send_more(send, b": still here\n\n" * 1_000)


async def endless_line(posted: Posted, send: Send) -> None:
    """Send an event whose line never ends."""
    await begin_answer(send, kind=EVENTS)
    await send_more(send, b"data: ")
    for _ in range(100):
        await send_more(send, MEGABYTE)


async def answer_after_flood(posted: Posted, send: Send) -> None:
    """Send a flood of progress, log messages and changed lists, then the answer."""
    await begin_answer(send, kind=EVENTS)
    token = posted.body["params"]["_meta"].get("progressToken")
    notifications: list[tuple[str, dict[str, Any]]] = [
        ("notifications/progress", {"progressToken": token, "progress": 1, "message": "m" * 900}),
        ("notifications/message", {"level": "emergency", "data": "d" * 900}),
        ("notifications/tools/list_changed", {}),
        ("notifications/unheard_of", {}),
    ]
    for at in range(5_000):
        method, params = notifications[at % 4]
        params = params | {"progress": at} if "progress" in params else params
        await send_more(send, event_bytes({"jsonrpc": "2.0", "method": method, "params": params}))
    await send_more(send, event_bytes(send_final_event(posted, text_result("after the flood"))))


def other_id(change: Callable[[Any], Any]) -> Answer:
    async def answer(posted: Posted, send: Send) -> None:
        whole = {"jsonrpc": "2.0", "id": change(posted.id), "result": text_result("stolen")}
        await raw_answer(msgspec.json.encode(whole))(posted, send)

    return answer


def answer_of_type(kind: str) -> Answer:
    async def answer(posted: Posted, send: Send) -> None:
        await raw_answer(body(posted, text_result("lied")), kind=kind)(posted, send)

    return answer


UPSTREAM_UNAVAILABLE, INTERNAL_ERROR = (503, "upstream_unavailable"), (500, "internal_error")
CALLS: dict[str, tuple[Answer, tuple[int, str]]] = {
    "invalid JSON": (raw_answer(b'{"jsonrpc": "2.0", "id": 1, "result"'), INTERNAL_ERROR),
    "no UTF-8": (
        raw_answer(b'{"jsonrpc":"2.0","id":1,"result":{"content":"\xff"}}'),
        INTERNAL_ERROR,
    ),
    "nothing": (raw_answer(b""), INTERNAL_ERROR),
    "deep JSON": (raw_answer(NESTED_JSON), INTERNAL_ERROR),
    "another id": (other_id(lambda value: value + 1), INTERNAL_ERROR),
    "no id": (other_id(lambda value: None), INTERNAL_ERROR),
    "true as id": (other_id(lambda value: True), INTERNAL_ERROR),
    "HTML": (answer_of_type("text/html"), INTERNAL_ERROR),
    "JSON said to be events": (answer_of_type(EVENTS), INTERNAL_ERROR),
    "no type": (answer_of_type(""), INTERNAL_ERROR),
    "100 MB": (huge, INTERNAL_ERROR),
    "an endless line": (endless_line, INTERNAL_ERROR),
    "an endless stream": (endless, INTERNAL_ERROR),
    "a flood": (answer_after_flood, (200, "ok")),
    "redirect": (raw_answer(b"", 307, location="http://169.254.169.254/latest/"), INTERNAL_ERROR),
    "moved for ever": (raw_answer(b"", 301, location="http://127.0.0.1:1/"), INTERNAL_ERROR),
    "401": (
        raw_answer(b"", 401, www_authenticate='Bearer resource_metadata="https://evil"'),
        UPSTREAM_UNAVAILABLE,
    ),
    "403": (
        raw_answer(b"", 403, www_authenticate='Bearer error="insufficient_scope"'),
        UPSTREAM_UNAVAILABLE,
    ),
    "429": (raw_answer(b"", 429, retry_after="99999999"), UPSTREAM_UNAVAILABLE),
    "503": (raw_answer(b"", 503, retry_after="-1"), UPSTREAM_UNAVAILABLE),
    "500": (raw_answer(b"<html>", 500, kind="text/html"), INTERNAL_ERROR),
    "no content": (result_answer({}), (200, "ok")),
    "content of another type": (result_answer({"content": 7}), INTERNAL_ERROR),
    "blocks without end": (
        result_answer({"content": [{"type": "text", "text": "x"}] * 5_000}),
        INTERNAL_ERROR,
    ),
    "our challenge as an error": (
        error_answer(-32001, "insufficient_scope", 403),
        UPSTREAM_UNAVAILABLE,
    ),
    "an error with a huge message": (error_answer(-32603, "m" * 3_000_000), INTERNAL_ERROR),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_hostile_answer_fails_only_its_own_call(
    deployment: UpstreamDeployment, name: str
) -> None:
    """The caller gets a documented error without the upstream's challenge."""
    answer, documented = CALLS[name]
    upstream, user, identity = deployment.registered("hostile")
    try:
        assert user.refresh(identity).status == 200
        deployment.offered(user, "mcp_hostile__act")
        upstream.answers["tools/call"] = answer
        with deployment.never_stands_still():
            heard = user.call("mcp_hostile__act")
            deployment.others_go_on()
        assert outcome_of(heard) == documented
        if documented == INTERNAL_ERROR and name != "an error with a huge message":
            assert "carried out" in heard.json["message"]
        assert heard.raw.field("www-authenticate") is None
        assert len(heard.raw.body) < 100_000
    finally:
        assert user.ask("DELETE", f"/v1/mcp-servers/{identity}").status == 204
