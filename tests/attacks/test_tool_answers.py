"""What authors' code answers and raises by error: a failed call, and nothing else."""

import asyncio
import math
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from gatepost import CallContext, Failure, Outcome, Pack, ToolFailure
from gatepost.tools.authoring.prompt import Message
from gatepost.tools.authoring.resource import Contents
from tests.support.endpoint import EndpointClient, Response, message
from tests.support.endpoint_clients import RestEndpoint
from tests.support.measuring import capture_logs, each

HALF_SURROGATE = "\ud800"
"""Half a surrogate pair, as `os.listdir` and `json.loads` answer it."""


class Own(BaseException):
    """A library's way to get past every `except Exception`."""


class Unspeakable(Exception):
    """Cannot even be shown."""

    def __str__(self) -> str:
        raise ValueError

    __repr__ = __str__


def self_containing_object() -> dict[str, Any]:
    circle: dict[str, Any] = {}
    circle["again"] = circle
    return circle


@pytest.fixture(autouse=True)
def captured_logs() -> Iterator[None]:
    """Capture the log, because writing each failure to it would take longer than the tests."""
    with capture_logs():
        yield


def text(value: Any) -> Outcome:
    return Outcome(({"type": "text", "text": value},))


ANSWERS: dict[str, Callable[[], Any]] = {
    "half a character": lambda: HALF_SURROGATE,
    "half a character in a list": lambda: [HALF_SURROGATE],
    "half a character in a block": lambda: text(f"a{HALF_SURROGATE}"),
    "no text": lambda: text(math.nan),
    "a circle": lambda: Outcome((self_containing_object(),)),
    "no blocks": lambda: Outcome(None),  # type: ignore[arg-type]
    "a text for blocks": lambda: Outcome("abc"),  # type: ignore[arg-type]
    "objects for blocks": lambda: Outcome((object(),)),  # type: ignore[arg-type]
    "a text for a failure": lambda: Outcome(failure="no"),  # type: ignore[arg-type]
    "an object for a value": lambda: Outcome(structured=object()),
    "no number of seconds": lambda: Outcome(
        failure=Failure("conflict", "no", retry_after="soon")  # type: ignore[arg-type]
    ),
    "a limit that is no text": lambda: Outcome(
        failure=Failure("rate_limit", "no", limit=msgspec.Raw(b"{"))  # type: ignore[arg-type]
    ),
    "a value that is no JSON": lambda: Outcome(structured=msgspec.Raw(b"{no")),
    "two values": lambda: Outcome(structured=msgspec.Raw(b"{},{}")),
}
SECRET = f"ghp_{'a1B2c3D4e5F6' * 3}"
INVALID_PARTS = {
    "an open object": b'{"x":',
    "nothing": b"",
    "two values": b'1,"b":{"c":2}}',
    "a constant of Python": b"NaN",
    "infinity": b"1e999",
    "no UTF-8": b'"\xff"',
    "half a character": rb'"\ud800"',
    "a secret outside of texts": SECRET.encode(),
}
"""What a tool may give as encoded JSON inside of a value."""
ERRORS = [Own, Unspeakable, KeyboardInterrupt, SystemExit, StopIteration, asyncio.CancelledError]


def tools(work: Callable[[], Any]) -> Pack:
    """Return tools that fail alike in a coroutine, in a thread, and behind their own schema."""
    pack = Pack("odd")

    @pack.tool()
    async def here(ctx: CallContext) -> Any:
        """Raise an unexpected error."""
        return work()

    @pack.tool()
    def apart(ctx: CallContext) -> Any:
        """Raise an unexpected error in a thread."""
        return work()

    async def invoke(ctx: CallContext, arguments: Any) -> Outcome:
        answer = work()
        return answer if isinstance(answer, Outcome) else text(answer)

    pack.add("added", description="x", input_schema={"type": "object"}, invoke=invoke)
    return pack


def assert_failed(response: Response) -> None:
    """Assert that a call failed, that the JSON is whole, and that the error has its reference."""
    result = response.json["result"]
    assert response.status == 200
    assert result["isError"] is True
    assert "request-1" in result["content"][0]["text"]


async def call_over_each_protocol(work: Callable[[], Any]) -> None:
    """Call each kind of tool over each protocol."""
    client = EndpointClient(tools(work).tools.values())
    inner = RestEndpoint(client.runner, client.registry)
    session = await client.open()
    for name in ("here", "apart", "added"):
        assert_failed(await client.call(name))
        assert_failed(
            await client.within(session, message("tools/call", {"name": name, "arguments": {}}))
        )
        plain = await inner.call(client.caller, name)
        assert (plain.status, plain.json["error"]) == (500, "internal_error")


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
async def test_an_answer_that_cannot_be_encoded_is_a_failed_call(answer: Callable[[], Any]) -> None:
    """The runner finds it, so the error has the protocol's form and the request's id."""
    await call_over_each_protocol(answer)


@each("part", INVALID_PARTS.values(), ids=INVALID_PARTS)
async def test_encoded_json_within_an_answer_that_is_no_json_is_a_failed_call(part: bytes) -> None:
    """It would make the whole answer unreadable, and redaction would not find a secret in it."""
    raw = msgspec.Raw(part)
    await call_over_each_protocol(lambda: Outcome(structured={"a": raw}))
    await call_over_each_protocol(lambda: Outcome(structured={"a": raw, "long": "x" * 600}))
    await call_over_each_protocol(lambda: Outcome(({"type": "text", "text": "x", "_meta": raw},)))


