"""`tools/list` and `tools/call` in the words of each revision."""

from typing import Any

import jsonschema_rs
import pytest

from gatepost import CallContext, Outcome, Pack, ToolFailure
from tests.support.endpoint import META, VERSION, EndpointClient, a_caller
from tests.support.endpoint_clients import REVISIONS, ask, result_of

pack = Pack("varied")
LINK = {"type": "resource_link", "uri": "https://example.com/a", "name": "A"}


@pack.tool(title="Structured", read_only=True, destructive=False)
async def structured(ctx: CallContext) -> dict[str, int]:
    """Answer an object."""
    return {"rows": 2}


@pack.tool()
async def link(ctx: CallContext) -> Outcome:
    """Answer a link."""
    return Outcome((LINK,))


@pack.tool()
async def failing(ctx: CallContext, kind: str) -> str:
    """Fail in the way asked for."""
    raise ToolFailure(kind, "No.", retry_after=2.5)  # type: ignore[arg-type]


@pack.tool(scopes={"hidden"})
async def hidden(ctx: CallContext) -> str:
    """Be out of reach."""
    return "never"


async def answer_list(ctx: CallContext, arguments: Any) -> Outcome:
    return Outcome(({"type": "text", "text": "[1]"},), [1])


pack.add(
    "answers_list",
    description="Answer an array.",
    input_schema={"type": "object", "oneOf": [{"required": []}], "$anchor": "kept"},
    invoke=answer_list,
)


@pytest.fixture
def client() -> EndpointClient:
    return EndpointClient(pack.tools.values(), obtainable=frozenset())


@pytest.mark.requirement("A1")
@pytest.mark.requirement("TL-04", "TL-02")
@pytest.mark.parametrize("revision", REVISIONS)
async def test_tl_04_tl_02_tools_have_the_members_of_each_revision(
    client: EndpointClient, revision: str
) -> None:
    """Titles and output schemas came with 2025-06-18; schemas are passed on unchanged."""
    listed = (await result_of(client, revision, "tools/list"))["tools"]
    tools = {tool["name"]: tool for tool in listed}

    assert sorted(tools) == ["answers_list", "failing", "link", "structured"]
    for tool in listed:
        jsonschema_rs.Draft202012Validator(tool["inputSchema"])
        assert tool["inputSchema"]["type"] == "object"
    assert tools["answers_list"]["inputSchema"]["$anchor"] == "kept"
    assert tools["structured"]["annotations"] == {
        "title": "Structured",
        "readOnlyHint": True,
        "destructiveHint": False,
    }
    assert ("title" in tools["structured"]) == (revision != "2025-03-26")
    assert ("outputSchema" in tools["structured"]) == (revision != "2025-03-26")


@pytest.mark.requirement("TL-08", "TL-09", "TL-10", "J-07", "S-04")
@pytest.mark.parametrize("revision", REVISIONS)
async def test_tl_09_tl_10_a_structured_answer_is_also_text(
    client: EndpointClient, revision: str
) -> None:
    """Clients that know no structured content read the same."""
    result = await result_of(client, revision, "tools/call", name="structured")

    assert result["content"] == [{"type": "text", "text": '{"rows":2}'}]
    assert result.get("structuredContent") == (None if revision == "2025-03-26" else {"rows": 2})
    assert (result.get("resultType") == "complete") is (revision == VERSION)
    assert ("_meta" in result) is (revision == VERSION)


@pytest.mark.requirement("TL-08")
@pytest.mark.parametrize("revision", REVISIONS)
async def test_tl_08_only_the_newest_revision_has_structured_arrays(
    client: EndpointClient, revision: str
) -> None:
    """In older revisions structured content is an object or missing."""
    result = await result_of(client, revision, "tools/call", name="answers_list", arguments={})

    assert result.get("structuredContent") == ([1] if revision == VERSION else None)


@pytest.mark.requirement("TL-14")
@pytest.mark.parametrize("revision", REVISIONS)
async def test_tl_14_a_link_is_text_where_there_are_no_links(
    client: EndpointClient, revision: str
) -> None:
    """2025-03-26 has no such block, and strict clients refuse unknown blocks."""
    content = (await result_of(client, revision, "tools/call", name="link"))["content"]

    assert content == (
        [{"type": "text", "text": "A https://example.com/a"}]
        if revision == "2025-03-26"
        else [LINK]
    )


FAILURE_KINDS = ["validation", "not_found", "denied", "conflict", "upstream_unavailable", "timeout"]


@pytest.mark.requirement("A2", "TL-12")
@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("kind", FAILURE_KINDS)
async def test_tl_12_a_failure_is_a_result_that_the_model_reads(
    client: EndpointClient, revision: str, kind: str
) -> None:
    """Most clients do not show protocol errors to the model."""
    result = await result_of(
        client, revision, "tools/call", name="failing", arguments={"kind": kind}
    )

    assert result["isError"] is True
    assert result["content"] == [{"type": "text", "text": "No. Try again in 2.5 seconds."}]


@pytest.mark.requirement("J-18")
@pytest.mark.parametrize("revision", REVISIONS)
async def test_too_many_calls_are_an_error_with_a_retry_time(
    client: EndpointClient, revision: str
) -> None:
    """HTTP 200: clients take many another status for a lost session or login."""
    response = await ask(
        client, revision, "tools/call", name="failing", arguments={"kind": "rate_limit"}
    )

    assert response.error == (200, -32000)
    assert response.headers["retry-after"] == "3"
    assert response.json["error"]["data"] == {"retryAfter": 3}


@pytest.mark.requirement("TL-11", "TL-18", "J-11")
@pytest.mark.parametrize("revision", REVISIONS)
async def test_tl_11_tl_18_an_unknown_and_a_hidden_tool_give_the_same_error(
    client: EndpointClient, revision: str
) -> None:
    """Both give -32602 and the same text, so a caller does not learn of tools of other callers."""
    nonexistent = await ask(client, revision, "tools/call", name="nobody")
    hidden = await ask(client, revision, "tools/call", name="hidden")

    assert nonexistent.error == (400 if revision == VERSION else 200, -32602)
    assert hidden.error == nonexistent.error
    assert hidden.body.replace(b"hidden", b"nobody") == nonexistent.body
    client.caller = a_caller(scopes=frozenset({"hidden"}))
    assert (await ask(client, revision, "tools/call", name="hidden")).status == 200


@pytest.mark.requirement("TL-11")
@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("arguments", [[], "text", 5, True])
async def test_tl_11_arguments_that_are_no_object_are_malformed(
    client: EndpointClient, revision: str, arguments: object
) -> None:
    """An error of the protocol: no model wrote that, its client did."""
    response = await ask(client, revision, "tools/call", name="structured", arguments=arguments)

    assert response.error == (400 if revision == VERSION else 200, -32602)


@pytest.mark.requirement("J-16", "J-17")
async def test_result_meta_has_only_server_info(client: EndpointClient) -> None:
    """Reserved names in a client's `_meta` cause no error."""
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    unusual_meta = {"tracestate": 5, "baggage": None, META + "unheard": {}}

    for meta in (trace, unusual_meta):
        response = await client.ask("tools/call", {"name": "structured"}, meta=meta)
        assert list(response.json["result"]["_meta"]) == [META + "serverInfo"]
