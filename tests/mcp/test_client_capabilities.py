"""What a client did not declare is not asked, and tools may answer errors of their own."""

import asyncio
from typing import Any

import pytest

from gatepost import CallContext, Pack
from gatepost.tools.context.client import NO_CLIENT, ProtocolError
from tests.mcp import fixture_tools
from tests.support.client_requests import (
    CONFIRMATION,
    ROUNDS,
    Ok,
    accepted_form,
    call_with_responses,
    input_requests_of,
    next_round,
    result_text,
)
from tests.support.endpoint import EndpointClient

capability_pack = Pack("odd")


@capability_pack.tool()
async def swallow(ctx: CallContext) -> str:
    """Catch what is not its own."""
    try:
        await ctx.ask("Heard?", Ok)
    except BaseException:  # noqa: BLE001  # what this tool is here for
        return "swallowed"
    return "heard"


@capability_pack.tool()
async def give_up(ctx: CallContext) -> str:
    """End the process, or try to."""
    raise SystemExit(3)


@capability_pack.tool()
async def fail_by_code(ctx: CallContext, code: int) -> str:
    """Answer an error of its own."""
    raise ProtocolError(code, "not today", {"why": "no"})


@capability_pack.tool(timeout_s=0.05)
async def wait_then_ask(ctx: CallContext) -> str:
    """Wait a moment, so that a clock runs, then ask."""
    await asyncio.sleep(0)
    await ctx.ask("Now?", Ok)
    return "asked"


@capability_pack.tool()
async def look_around(ctx: CallContext) -> str:
    """Say what there is to talk to."""
    return "nobody" if ctx.client is NO_CLIENT else "somebody"


@pytest.fixture
def client() -> EndpointClient:
    packs = (ROUNDS, capability_pack, fixture_tools.question_pack)
    return EndpointClient(tool for pack in packs for tool in pack.tools.values())


@pytest.mark.requirement("V-10")
@pytest.mark.parametrize(
    ("tool", "declared", "required"),
    [
        ("purge", {}, {"elicitation": {}}),
        ("purge", {"elicitation": {"url": {}}}, {"elicitation": {"form": {}}}),
        ("purge", {"elicitation": None}, {"elicitation": {}}),
        ("purge", {"sampling": {}}, {"elicitation": {}}),
        ("test_missing_capability", {}, {"sampling": {}}),
        ("test_input_required_result_list_roots", {"sampling": {}}, {"roots": {}}),
        (
            "test_input_required_result_multiple_inputs",
            {"sampling": {}},
            {"elicitation": {}, "roots": {}},
        ),
    ],
)
async def test_v_10_a_client_gets_no_request_that_it_did_not_declare(
    client: EndpointClient, tool: str, declared: Any, required: Any
) -> None:
    """The error names the missing capability."""
    response = await call_with_responses(client, tool, capabilities=declared)

    assert response.error == (400, -32021)
    assert response.json["error"]["data"] == {"requiredCapabilities": required}


@pytest.mark.requirement("V-10", "T-07")
async def test_v_10_a_missing_capability_after_the_first_event_is_an_error_event(
    client: EndpointClient,
) -> None:
    """Before it, the HTTP status shows the error."""
    answer = await call_with_responses(
        client, "test_streaming_elicitation", capabilities={}, meta={"progressToken": 1}
    )
    silent = await call_with_responses(client, "test_streaming_elicitation", capabilities={})

    assert (answer.status, answer.events[-1]["error"]["code"]) == (200, -32021)
    assert silent.error == (400, -32021)


@pytest.mark.requirement("M-04")
@pytest.mark.parametrize(
    ("declared", "key", "method"),
    [
        ({"elicitation": {}, "sampling": {}}, "confirm", "elicitation/create"),
        ({"sampling": {}}, "opinion", "sampling/createMessage"),
        ({"elicitation": {"url": {}}, "sampling": {}}, "opinion", "sampling/createMessage"),
    ],
)
async def test_m_04_a_tool_can_check_the_client_capabilities(
    client: EndpointClient, declared: Any, key: str, method: str
) -> None:
    """They are those of this very request."""
    tool = "test_input_required_result_capabilities"
    requests = input_requests_of(await call_with_responses(client, tool, capabilities=declared))

    assert {name: request["method"] for name, request in requests.items()} == {key: method}