class RawMember(msgspec.Struct):
    value: msgspec.Raw


async def test_encoded_json_within_an_answer_is_sent_on_one_line() -> None:
    """A line break would end the message over stdio."""
    pack = Pack("lines")
    raw = msgspec.Raw(b'{"a":\r\n["b",\n1]}')

    @pack.tool()
    async def value(ctx: CallContext) -> Outcome:
        """Answer a value and a block."""
        return Outcome(({"type": "text", "text": "x", "_meta": {"m": raw}},), {"value": raw})

    @pack.tool()
    async def struct(ctx: CallContext) -> RawMember:
        """Answer a struct."""
        return RawMember(raw)

    client = EndpointClient(pack.tools.values())
    for name in ("value", "struct"):
        response = await client.call(name)
        assert response.json["result"]["structuredContent"] == {"value": {"a": ["b", 1]}}
        assert not {*b"\r\n"} & {*response.body}


@pytest.mark.parametrize("kind", ERRORS)
async def test_every_error_that_a_tool_raises_is_a_failed_call(kind: type[BaseException]) -> None:
    """This includes exceptions that `except Exception` does not catch."""

    def work() -> None:
        raise kind

    await call_over_each_protocol(work)


async def test_a_failure_may_contain_characters_that_cannot_be_encoded() -> None:
    """An undecodable file name in the message is shown with replacement characters."""

    def work() -> None:
        raise ToolFailure("not_found", f"There is no {HALF_SURROGATE}.")

    client = EndpointClient(tools(work).tools.values())
    result = (await client.call("here")).json["result"]

    assert result["content"][0]["text"] == "There is no ?."


async def test_line_breaks_in_an_encoded_result_are_removed() -> None:
    """A line break would end the field of an event stream in the middle of the message."""
    client = EndpointClient(
        tools(lambda: Outcome(structured=msgspec.Raw(b'{"a":\n[1]}'))).tools.values()
    )

    assert b'{"a":[1]}' in (await client.call("here")).body


async def test_an_unencodable_resource_or_prompt_fails_its_own_request() -> None:
    """Each one is a JSON-RPC error with the id of its request."""
    pack = Pack("odd")

    @pack.resource("odd://one")
    async def one(ctx: CallContext) -> Any:
        """Return a text that cannot be encoded."""
        return HALF_SURROGATE

    @pack.resource("odd://two")
    async def two(ctx: CallContext) -> Any:
        """Return contents whose MIME type cannot be encoded."""
        return Contents(b"", mime_type=HALF_SURROGATE)

    @pack.prompt()
    async def ask(ctx: CallContext, topic: str) -> Any:
        """Return a message that cannot be encoded."""
        return [Message("user", HALF_SURROGATE)]

    offers = [*pack.documents.values(), *pack.prompts.values()]
    client = EndpointClient(offers)
    answers = [
        await client.ask("resources/read", {"uri": "odd://one"}),
        await client.ask("resources/read", {"uri": "odd://two"}),
        await client.ask("prompts/get", {"name": "ask", "arguments": {"topic": "x"}}),
    ]

    assert [answer.json["id"] for answer in answers] == [7] * 3
    assert [answer.json["error"]["code"] for answer in answers] == [-32603] * 3


async def test_a_failure_whose_text_cannot_be_encoded_is_a_failed_call() -> None:
    """An `Outcome` may contain any text."""
    await call_over_each_protocol(lambda: Outcome(failure=Failure("conflict", HALF_SURROGATE)))


async def test_a_tool_that_reports_progress_often_does_not_block_the_loop() -> None:
    """Most reports are dropped, but each one gives other tasks a chance to run."""
    pack = Pack("busy")
    turns = 0

    @pack.tool()
    async def rows(ctx: CallContext) -> int:
        """Report each of many rows."""
        before = turns
        for row in range(2000):
            await ctx.progress(row)
            await ctx.log("error", row)
        return turns - before

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    answer = await EndpointClient(pack.tools.values()).ask(
        "tools/call",
        {"name": "rows", "arguments": {}},
        meta={"progressToken": 1, "io.modelcontextprotocol/logLevel": "error"},
        accept="text/event-stream",
    )
    other.cancel()

    assert int(answer.events[-1]["result"]["content"][0]["text"]) > 2000


async def test_a_progress_report_that_cannot_be_encoded_fails_the_call() -> None:
    """The last report fails the call too, although it would be sent after the answer."""
    pack = Pack("odd")

    @pack.tool()
    async def rows(ctx: CallContext) -> str:
        """Report each of many rows, in odd words."""
        for row in range(100):
            await ctx.progress(row, message=HALF_SURROGATE if row == 99 else "row")
        return "done"

    answer = await EndpointClient(pack.tools.values()).ask(
        "tools/call",
        {"name": "rows", "arguments": {}},
        meta={"progressToken": 1},
        accept="text/event-stream",
    )

    assert answer.events[-1]["id"] == 7
    assert answer.events[-1]["result"]["isError"] is True
