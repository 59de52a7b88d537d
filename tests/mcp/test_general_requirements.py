"""Requirements of the protocol that belong to no single feature."""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any

import pytest
from pydantic import Field

from gatepost import CallContext, Contents, Message, Outcome, Pack, ToolFailure
from gatepost.config.settings import Listen
from tests.architecture.source import ROOT
from tests.support.endpoint import META, EndpointClient, a_caller, message
from tests.support.server import recorder

SERVER = META + "serverInfo"
pack = Pack("manners")


@pack.tool(read_only=True)
async def structured(ctx: CallContext) -> dict[str, int]:
    """Answer a structured value."""
    return {"rows": 2}


@pack.tool()
async def failing(ctx: CallContext, kind: str) -> str:
    """Fail in the way that is asked for."""
    raise ToolFailure(kind, f"This is how {kind} reads.")  # type: ignore[arg-type]


@pack.tool(read_only=True)
async def limited(
    ctx: CallContext,
    size: Annotated[int, Field(ge=1, le=3, json_schema_extra={"x-mcp-header": "Size"})],
) -> int:
    """Answer a number between 1 and 3."""
    return size


@pack.resource("desk://{name}")
async def furniture(ctx: CallContext, name: str) -> str:
    """Return a piece of furniture and its owner."""
    return f"{ctx.caller.tenant_id}'s {name}"


@pack.prompt()
async def greet(ctx: CallContext, name: str) -> list[Message]:
    """Greet a person."""
    return [Message("user", Contents(f"Greet {name}", uri="desk://greeting"))]


@pytest.fixture
def client() -> EndpointClient:
    return EndpointClient([*pack.offers, *recorder.offers])


def sized(value: Any, header: str) -> tuple[dict[str, Any], dict[str, str]]:
    return {"name": "limited", "arguments": {"size": value}}, {"mcp_param_size": header}


@pytest.mark.requirement("V-03", "E-16")
@pytest.mark.parametrize("info", [{"name": "admin", "version": "9"}, {"name": "x"}, None])
async def test_v_03_client_info_does_not_change_the_caller(
    client: EndpointClient, info: Mapping[str, str] | None
) -> None:
    """The token says who calls."""
    meta = {} if info is None else {META + "clientInfo": info}

    answer = await client.ask("resources/read", {"uri": "desk://lamp"}, meta=meta)

    assert answer.json["result"]["contents"][0]["text"] == "acme's lamp"


@pytest.mark.requirement("V-07")
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("server/discover", {}),
        ("tools/list", {}),
        ("tools/call", {"name": "structured"}),
        ("resources/list", {}),
        ("resources/templates/list", {}),
        ("resources/read", {"uri": "desk://lamp"}),
        ("prompts/list", {}),
        ("prompts/get", {"name": "greet", "arguments": {"name": "Bo"}}),
    ],
)
async def test_v_07_every_result_names_the_server(
    client: EndpointClient, method: str, params: dict[str, Any]
) -> None:
    """A client may never have asked for discovery."""
    answer = await client.ask(method, params)

    assert answer.json["result"]["_meta"][SERVER] == {"name": "gatepost", "version": "1.0"}


@pytest.mark.requirement("L-06")
@pytest.mark.parametrize(
    "params",
    [{}, {"protocolVersion": 7}, {"protocolVersion": "2025-11-25", "capabilities": []}, []],
)
async def test_l_06_a_malformed_handshake_is_refused(client: EndpointClient, params: Any) -> None:
    """The error has -32602, and no session is opened."""
    answer = await client.send(message("initialize", params))

    assert answer.json["error"]["code"] == -32602
    assert "mcp-session-id" not in answer.headers


@pytest.mark.requirement("L-03", "S-05")
async def test_l_03_a_request_before_initialized_gets_only_its_response(
    client: EndpointClient,
) -> None:
    """The answer is a single JSON response without any other message."""
    session = await client.open()

    answer = await client.within(
        session,
        message("tools/call", {"name": "structured", "arguments": {}}),
        ("accept", "application/json, text/event-stream"),
    )

    assert answer.json["id"] == 7


@pytest.mark.requirement("T-03")
def test_t_03_a_server_listens_on_loopback_by_default() -> None:
    """An operator has to configure any other address."""
    assert Listen().host == "127.0.0.1"


@pytest.mark.requirement("T-14", "T-12")
async def test_t_14_a_session_id_beside_a_modern_request_is_ignored(client: EndpointClient) -> None:
    """Neither the session id nor an event id is looked up or returned."""
    answer = await client.ask("tools/list", mcp_session_id="invented", last_event_id="7")

    assert answer.status == 200
    assert "mcp-session-id" not in answer.headers


@pytest.mark.requirement("S-19")
async def test_s_19_a_session_uses_its_negotiated_revision(client: EndpointClient) -> None:
    """Clients of 2025-03-26 never send the version header."""
    for version, batches in (("2025-03-26", True), ("2025-06-18", False)):
        session = await client.open(version)

        answer = await client.within(session, b"[" + message("ping") + b"]")

        assert (answer.status == 200) is batches


