"""`find_tools` and `call_tool`: agents with hundreds of tools, over HTTP."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from gatepost import CallContext, Pack
from gatepost.tools.calls.tool_search import MAX_FOUND, ToolIndex
from gatepost.tools.context.client import ProtocolError
from gatepost.tools.offers.offer import Effects, Failure, Outcome, Tool
from gatepost.tools.offers.tenant_offers import Agent
from tests.support.client import RawAnswer, RestClient, result
from tests.support.client_requests import Ok
from tests.support.issuers import Idp
from tests.support.server import Server, issuer_settings, running_server
from tests.support.tools import MemorySource, ToolUpstream

PASSWORD = "correct-horse-battery-staple"
IMAGE = {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}
READ_ONLY_EFFECTS = Effects(read_only=True)


def a_tool(name: str, description: str, **options: Any) -> Tool:
    pack = Pack("many")

    async def run(ctx: CallContext) -> None:
        """Do nothing."""

    run.__doc__ = description
    pack.tool(name=name, **options)(run)
    return pack.tools[name]


TOOLS = (
    a_tool("create_invoice", "Create a new invoice for a customer."),
    a_tool("delete_customer", "Delete a customer and all invoices."),
    a_tool("list_customers", "List customers.", title="All customers"),
    a_tool("send_mail", "Send an e-mail to somebody."),
    a_tool("translate", "Übersetze Texte."),
)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("invoice", ["create_invoice", "delete_customer"]),
        ("new invoice", ["create_invoice", "delete_customer"]),
        ("customers", ["list_customers"]),
        ("CUSTOMER", ["delete_customer", "list_customers", "create_invoice"]),
        ("übersetze", ["translate"]),
        ("send a mail, please", ["send_mail"]),
        ("weather", []),
        ("", [tool.name for tool in TOOLS]),
    ],
)
def test_the_best_match_comes_first(query: str, expected: list[str]) -> None:
    """Names count most; rare words count more than frequent ones."""
    tools_found, total = ToolIndex(TOOLS).best(query, 10)

    assert [tool.name for tool in tools_found][: len(expected)] == expected
    assert total >= len(expected)
    assert bool(tools_found) is bool(expected)


def test_a_limited_search_returns_the_total() -> None:
    tools_found, total = ToolIndex(TOOLS).best("", 2)
    assert (len(tools_found), total) == (2, len(TOOLS))


source, crm = MemorySource(), ToolUpstream()


async def ask(ctx: CallContext, arguments: Any) -> Outcome:
    answered = await ctx.ask("Really?", Ok, key="sure")
    return Outcome(({"type": "text", "text": answered.action},))


async def picture(ctx: CallContext, arguments: Any) -> Outcome:
    return Outcome((IMAGE,), structured={"kind": "picture"})


async def fail(ctx: CallContext, arguments: Any) -> Outcome:
    return Outcome(failure=Failure("denied", "Not today."))


async def refuse(ctx: CallContext, arguments: Any) -> Outcome:
    raise ProtocolError(4711, "The upstream says no.", {"because": "Monday"})


SECRET = {"type": "object", "properties": {"password": {"type": "string"}}}
SECRET["properties"]["password"]["x-gatepost-secret"] = True  # type: ignore[index]


def echoes(ctx: CallContext, arguments: Any) -> Any:
    async def answer() -> Outcome:
        return Outcome(({"type": "text", "text": json.dumps(arguments)},))

    return answer()


@pytest.fixture(scope="module")
def server(idp: Idp) -> Iterator[Server]:
    agents = {
        "searching": Agent(frozenset({crm.capability}), mode="search"),
        "listing": Agent(frozenset({crm.capability})),
    }
    source.put(
        "acme",
        crm.tool("find", "Find a person.", schema={"type": "object", "required": ["id"]}),
        crm.tool("ask", invoke=ask),
        crm.tool("picture", invoke=picture),
        crm.tool("fail", invoke=fail),
        crm.tool("refuse", invoke=refuse),
        crm.tool("login", schema=SECRET, invoke=echoes),
        crm.tool("hidden", scopes=frozenset({"crm:admin"})),
        crm.tool("read", effects=READ_ONLY_EFFECTS),
        crm.tool("careful"),
        agents=agents,
    )
    settings: dict[str, Any] = {
        "approvals": {"require": ["mcp_crm__careful"]},
        "tenancy": {"create_on_first_use": True},
        "log": {"level": "info"},
    }
    with running_server(
        idp, [issuer_settings(idp)], source_of=lambda services, config: source, **settings
    ) as running:
        yield running


@pytest.fixture
def token(server: Server) -> str:
    return server.token(client_id="searching")


def call_by_search(
    server: Server, token: str, name: str, arguments: Mapping[str, Any]
) -> RawAnswer:
    return server.client.call(token, "call_tool", {"name": name, "arguments": arguments})


@pytest.mark.requirement("E9")
def test_the_agent_sees_two_tools_and_finds_the_others(server: Server, token: str) -> None:
    """It finds only tools that it may call, over MCP and REST."""
    assert server.client.listed(token) == ["call_tool", "find_tools"]
    assert RestClient(server, token).names() == ["call_tool", "find_tools"]
    answered = result(server.client.call(token, "find_tools", {"query": "person"}))
    assert answered["structuredContent"] == {
        "tools": [
            {
                "name": "mcp_crm__find",
                "description": "Find a person.",
                "inputSchema": {"type": "object", "required": ["id"]},
            }
        ],
        "total": 1,
    }
    assert json.loads(answered["content"][0]["text"]) == answered["structuredContent"]
    everything = result(server.client.call(token, "find_tools", {"query": "", "limit": 3}))
    assert everything["structuredContent"]["total"] == 9
    assert len(everything["structuredContent"]["tools"]) == 3
    none = result(server.client.call(token, "find_tools", {"query": "whoami"}))
    assert none["structuredContent"] == {"tools": [], "total": 0}


@pytest.mark.requirement("E9")
def test_callers_without_search_have_no_search_tools(server: Server) -> None:
    """The tools are unknown to them, like any other name."""
    for client in ("listing", "other"):
        token = server.token(client_id=client)
        assert not {"call_tool", "find_tools"} & {*server.client.listed(token)}
        for tool in ("call_tool", "find_tools"):
            assert b"Unknown tool" in server.client.call(token, tool).body
            assert RestClient(server, token).call(tool).error == (404, "not_found")


def test_an_invalid_search_is_an_error(server: Server, token: str) -> None:
    for arguments in ({}, {"query": 7}, {"query": "x", "limit": MAX_FOUND + 1}):
        assert result(server.client.call(token, "find_tools", arguments))["isError"]


def test_call_tool_returns_the_outcome_of_the_tool(server: Server, token: str) -> None:
    """Blocks, structured content and failures; other tools are not found."""
    assert result(call_by_search(server, token, "mcp_crm__find", {"id": 1}))["content"] == [
        {"type": "text", "text": "crm find"}
    ]
    answered = result(call_by_search(server, token, "mcp_crm__picture", {}))
    assert answered["content"] == [IMAGE]
    assert answered["structuredContent"] == {"kind": "picture"}
    failed = result(call_by_search(server, token, "mcp_crm__fail", {}))
    assert failed["isError"]
    assert failed["content"][0]["text"] == "Not today."
    invalid = result(call_by_search(server, token, "mcp_crm__find", {}))
    assert invalid["isError"]
    assert "id" in invalid["content"][0]["text"]
    texts = [
        result(call_by_search(server, token, name, {}))["content"][0]["text"].replace(name, "X")
        for name in ("whoami", "nothere")
    ]
    assert texts[0] == texts[1]


@pytest.mark.requirement("E2")
def test_an_error_of_the_upstream_keeps_its_code(server: Server, token: str) -> None:
    """Code, message and data of its JSON-RPC error are those of a direct call."""
    answer = call_by_search(server, token, "mcp_crm__refuse", {})

    error = json.loads(answer.body)["error"]
    assert (error["code"], error["message"]) == (4711, "The upstream says no.")
    assert error["data"] == {"because": "Monday"}


def test_a_scope_that_the_tool_lacks_is_asked_for(server: Server, token: str) -> None:
    """The challenge is that of a direct call."""
    answer = call_by_search(server, token, "mcp_crm__hidden", {})
    assert answer.status == 403
    assert 'scope="crm:admin' in (answer.field("www-authenticate") or "")


def test_a_tool_called_by_call_tool_can_ask(server: Server, token: str) -> None:
    """The question goes to the agent's client, and the answer comes back with the next call."""
    meta = {"_meta": {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}}
    call = {"name": "call_tool", "arguments": {"name": "mcp_crm__ask"}, **meta}
    first_answer = result(server.client.ask(token, "tools/call", call))
    assert list(first_answer["inputRequests"]) == ["sure"]
    answers = {"sure": {"action": "accept", "content": {"ok": True}}}
    again = {**call, "inputResponses": answers, "requestState": first_answer["requestState"]}
    second_answer = result(server.client.ask(token, "tools/call", again))

    assert second_answer["content"][0]["text"] == "accept"


