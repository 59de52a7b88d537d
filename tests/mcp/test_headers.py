"""Headers must say the same as the body, since proxies on the way read only the headers."""

from typing import Annotated, Any

import pytest
from pydantic import Field

from gatepost import CallContext, Pack
from tests.mcp.conftest import pack as library
from tests.support.endpoint import JSON, META, VERSION, EndpointClient, a_caller, message

pack = Pack("mirrored")
HEADER = "x-mcp-header"


@pack.tool(scopes={"reports:read"})
async def report(
    ctx: CallContext,
    region: Annotated[
        str | None, Field(json_schema_extra={"type": "string", HEADER: "Region"})
    ] = None,
    year: Annotated[int, Field(json_schema_extra={HEADER: "Year"})] = 0,
    draft: Annotated[bool, Field(json_schema_extra={HEADER: "Draft"})] = False,
) -> str:
    """Write a report."""
    return f"{region} {year} {draft}"


@pack.tool()
async def echo(ctx: CallContext, text: str) -> str:
    """Send text back."""
    return text


@pytest.fixture
def client() -> EndpointClient:
    client = EndpointClient(pack.tools.values(), obtainable=frozenset())
    client.caller = a_caller(scopes=frozenset({"reports:read"}))
    return client


@pytest.mark.requirement("H-02", "H-08", "H-09")
@pytest.mark.parametrize("value", ["prompts/list", "TOOLS/LIST", "", "tools/list/", None])
async def test_mcp_method_must_be_the_bodys_method(
    client: EndpointClient, value: str | None
) -> None:
    """Compared letter by letter; a missing header is no match."""
    if value is None:
        response = await client.ask("tools/list", drop=["mcp-method"])
    else:
        response = await client.ask("tools/list", mcp_method=value)

    assert response.error == (400, -32020)
    assert response.json["id"] == 7


@pytest.mark.requirement("H-08", "H-09")
async def test_equal_request_heads_are_checked_against_each_body(client: EndpointClient) -> None:
    """Requests of a connection may be about anything."""
    calls = [
        ("tools/call", "echo"),
        ("tools/call", "report"),
        ("prompts/get", "echo"),
        ("tools/call", "echo"),
    ]
    answers = [
        await client.ask(
            method,
            {"name": name, "arguments": {"text": "x"}},
            mcp_method="tools/call",
            mcp_name="echo",
        )
        for method, name in calls
    ]

    assert [answer.status for answer in answers] == [200, 400, 400, 200]
    assert answers[1].error == answers[2].error == (400, -32020)


@pytest.mark.requirement("H-03", "H-08", "H-09")
@pytest.mark.parametrize("value", ["wrong_tool", "ECHO", "", None])
async def test_mcp_name_must_be_the_called_tool(client: EndpointClient, value: str | None) -> None:
    """A limit or a rule applied by this header must apply to the tool that runs."""
    params = {"name": "echo", "arguments": {"text": "x"}}
    if value is None:
        response = await client.ask("tools/call", params, drop=["mcp-name"])
    else:
        response = await client.ask("tools/call", params, mcp_name=value)

    assert response.error == (400, -32020)


@pytest.mark.requirement("H-05")
async def test_header_names_ignore_case_and_values_their_surrounding_blanks(
    client: EndpointClient,
) -> None:
    """RFC 9110 section 5.5: blanks around a value are no part of it."""
    body = message(
        "tools/call",
        {
            "name": "echo",
            "arguments": {"text": "x"},
            "_meta": {META + "protocolVersion": VERSION, META + "clientCapabilities": {}},
        },
    )
    headers = [
        JSON,
        ("MCP-Protocol-Version", f"  {VERSION}\t"),
        ("MCP-METHOD", " tools/call "),
        ("mcp-NAME", "\t echo  "),
    ]

    assert (await client.send(body, headers)).status == 200