@pytest.mark.requirement("H-11")
@pytest.mark.parametrize(
    ("value", "header", "fits"),
    [(2, "2", True), (2, "2.0", True), (2, "3", False), (2, "x", False)],
)
async def test_h_11_integers_are_compared_as_numbers(
    client: EndpointClient, value: int, header: str, fits: bool
) -> None:
    """Different spellings of one number match."""
    params, headers = sized(value, header)

    answer = await client.ask("tools/call", params, **headers)

    assert ("result" in answer.json) is fits


@pytest.mark.requirement("H-15")
async def test_h_15_a_mirrored_header_grants_no_scope_and_no_tenant(client: EndpointClient) -> None:
    """Scopes and the tenant come from the token only."""
    client.caller = a_caller(scopes=frozenset())
    pretending = {"mcp_param_tenant": "globex", "x_octopus_tenant_id": "globex"}

    read = await client.ask("resources/read", {"uri": "desk://lamp"}, **pretending)
    written = await client.ask("tools/call", {"name": "record_write"}, **pretending)

    assert read.json["result"]["contents"][0]["text"] == "acme's lamp"
    assert written.status == 403


@pytest.mark.requirement("H-16")
@pytest.mark.parametrize("setting", ["max_header_bytes", "max_body_bytes"])
def test_h_16_the_limits_are_documented(setting: str) -> None:
    """The page has their defaults, for authors of clients and proxies."""
    page = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    errors = (ROOT / "docs/errors.md").read_text(encoding="utf-8")

    assert f"limits.{setting}" in page
    assert re.search(r"\b431\b", errors)
    assert re.search(r"\b413\b", errors)


@pytest.mark.requirement("H-23")
def test_h_23_the_docs_warn_against_mirroring_secrets() -> None:
    """Headers end up in the logs of proxies."""
    page = (ROOT / "docs/tools.md").read_text(encoding="utf-8")

    assert re.search(r"x-mcp-header[^\n]*\n?[^\n]*(secret|personal)", page)


@pytest.mark.requirement("TL-06")
@pytest.mark.parametrize("name", ["", "Upper", "with space", "a/b", "a.b", "é", "x" * 65])
def test_tl_06_tool_names_are_safe_everywhere(name: str) -> None:
    """Names fit headers, URLs, metrics and every client; the error names an invalid one."""
    with pytest.raises(ValueError, match=re.escape(repr(name))):
        Pack("names").add(name, description="x", input_schema={"type": "object"}, invoke=_never)


async def _never(ctx: CallContext, arguments: Any) -> Outcome:
    raise AssertionError


@pytest.mark.requirement("TL-09")
async def test_tl_09_a_structured_value_is_in_the_text_too(client: EndpointClient) -> None:
    """Some clients know no structured content."""
    result = (await client.call("structured")).json["result"]

    assert json.loads(result["content"][0]["text"]) == result["structuredContent"] == {"rows": 2}


@pytest.mark.requirement("TL-12")
@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("limited", {"size": 9}, "size"),
        ("limited", {}, "size"),
        ("failing", {"kind": "upstream_unavailable"}, "upstream_unavailable"),
        ("failing", {"kind": "denied"}, "denied"),
    ],
)
async def test_tl_12_a_failure_that_a_model_can_correct_is_a_tool_result(
    client: EndpointClient, tool: str, arguments: dict[str, Any], message: str
) -> None:
    """Invalid arguments, an upstream outage and a denied call have `isError` and a text."""
    headers = {"mcp_param_size": str(arguments["size"])} if "size" in arguments else {}
    answer = await client.ask("tools/call", {"name": tool, "arguments": arguments}, **headers)

    assert answer.json["result"]["isError"] is True
    assert message in answer.json["result"]["content"][0]["text"]


@pytest.mark.requirement("TL-15")
async def test_tl_15_a_server_that_embeds_resources_declares_resources(
    client: EndpointClient,
) -> None:
    """A client may want to read such a resource again."""
    declared = (await client.ask("server/discover")).json["result"]["capabilities"]

    assert "resources" in declared


@pytest.mark.requirement("SEC-08", "P-09", "CP-05")
@pytest.mark.parametrize("name", ["Bo\u0000", "😀", "</prompt>", "x" * 5000])
async def test_sec_08_a_prompt_argument_stays_text_of_one_message(
    client: EndpointClient, name: str
) -> None:
    """The argument neither ends the message nor adds another one."""
    answer = await client.ask("prompts/get", {"name": "greet", "arguments": {"name": name}})
    (message,) = answer.json["result"]["messages"]

    assert message["content"]["resource"]["text"] == f"Greet {name}"


@pytest.mark.requirement("P2")
async def test_p2_only_configured_tools_are_listed_and_called(client: EndpointClient) -> None:
    """Each has a name, a description and a schema."""
    listed = (await client.ask("tools/list")).json["result"]["tools"]

    assert {tool["name"] for tool in listed} == {*pack.tools, *recorder.tools}
    assert all(tool["description"] and tool["inputSchema"] for tool in listed)
    assert (await client.call("echo", {"text": "x"})).error == (400, -32602)
