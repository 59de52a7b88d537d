"""Hostile catalogues: each is bounded or left out with a reason, and other lists stay."""

from typing import Any

import msgspec
import pytest

from gatepost.upstreams.fetch import MAX_ITEMS
from tests.attacks.upstreams.conftest import (
    SERVERS,
    UpstreamDeployment,
    UpstreamUser,
    answer_in,
    text_result,
    tool,
)
from tests.attacks.upstreams.test_upstreams import (
    NESTED_JSON,
    answer_of_type,
    endless,
    endless_line,
)
from tests.support.internet import (
    Answer,
    Posted,
    begin_answer,
    finish_answer,
    raw_answer,
    result_answer,
    send_more,
)
from tests.support.issuers import Send


def nested_schema(levels: int) -> dict[str, Any]:
    """Return a schema of nested schemas."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def branching_schema(levels: int) -> dict[str, Any]:
    """Return a schema with two ways to be right at each level, so 2**levels in all."""
    schema: dict[str, Any] = {"const": "never"}
    for _ in range(levels):
        inner = {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "required": ["a"]}
        schema = {"anyOf": [inner, inner, schema]}
    return {"type": "object", "properties": {"a": schema}, "$defs": {"x": schema}}


async def many_tools(posted: Posted, send: Send) -> None:
    """Send 100,000 tools, a thousand a page."""
    page = int(posted.body["params"].get("cursor", "0"))
    tools = [tool(f"t{page}_{at}") for at in range(1_000)]
    await result_answer({"tools": tools, "nextCursor": str(page + 1)})(posted, send)


async def many_tools_at_once(posted: Posted, send: Send) -> None:
    await result_answer({"tools": [tool(f"t{at}") for at in range(100_000)]})(posted, send)


async def send_long_description(posted: Posted, send: Send) -> None:
    """Send a description of 100 MB."""
    await begin_answer(send)
    head = b'{"jsonrpc":"2.0","id":%d,"result":{"tools":[{"name":"act","description":"'
    await send_more(send, head % posted.id)
    for _ in range(100):
        await send_more(send, b"d" * 1_000_000)
    await finish_answer(send, b'","inputSchema":{"type":"object"}}]}}')


async def send_repeated_cursor(posted: Posted, send: Send) -> None:
    await result_answer({"tools": [tool()], "nextCursor": "again"})(posted, send)


def listing(*tools: Any, **members: Any) -> Answer:
    return result_answer({"tools": list(tools), **members})


HIDDEN_CHARACTERS = "\U000e0049\U000e0047\u202e\u200b"
CATALOGUES: dict[str, tuple[Answer, int, set[str]]] = {
    "100,000 tools": (many_tools, 200, {"mcp_hostile__t0_0"}),
    "100,000 tools at once": (many_tools_at_once, 502, set()),
    "a description of 100 MB": (send_long_description, 502, set()),
    "invalid JSON": (raw_answer(b"{"), 502, set()),
    "deep JSON": (raw_answer(NESTED_JSON), 502, set()),
    "endless": (endless, 502, set()),
    "an endless line": (endless_line, 502, set()),
    "HTML": (answer_of_type("text/html"), 502, set()),
    "a circle": (send_repeated_cursor, 200, {"mcp_hostile__act"}),
    "a cursor of another type": (listing(tool(), nextCursor={"a": 1}), 502, set()),
    "a huge cursor": (listing(tool(), nextCursor="c" * 5_000), 502, set()),
    "no list": (result_answer({"tools": {"act": {}}}), 502, set()),
    "items of other types": (listing(None, 7, [], {}, "x", tool()), 200, {"mcp_hostile__act"}),
    "one name twice": (
        listing(tool(), tool(description="Another one.")),
        200,
        {"mcp_hostile__act"},
    ),
    "a name with an escape": (
        listing(tool("../../admin"), tool("act\r\nSet-Cookie: a=b"), tool("act\u202e"), tool()),
        200,
        {"mcp_hostile__act"},
    ),
    "a schema that is too deep": (
        listing(tool("deep", inputSchema=nested_schema(100)), tool()),
        200,
        {"mcp_hostile__act"},
    ),
    "a schema deeper than any message": (
        listing(tool("deep", inputSchema=nested_schema(300)), tool()),
        502,
        set(),
    ),
    "a deep member beside the list": (
        listing(tool(), _meta={"a": nested_schema(100)}),
        502,
        set(),
    ),
    "a schema with a hidden text": (
        listing(tool("a", inputSchema={"type": "object", "const": HIDDEN_CHARACTERS}), tool()),
        200,
        {"mcp_hostile__act"},
    ),
    "a schema from elsewhere": (
        listing(
            tool("a", inputSchema={"type": "object", "$ref": "http://169.254.169.254/latest"}),
            tool("b", inputSchema={"type": "object", "$ref": "file:///etc/passwd"}),
            tool(),
        ),
        200,
        {"mcp_hostile__act"},
    ),
}


def tools_of(user: UpstreamUser) -> set[str]:
    return {name for name in user.names() if name.startswith("mcp_hostile_")}


@pytest.mark.parametrize("name", CATALOGUES)
def test_a_hostile_catalogue_does_not_affect_other_upstreams(
    deployment: UpstreamDeployment, name: str
) -> None:
    """The whole catalogue is refused with 502, or only its good tools are offered."""
    answer, status, offered = CATALOGUES[name]
    _, user, identity = deployment.registered("hostile", answers={"tools/list": answer})
    try:
        with deployment.never_stands_still():
            heard = user.refresh(identity)
            deployment.others_go_on()
        assert heard.status == status, heard.json
        if status == 502:
            assert heard.error == (502, "upstream_unreachable")
            assert heard.raw.field("www-authenticate") is None
            assert tools_of(user) == set()
        else:
            deployment.until(lambda: tools_of(user) >= offered)
            names = tools_of(user)
            assert len(names) <= MAX_ITEMS
            assert all(len(name) <= 64 and name.replace("_", "a").isalnum() for name in names)
            others = {"100,000 tools": {MAX_ITEMS - 1}, "a name with an escape": {0, 1}}
            assert len(names - offered) in others.get(name, {0}), names
    finally:
        assert user.ask("DELETE", f"{SERVERS}/{identity}").status == 204


SLOW_SCHEMAS: dict[str, tuple[dict[str, Any], Any]] = {
    "catastrophic pattern": (
        {"properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}},
        {"a": "a" * 100_000 + "!"},
    ),
    "catastrophic pattern with a look-ahead": (
        {"properties": {"a": {"type": "string", "pattern": "^(?=(a+)+b)(a|a)*$"}}},
        {"a": "a" * 5_000 + "!"},
    ),
    "names by a pattern": (
        {"patternProperties": {"^(x|x)+$": {"type": "string"}}, "additionalProperties": False},
        {"x" * 1_000 + str(at): "v" for at in range(200)},
    ),
    "many alternatives": (
        {"properties": {"a": {"anyOf": [{"const": at} for at in range(5_000)]}}},
        {"a": "none"},
    ),
    "every item unlike the others": (
        {"properties": {"a": {"type": "array", "uniqueItems": True}}},
        {"a": [{"n": at} for at in range(5_000)]},
    ),
    "forks": (branching_schema(10), {"a": msgspec.json.decode(b'{"a":' * 30 + b"1" + b"}" * 30)}),
}


@pytest.mark.parametrize("which", ["inputSchema", "outputSchema"])
@pytest.mark.parametrize("name", SLOW_SCHEMAS)
def test_a_schema_that_takes_for_ever_delays_no_other_caller(
    deployment: UpstreamDeployment, name: str, which: str
) -> None:
    """This holds for a caller's arguments and for the upstream's own answer."""
    schema, value = {"type": "object", **SLOW_SCHEMAS[name][0]}, SLOW_SCHEMAS[name][1]
    tools = listing(tool("slow", **{which: schema}), tool())
    upstream, user, identity = deployment.registered("hostile", answers={"tools/list": tools})
    try:
        upstream.answers["tools/call"] = result_answer(
            text_result("x") | {"structuredContent": value}
        )
        with deployment.never_stands_still():
            assert user.refresh(identity).status == 200
            deployment.offered(user, "mcp_hostile__act")
            is_offered = "mcp_hostile__slow" in user.names()
            assert not (is_offered and name == "many alternatives")
            if is_offered:
                heard = user.call("mcp_hostile__slow", value if which == "inputSchema" else {})
                assert heard.status in {200, 422, 500}, heard
                assert heard.status == 200 or len(heard.raw.body) < 100_000
            deployment.others_go_on()
    finally:
        assert user.ask("DELETE", f"{SERVERS}/{identity}").status == 204


def test_a_catalogue_is_listed_without_hidden_characters(deployment: UpstreamDeployment) -> None:
    """Texts are cleaned, and the list is private whatever cache scope the server sends."""
    tools = listing(
        tool(
            description=f"Read{HIDDEN_CHARACTERS} files.",
            title=f"A{HIDDEN_CHARACTERS}",
            inputSchema={
                "type": "object",
                "properties": {
                    "a": {
                        "type": "string",
                        "description": HIDDEN_CHARACTERS,
                        "x-gatepost-secret": True,
                    }
                },
            },
            annotations={"readOnlyHint": True, "title": HIDDEN_CHARACTERS},
            _meta={"a": HIDDEN_CHARACTERS},
        ),
        cacheScope="public",
        ttlMs=0,
    )
    _, user, identity = deployment.registered("hostile", answers={"tools/list": tools})
    try:
        assert user.refresh(identity).status == 200
        deployment.offered(user, "mcp_hostile__act")
        raw_list = user.server.client.ask(user.token, "tools/list")
        listed = answer_in(raw_list)["result"]
        assert listed["cacheScope"] == "private"
        assert not any(hidden in raw_list.body.decode() for hidden in HIDDEN_CHARACTERS)
        assert "\\u200b" not in raw_list.body.decode()
    finally:
        assert user.ask("DELETE", f"{SERVERS}/{identity}").status == 204