NAMES = [
    # the name called       its header                       fits
    ("echo", "=?base64?ZWNobw==?=", True),
    ("écho", "=?base64?w6ljaG8=?=", True),
    ("ZWNobw==", "ZWNobw==", True),
    ("=?base64?ZWNobw==", "=?base64?ZWNobw==", True),
    ("=?BASE64?ZWNobw==?=", "=?BASE64?ZWNobw==?=", True),
    ("echo", "=?base64?ZWNobw?=", False),
    ("echo", "=?base64?ZWN!!!obw==?=", False),
    ("echo", "=?base64?ZWNobx==?=", False),
    ("echo", "=?base64??=", False),
    ("echo", "=?base64?/w==?=", False),
    ("=?base64?ZWNobw==?=", "=?base64?ZWNobw==?=", False),
    ("écho", "écho", False),
    ("echo\x01", "echo\x01", False),
]


@pytest.mark.requirement("H-06", "H-07")
@pytest.mark.parametrize(("name", "value", "fits"), NAMES)
async def test_a_name_no_header_can_carry_is_encoded(
    client: EndpointClient, name: str, value: str, fits: bool
) -> None:
    """The marks are exact, the encoding has one spelling, and anything else is literal."""
    response = await client.ask("tools/call", {"name": name, "arguments": {}}, mcp_name=value)

    if fits:
        assert response.status == 200 or response.error == (400, -32602)
    else:
        assert response.error == (400, -32020)


PARAMETERS = [
    # arguments                headers                             fits
    ({"region": "eu"}, {"mcp_param_region": "eu"}, True),
    ({"region": "Hello"}, {"mcp_param_region": "=?base64?SGVsbG8=?="}, True),
    ({"region": "Hello"}, {"mcp_param_region": "=?base64?SGVsbG8?="}, False),
    ({"region": "Hello"}, {"mcp_param_region": "=?base64?SGVs!!!bG8=?="}, False),
    ({"region": "SGVsbG8="}, {"mcp_param_region": "SGVsbG8="}, True),
    ({"region": "=?base64?SGVsbG8="}, {"mcp_param_region": "=?base64?SGVsbG8="}, True),
    ({"region": "eu"}, {}, False),
    ({"region": "eu"}, {"mcp_param_region": "us"}, False),
    ({"region": None}, {}, True),
    ({"region": None}, {"mcp_param_region": "eu"}, False),
    ({}, {"mcp_param_region": "eu"}, False),
    ({"year": 42}, {"mcp_param_year": "42"}, True),
    ({"year": 42}, {"mcp_param_year": "42.0"}, True),
    ({"year": 42}, {"mcp_param_year": "42.5"}, False),
    ({"year": 42}, {"mcp_param_year": "4.2e1"}, False),
    ({"year": 2**53 + 1}, {"mcp_param_year": str(2**53)}, False),
    ({"draft": True}, {"mcp_param_draft": "true"}, True),
    ({"draft": True}, {"mcp_param_draft": "1"}, False),
    ({}, {}, True),
]


@pytest.mark.requirement("H-10", "H-08")
@pytest.mark.parametrize(("arguments", "headers", "fits"), PARAMETERS)
async def test_a_declared_argument_is_repeated_faithfully(
    client: EndpointClient, arguments: dict[str, Any], headers: dict[str, str], fits: bool
) -> None:
    """`Mcp-Param-…` is there exactly when the argument is, and says the same."""
    params = {"name": "report", "arguments": arguments}
    response = await client.ask("tools/call", params, **headers)

    assert (response.status == 200) is fits
    if not fits:
        assert response.error == (400, -32020)


@pytest.mark.parametrize(
    "twice", ["mcp-name", "mcp-method", "mcp-protocol-version", "mcp-param-region", "content-type"]
)
async def test_a_routing_header_sent_twice_is_refused(client: EndpointClient, twice: str) -> None:
    """Two programs could read different ones of the two values."""
    body = message(
        "tools/call",
        {
            "name": "echo",
            "arguments": {"text": "x"},
            "_meta": {META + "protocolVersion": VERSION, META + "clientCapabilities": {}},
        },
    )
    headers = [
        JSON,
        ("mcp-protocol-version", VERSION),
        ("mcp-method", "tools/call"),
        ("mcp-name", "echo"),
        ("mcp-param-region", "eu"),
    ]
    doubled = [header for header in headers if header[0] == twice]

    assert (await client.send(body, [*headers, *doubled])).error == (400, -32020)