@pytest.mark.requirement("X-02")
async def test_x_02_an_extension_unknown_to_the_server_changes_nothing(
    client: EndpointClient,
) -> None:
    """The request is answered as usual; a missing capability is still named."""
    only = {"extensions": {"com.example/odd": {"x": 1}}}
    both = {**only, "elicitation": {}}

    assert list(
        input_requests_of(await call_with_responses(client, "purge", capabilities=both))
    ) == ["confirm"]
    assert (await call_with_responses(client, "purge", capabilities=only)).error == (400, -32021)


@pytest.mark.requirement("J-07")
async def test_j_07_each_result_names_its_type(client: EndpointClient) -> None:
    """There are two result types."""
    first = await call_with_responses(client, "purge")
    done = await next_round(client, "purge", first, CONFIRMATION)

    types = [response.json["result"]["resultType"] for response in (first, done)]
    assert types == ["input_required", "complete"]


@pytest.mark.requirement("X-03")
async def test_x_03_an_extensions_result_goes_only_to_clients_that_declared_it(
    client: EndpointClient,
) -> None:
    """An unknown extension, or one whose value is no object, has no effect."""
    for extensions in ({"com.example/odd": {}}, {"io.modelcontextprotocol/tasks": None}, None):
        declared = {"elicitation": {}, "extensions": extensions}
        response = await call_with_responses(client, "purge", capabilities=declared)
        assert list(input_requests_of(response)) == ["confirm"]


@pytest.mark.requirement("J-18", "J-19")
@pytest.mark.parametrize(
    ("code", "status"), [(-31999, 200), (1, 200), (-32602, 400), (-32603, 200)]
)
async def test_j_19_a_tool_may_answer_its_own_error_codes(
    client: EndpointClient, code: int, status: int
) -> None:
    """The protocol's reserved codes are excluded, apart from two generic ones."""
    response = await call_with_responses(client, "fail_by_code", {"code": code})

    assert response.error == (status, code)
    assert response.json["error"]["data"] == {"why": "no"}


@pytest.mark.requirement("J-18", "J-19")
@pytest.mark.parametrize("code", [-32000, -32002, -32019, -32021, -32042, -32099, -32700, -32768])
async def test_j_18_a_tool_cannot_answer_the_protocols_own_errors(
    client: EndpointClient, code: int
) -> None:
    """Trying is a mistake in the tool, and shown as one."""
    response = await call_with_responses(client, "fail_by_code", {"code": code})

    assert response.json["result"]["isError"] is True


@pytest.mark.parametrize(
    ("tool", "text"), [("swallow", "swallowed"), ("give_up", "failed unexpectedly")]
)
async def test_a_tool_that_swallows_control_exceptions_breaks_no_later_call(
    client: EndpointClient, tool: str, text: str
) -> None:
    """The next call is answered. One such tool tries to end the process."""
    assert text in result_text(await call_with_responses(client, tool))
    assert result_text(await call_with_responses(client, tool))


async def test_a_tool_with_a_timeout_may_ask(client: EndpointClient) -> None:
    """A question ends the run, and the timeout with it."""
    first = await call_with_responses(client, "wait_then_ask")

    answers = {"question-1": accepted_form(ok=True)}
    assert result_text(await next_round(client, "wait_then_ask", first, answers)) == "asked"


async def test_a_call_without_capabilities_or_progress_gets_no_client_object(
    client: EndpointClient,
) -> None:
    """Most calls are such calls, so they do not pay for one."""
    plain = await call_with_responses(client, "look_around", capabilities={})
    declared = await call_with_responses(client, "look_around", capabilities={"roots": {}})
    answer = await call_with_responses(
        client, "look_around", capabilities={}, meta={"progressToken": 1}
    )

    assert [result_text(response) for response in (plain, declared, answer)] == [
        "nobody",
        "somebody",
        "somebody",
    ]