def test_a_tool_called_by_call_tool_waits_for_its_approval(server: Server, token: str) -> None:
    """`call_tool` needs none, and the request is for the tool itself."""
    rest_client = RestClient(server, token)
    answer = rest_client.call("call_tool", {"name": "mcp_crm__careful", "arguments": {"a": 1}})
    assert answer.error == (503, "approval_pending")

    assert "`mcp_crm__careful`" in answer.json["message"]


TASKS = "io.modelcontextprotocol/tasks"


def test_an_approval_of_the_tool_becomes_a_task(server: Server, token: str) -> None:
    """A client that supports tasks gets one, as for a direct call."""
    capabilities = {"elicitation": {}, "extensions": {TASKS: {}}}
    meta = {"_meta": {"io.modelcontextprotocol/clientCapabilities": capabilities}}
    results = []
    for number, (name, inner) in enumerate(
        [("mcp_crm__careful", {"n": 1}), ("call_tool", {"name": "mcp_crm__careful"})]
    ):
        call = {"name": name, "arguments": {**inner, "arguments": {"n": number}}, **meta}
        results.append(result(server.client.ask(token, "tools/call", call)))

    assert [result["resultType"] for result in results] == ["task", "task"]
    assert {result["status"] for result in results} <= {"working", "input_required"}


def test_a_retried_call_tool_runs_a_writing_tool_once(server: Server, token: str) -> None:
    """The key of the call covers the tool that it calls."""
    rest_client = RestClient(server, token)
    for tool, times in (("find", 1), ("read", 2)):
        before = len(crm.calls)
        call = {"name": f"mcp_crm__{tool}", "arguments": {"id": tool}}
        for _ in range(2):
            assert (
                rest_client.call("call_tool", call, ("Idempotency-Key", f"k-{tool}")).status == 200
            )
        assert len(crm.calls) - before == times


def test_numbers_are_passed_on_as_written(server: Server, token: str) -> None:
    """`call_tool` does not read the arguments."""
    body = b'{"name": "mcp_crm__login", "arguments": {"n": 12345678901234567890123, "x": 1.10}}'
    answer = RestClient(server, token).post("call_tool", body)

    assert answer.status == 200
    assert "12345678901234567890123" in str(answer.json)
