"""Tools are declared by schemas that hold, and named and drawn as clients expect."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from gatepost import CallContext, Icon, Outcome, Pack
from gatepost.tools.schemas.raw_schema import DEPTH, MAX_SUBSCHEMAS
from tests.mcp.conftest import declared_capabilities
from tests.mcp.conftest import pack as library
from tests.support.endpoint import VERSION, EndpointClient, a_caller
from tests.support.endpoint_clients import REVISIONS, ask, result_of
from tests.support.measuring import each

OBJECT = {"type": "object"}
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


async def answer(ctx: CallContext, arguments: Any) -> Outcome:
    return Outcome()


def client_of(input_schema: Mapping[str, Any], **options: Any) -> EndpointClient:
    pack, options = Pack("raw"), {"invoke": answer, **options}
    pack.add("raw", description="Take what the schema says.", input_schema=input_schema, **options)
    return EndpointClient(pack.offers)


async def is_error(client: EndpointClient, **arguments: Any) -> bool:
    return bool((await client.call("raw", arguments)).json["result"]["isError"])


@pytest.mark.requirement("TL-01", "V-08")
@pytest.mark.parametrize("revision", REVISIONS)
async def test_tl_01_tools_are_declared_when_there_are_some(revision: str) -> None:
    """Without tools their methods are unknown."""
    prompts_alone = EndpointClient([library.prompts["broken"]])

    assert "tools" in await declared_capabilities(EndpointClient(), revision)
    assert "tools" not in await declared_capabilities(prompts_alone, revision)
    for method in ("tools/list", "tools/call"):
        response = await ask(prompts_alone, revision, method, name="echo")
        assert response.error == (404 if revision == VERSION else 200, -32601)


@pytest.mark.requirement("TL-02")
@pytest.mark.parametrize("revision", REVISIONS)
async def test_tl_02_a_caller_without_any_right_gets_an_empty_list(revision: str) -> None:
    """The result has the list without entries."""
    guarded = [library.prompts["hidden_prompt"], library.documents["library://hidden"]]
    pack = Pack("hidden")

    @pack.tool(scopes={"hidden"})
    async def hidden(ctx: CallContext) -> None:
        """Be out of reach."""

    client = EndpointClient([*guarded, *pack.offers], obtainable=frozenset())
    client.caller = a_caller(scopes=frozenset())
    for method, member in (
        ("tools/list", "tools"),
        ("prompts/list", "prompts"),
        ("resources/list", "resources"),
    ):
        assert (await result_of(client, revision, method))[member] == []


@pytest.mark.requirement("TL-04")
async def test_tl_04_a_tool_without_arguments_has_an_empty_object_schema() -> None:
    """Its schema is an object without properties."""
    tools = (await EndpointClient(library.offers).ask("tools/list")).json["result"]["tools"]

    assert tools[0]["inputSchema"] == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }


@pytest.mark.requirement("TL-06")
@pytest.mark.parametrize("name", ["", "a b", "ä", "a/b", "a:b", "x" * 129, "A", "a.b"])
def test_tl_06_a_tool_name_outside_the_grammar_is_refused(name: str) -> None:
    """The grammar is narrower than the protocol's, so that names fit headers and URLs."""
    with pytest.raises(ValueError, match="tool name"):
        Pack("p").add(name, description="…", input_schema=OBJECT, invoke=answer)


@pytest.mark.requirement("TL-06")
def test_tl_06_a_tool_name_is_unique() -> None:
    """This holds within a pack and across all packs."""
    pack, other = Pack("p"), Pack("q")
    for owner in (pack, other):
        owner.add("same", description="…", input_schema=OBJECT, invoke=answer)

    with pytest.raises(ValueError, match="two tools named same"):
        pack.add("same", description="…", input_schema=OBJECT, invoke=answer)
    with pytest.raises(ValueError, match="same name: same"):
        EndpointClient([*pack.offers, *other.offers])


KEYWORDS = {
    "type": "object",
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$defs": {"size": {"$anchor": "size", "type": "integer"}},
    "properties": {"n": {"$ref": "#size"}, "kind": {"enum": ["a", "b"]}},
    "if": {"properties": {"kind": {"const": "a"}}},
    "then": {"required": ["n"]},
    "dependentRequired": {"n": ["kind"]},
    "unevaluatedProperties": False,
}


