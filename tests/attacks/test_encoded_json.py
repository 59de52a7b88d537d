"""What authors give as encoded JSON beside the answers of tools: messages, requests and errors."""

import math
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel, ConfigDict

from gatepost import CallContext, Outcome, Pack
from gatepost.tools.authoring.prompt import Message
from gatepost.tools.authoring.resource import Contents
from gatepost.tools.context.client import InputRequest, ProtocolError
from gatepost.tools.context.content import ListedResource
from tests.attacks.test_tool_answers import INVALID_PARTS, assert_failed
from tests.support.endpoint import META, EndpointClient, Response
from tests.support.endpoint_clients import RestEndpoint
from tests.support.measuring import capture_logs, each

LINES = msgspec.Raw(b'{"a":\r\n["b",\n1]}')
VALUE = {"a": ["b", 1]}
"""What `LINES` says."""
FORM = {"mode": "form", "message": "x", "requestedSchema": {"type": "object", "properties": {}}}


@pytest.fixture(autouse=True)
def captured_logs() -> Iterator[None]:
    """Capture the log, because writing each failure to it would take longer than the tests."""
    with capture_logs():
        yield


async def log(ctx: CallContext, raw: msgspec.Raw) -> None:
    """Log encoded JSON."""
    await ctx.log("error", {"m": raw})


async def ask(ctx: CallContext, raw: msgspec.Raw) -> None:
    """Ask with encoded JSON."""
    form = {**FORM, "_meta": {"m": raw}}
    await ctx.client.request({"form": InputRequest("elicitation/create", form)})


async def refuse(ctx: CallContext, raw: msgspec.Raw) -> None:
    """Refuse with encoded JSON."""
    raise ProtocolError(5, "no", {"m": raw})


Send = Callable[[CallContext, msgspec.Raw], Awaitable[None]]


async def called(send: Send, raw: msgspec.Raw) -> Response:
    """Return the response to a call of a tool that sends encoded JSON, as an event or at once."""
    pack = Pack("odd")

    @pack.tool()
    async def tool(ctx: CallContext) -> str:
        """Send it."""
        await send(ctx, raw)
        return "done"

    meta = {META + "logLevel": "error", META + "clientCapabilities": {"elicitation": {}}}
    parameters = {"name": "tool", "arguments": {}}
    return await EndpointClient(pack.tools.values()).ask(
        "tools/call", parameters, meta=meta, accept="text/event-stream"
    )


@each("send", [log, ask, refuse])
async def test_a_message_of_what_is_no_json_is_not_sent(send: Send) -> None:
    """It could end the event, and a secret in it would not be redacted."""
    for part in INVALID_PARTS.values():
        assert_failed(await called(send, msgspec.Raw(part)))


async def test_encoded_json_in_a_message_is_sent_on_one_line() -> None:
    """A line break ends the field of an event."""
    logged = await called(log, LINES)
    assert logged.events[0]["params"]["data"] == {"m": VALUE}
    asked = await called(ask, LINES)
    assert asked.json["result"]["inputRequests"]["form"]["params"]["_meta"] == {"m": VALUE}
    refused = await called(refuse, LINES)
    assert refused.json["error"]["data"] == {"m": VALUE}
    assert not {*b"\r\n"} & {*asked.body, *refused.body}


async def test_a_protocol_error_that_cannot_be_encoded_is_a_failed_call() -> None:
    """Its data and its code are the author's, too."""

    async def with_object(ctx: CallContext, raw: msgspec.Raw) -> None:
        raise ProtocolError(5, "no", object())

    async def with_code(ctx: CallContext, raw: msgspec.Raw) -> None:
        raise ProtocolError(raw, "no")  # type: ignore[arg-type]

    assert_failed(await called(with_object, LINES))
    assert_failed(await called(with_code, LINES))