async def test_headers_do_not_reveal_a_hidden_tool(client: EndpointClient) -> None:
    """With or without `Mcp-Param-…` headers the answer is that of an unknown tool."""
    client.caller = a_caller(scopes=frozenset())

    for headers in ({}, {"mcp_param_region": "x"}):
        params = {"name": "report", "arguments": {"region": "eu"}}
        response = await client.ask("tools/call", params, **headers)
        assert response.error == (400, -32602)


async def test_refusals_have_the_order_of_the_specification(client: EndpointClient) -> None:
    """Missing `_meta`, then headers, then version, then method (H-13)."""
    wrong_version = {META + "protocolVersion": "v999.0.0"}
    call = {"name": "nope", "arguments": {}}

    async def code(method: str, **given_params: Any) -> int:
        return (await client.ask(method, **given_params)).error[1]

    nameless = await client.send(
        message("tools/list", {"_meta": {META + "protocolVersion": VERSION}}),
        [JSON, ("mcp-protocol-version", VERSION)],
    )
    assert nameless.error == (400, -32602)
    assert await code("tools/list", meta=wrong_version) == -32020
    assert await code("nope", mcp_method="other") == -32020
    assert await code("nope") == -32601
    assert await code("tools/call", params=call) == -32602


INVALID_SCHEMAS = [
    {"type": "number", HEADER: "X"},
    {"type": "object", HEADER: "X"},
    {"type": "string", HEADER: ""},
    {"type": "string", HEADER: "a b"},
    {"type": "string", HEADER: "a\r\nb"},
    {"type": "string", HEADER: 1},
    {"type": "array", "items": {"type": "string", HEADER: "X"}},
    {"anyOf": [{"type": "string", HEADER: "X"}]},
]


@pytest.mark.requirement("H-20", "H-21", "H-22")
@pytest.mark.parametrize("declaration", INVALID_SCHEMAS)
def test_h_20_h_21_h_22_an_invalid_declaration_is_refused_where_its_author_sees_it(
    declaration: dict[str, Any],
) -> None:
    """Clients would drop the tool without a word."""
    schema = {"type": "object", "properties": {"a": declaration}}

    with pytest.raises(ValueError, match=HEADER):
        Pack("bad").add("tool", description="…", input_schema=schema, invoke=refuse_calls)


@pytest.mark.requirement("H-20", "H-22")
def test_h_20_h_22_nested_declarations_are_found_and_duplicates_are_refused() -> None:
    """Objects may be nested; the header names must differ, whatever their case."""
    inner = {"type": "object", "properties": {"b": {"type": "string", HEADER: "Deep"}}}
    nested = Pack("good").add(
        "tool",
        description="…",
        input_schema={"type": "object", "properties": {"a": inner}},
        invoke=refuse_calls,
    )
    doubled = {"a": {"type": "string", HEADER: "X"}, "b": {"type": "string", HEADER: "x"}}

    assert nested.routed[0].path == ("a", "b")
    with pytest.raises(ValueError, match="twice"):
        Pack("bad").add(
            "tool",
            description="…",
            input_schema={"type": "object", "properties": doubled},
            invoke=refuse_calls,
        )


async def refuse_calls(ctx: CallContext, arguments: Any) -> Any:
    raise AssertionError


MIRRORED_REQUESTS = [
    ("resources/read", {"uri": "library://rules"}, "params.uri"),
    ("prompts/get", {"name": "illustrated"}, "params.name"),
]


@pytest.mark.requirement("H-03")
@pytest.mark.parametrize(("method", "params", "member"), MIRRORED_REQUESTS)
async def test_h_03_mcp_name_must_match_the_uri_or_prompt_name(
    method: str, params: dict[str, str], member: str
) -> None:
    """A missing or different header is refused."""
    client = EndpointClient(library.offers)

    assert (await client.ask(method, params)).status == 200
    for changed in ({"mcp_name": "library://cover"}, {"drop": ("mcp-name",)}):
        response = await client.ask(method, params, **changed)  # type: ignore[arg-type]
        assert response.error == (400, -32020)
        assert response.json["error"]["message"] == f"Mcp-Name does not match {member}"