@pytest.mark.requirement("TL-05", "JS-01", "JS-05")
@pytest.mark.parametrize("revision", REVISIONS)
async def test_tl_05_js_05_a_schema_passes_unchanged_and_is_enforced(revision: str) -> None:
    """It may use all of 2020-12 with an object at its root."""
    client = client_of(KEYWORDS)
    listed = (await result_of(client, revision, "tools/list"))["tools"]

    assert listed[0]["inputSchema"] == KEYWORDS
    assert not await is_error(client, n=1, kind="a")
    for wrong in ({"kind": "a"}, {"n": 1}, {"n": "1", "kind": "b"}, {"kind": "b", "more": 1}):
        assert await is_error(client, **wrong)


@pytest.mark.requirement("JS-01")
async def test_js_01_the_dialect_is_2020_12_unless_draft_07_is_named() -> None:
    """`prefixItems` means something in the one, an array of `items` in the other."""
    newer = {"type": "object", "properties": {"a": {"prefixItems": [{"type": "string"}]}}}
    older = {
        "$schema": DRAFT_7,
        "type": "object",
        "properties": {"a": {"items": [{"type": "string"}]}},
    }

    assert await is_error(client_of(newer), a=[1])
    assert await is_error(client_of(older), a=[1])
    assert not await is_error(client_of({**newer, "$schema": DRAFT_7}), a=[1])


def nested_schema(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"x": schema}}
    return schema


BAD_SCHEMAS: list[tuple[str, dict[str, Any], str]] = [
    ("JS-01", {**OBJECT, "$schema": "https://json-schema.org/draft/2019-09/schema"}, "dialect"),
    ("JS-01", {**OBJECT, "$schema": "https://example.com/own"}, "dialect"),
    ("JS-01", {**OBJECT, "properties": {"a": {"type": "text"}}}, "is not valid under any"),
    ("JS-01", {**OBJECT, "properties": {"a": {"minimum": "1"}}}, "is not of type"),
    ("JS-01", {**OBJECT, "properties": {"a": {"$ref": "#/$defs/none"}}}, "does not exist"),
    ("JS-02", {**OBJECT, "properties": {"a": {"$ref": "https://evil.example/s"}}}, "outside of it"),
    ("JS-02", {**OBJECT, "$defs": {"a": {"$ref": "http://169.254.169.254/s"}}}, "outside of it"),
    ("JS-03", {**OBJECT, "properties": {"a": {"$ref": "file:///etc/passwd"}}}, "outside of it"),
    ("JS-03", {**OBJECT, "properties": {"a": {"$ref": "other.json"}}}, "other.json"),
    ("JS-04", nested_schema(DEPTH), "larger than the"),
    ("JS-04", {**OBJECT, "anyOf": [{} for _ in range(MAX_SUBSCHEMAS)]}, "larger than the"),
    ("TL-04", {"type": "array"}, "type: object"),
    ("TL-04", {}, "type: object"),
]


@pytest.mark.requirement("JS-01", "JS-02", "JS-03", "JS-04", "TL-04")
@each(("row", "schema", "expected_text"), BAD_SCHEMAS)
def test_js_01_js_02_js_03_js_04_an_unusable_schema_is_refused(
    row: str, schema: dict[str, Any], expected_text: str
) -> None:
    """The pack does not load, with the reason; nothing is fetched for the check."""
    with pytest.raises(ValueError, match=expected_text):
        client_of(schema)
    if row.startswith("JS"):
        with pytest.raises(ValueError, match=expected_text):
            client_of(OBJECT, output_schema=schema)


@pytest.mark.requirement("JS-03")
async def test_js_03_a_reference_to_an_id_within_the_schema_is_not_fetched() -> None:
    """Bundled schemas name their parts by URIs that are never fetched."""
    bundled = {
        "type": "object",
        "properties": {"n": {"$ref": "https://example.com/size"}},
        "$defs": {"size": {"$id": "https://example.com/size", "type": "integer"}},
    }

    assert not await is_error(client_of(bundled), n=1)
    assert await is_error(client_of(bundled), n="1")


@pytest.mark.requirement("JS-04")
async def test_js_04_pattern_matching_is_bounded() -> None:
    """A text whose matching would backtrack without end does not match."""
    schema = {**OBJECT, "properties": {"a": {"type": "string", "pattern": "^(a|a)*(?=b)$"}}}

    assert await is_error(client_of(schema), a="a" * 40 + "!")