def offers(raw: Any) -> EndpointClient:
    """Return a client of a prompt, resources and their list, which all hold encoded JSON."""
    pack = Pack("odd")

    @pack.prompt()
    async def prompt(ctx: CallContext) -> Message:
        """Return a message."""
        return Message("user", {"type": "text", "text": "x", "_meta": {"m": raw}})

    @pack.resource("odd://one")
    async def resource(ctx: CallContext) -> Contents:
        """Return contents."""
        return Contents("x", uri=raw)

    @pack.resource("odd://by-name/{name}")
    async def named(ctx: CallContext, name: str) -> str:
        """Return a text."""
        return name

    @named.list
    def listed(ctx: CallContext) -> list[ListedResource]:
        return [ListedResource(variables={"name": "a"}, title=raw)]

    return EndpointClient(
        [*pack.documents.values(), *pack.templates.values(), *pack.prompts.values()]
    )


@each("part", filter(None, INVALID_PARTS.values()))
async def test_a_prompt_or_a_resource_of_what_is_no_json_is_not_sent(part: bytes) -> None:
    """Each fails its own request; the list lacks the entries of the lister."""
    client = offers(msgspec.Raw(part))

    prompt = await client.ask("prompts/get", {"name": "prompt", "arguments": {}})
    resource = await client.ask("resources/read", {"uri": "odd://one"})
    assert [answer.json["error"]["code"] for answer in (prompt, resource)] == [-32603] * 2
    listed = (await client.ask("resources/list")).json["result"]["resources"]
    assert [entry["uri"] for entry in listed] == ["odd://one"]


async def test_encoded_json_in_a_prompt_or_a_resource_is_sent_on_one_line() -> None:
    """A line break would end the message over stdio."""
    client = offers(LINES)

    prompt = await client.ask("prompts/get", {"name": "prompt", "arguments": {}})
    [message] = prompt.json["result"]["messages"]
    assert message["content"]["_meta"] == {"m": VALUE}
    resource = await client.ask("resources/read", {"uri": "odd://one"})
    assert resource.json["result"]["contents"][0]["uri"] == VALUE
    listed = await client.ask("resources/list")
    assert not {*b"\r\n"} & {*prompt.body, *resource.body, *listed.body}


class StructuredNumber(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="constants")
    value: float


async def test_a_model_with_the_constants_of_python_is_a_failed_call() -> None:
    """`NaN` is no JSON: clients could not read the answer."""
    pack = Pack("odd")
    values = [1.5, math.nan, math.inf]

    @pack.tool()
    async def number(ctx: CallContext) -> StructuredNumber:
        """Return a number."""
        return StructuredNumber(value=values.pop(0))

    client = EndpointClient(pack.tools.values())
    result = (await client.call("number")).json["result"]
    assert result["structuredContent"] == {"value": 1.5}
    assert_failed(await client.call("number"))
    assert_failed(await client.call("number"))


async def test_a_deeply_nested_block_without_encoded_json_is_sent() -> None:
    """The check of blocks has no limit of its own."""
    pack = Pack("odd")

    @pack.tool()
    async def deep(ctx: CallContext) -> Outcome:
        """Return a block of 500 levels."""
        value: Any = 1
        for _ in range(500):
            value = [value]
        return Outcome(({"type": "text", "text": "x", "_meta": {"m": value}},))

    response = await EndpointClient(pack.tools.values()).call("deep")
    assert response.json["result"]["isError"] is False


class Markup(str):
    """A text of a library."""


async def test_a_text_of_a_library_is_sent_as_text() -> None:
    """JSON has one type of text, which the encoder does not find in a subclass."""
    pack = Pack("odd")

    @pack.tool()
    async def page(ctx: CallContext) -> str:
        """Return a text."""
        return Markup("<b>")

    @pack.tool()
    async def pages(ctx: CallContext) -> list[str | bytes]:
        """Return a text and a file."""
        return [Markup("<b>"), b"x"]

    client = EndpointClient(pack.tools.values())
    for name in ("page", "pages"):
        content = (await client.call(name)).json["result"]["content"]
        assert content[0] == {"type": "text", "text": "<b>"}
    plain = await RestEndpoint(client.runner, client.registry).call(client.caller, "page")
    assert plain.json["result"] == "<b>"