STRUCTURED_OUTPUTS: list[tuple[Any, bool]] = [
    ({"rows": 2}, True),
    (msgspec.Raw(b'{"rows":2}'), True),
    ({"rows": "2"}, False),
    (msgspec.Raw(b'{"rows":[]}'), False),
    ({}, False),
    (msgspec.UNSET, False),
]
ROWS = {"type": "object", "properties": {"rows": {"type": "integer"}}, "required": ["rows"]}


@pytest.mark.requirement("TL-08", "JS-05")
@pytest.mark.parametrize(("value", "fits"), STRUCTURED_OUTPUTS)
async def test_tl_08_js_05_a_structured_answer_must_match_the_output_schema(
    value: Any, fits: bool
) -> None:
    """Clients check it, too, and drop an answer that does not match."""

    async def answers(ctx: CallContext, arguments: Any) -> Outcome:
        return Outcome(({"type": "text", "text": "x"},), value)

    client = client_of(OBJECT, invoke=answers, output_schema=ROWS)
    result = (await client.call("raw")).json["result"]

    assert result["isError"] is not fits
    assert result.get("structuredContent") == ({"rows": 2} if fits else None)


class Point(msgspec.Struct):
    """Two numbers, which its constructor does not check."""

    x: int
    y: int


@pytest.mark.requirement("TL-08")
@pytest.mark.parametrize(("y", "fits"), [(2, True), ("2", False), (None, False)])
async def test_tl_08_a_struct_with_wrong_members_is_not_returned(y: Any, fits: bool) -> None:
    """Structs are checked like models and dataclasses."""
    pack = Pack("points")

    @pack.tool()
    async def point(ctx: CallContext) -> Point:
        """Find a point."""
        return Point(1, y)

    result = (await EndpointClient(pack.offers).call("point")).json["result"]

    assert result["isError"] is not fits


@pytest.mark.requirement("TL-07")
@pytest.mark.parametrize("revision", REVISIONS)
async def test_tl_07_only_the_newest_revision_shows_output_schemas_of_other_roots(
    revision: str,
) -> None:
    """For older revisions such a schema is left out."""
    client = client_of(OBJECT, output_schema={"type": "array"})
    tool = (await result_of(client, revision, "tools/list"))["tools"][0]

    assert tool.get("outputSchema") == ({"type": "array"} if revision == VERSION else None)


@pytest.mark.requirement("IC-01")
@pytest.mark.parametrize("revision", REVISIONS)
async def test_ic_01_icons_came_with_2025_11_25(revision: str) -> None:
    """This holds for tools as for all other offers."""
    tools = (await result_of(EndpointClient(library.offers), revision, "tools/list"))["tools"]
    icons = [
        {"src": "https://mcp.example.com/icon.png", "mimeType": "image/png", "sizes": ["48x48"]}
    ]

    assert tools[0].get("icons") == (icons if revision >= "2025-11-25" else None)


@pytest.mark.requirement("IC-01")
@pytest.mark.parametrize("src", ["http://a/b.png", "javascript:alert(1)", "data:text/html,x", ""])
def test_ic_01_an_icon_is_https_or_an_image(src: str) -> None:
    """Clients load nothing else, and must not."""
    with pytest.raises(ValueError, match="an icon is"):
        Icon(src)


@pytest.mark.requirement("TL-15")
@pytest.mark.parametrize("revision", REVISIONS)
async def test_tl_15_an_embedded_resource_can_be_read(revision: str) -> None:
    """The server that embeds a resource also offers it."""
    client = EndpointClient(library.offers)
    messages = (await result_of(client, revision, "prompts/get", name="illustrated"))["messages"]
    uri = messages[3]["content"]["resource"]["uri"]

    assert (await result_of(client, revision, "resources/read", uri=uri))["contents"]


@pytest.mark.requirement("R-11")
@pytest.mark.parametrize("uri", ["no-scheme", "1x://a", "a b://c", "/path", "ä://x", "x://a#b", ""])
def test_r_11_a_uri_follows_rfc_3986(uri: str) -> None:
    """Checked when the resource is declared."""
    with pytest.raises(ValueError, match="not a URI"):

        @Pack("p").resource(uri)
        async def read(ctx: CallContext) -> str:
            """Read."""
            return ""
