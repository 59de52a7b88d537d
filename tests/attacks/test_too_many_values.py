"""What a body may hold, and what is said of one that holds more or is wrong all over."""

import asyncio
import json
import time
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw
from pydantic import BaseModel, Field, Json

from gatepost import CallContext, Outcome, Pack
from gatepost.documents import json_shape
from gatepost.documents.json_shape import (
    COUNTED_BYTES,
    MAX_DIGITS,
    MAX_VALUES,
    NESTING,
    TEXT_BYTES,
    excess,
    is_deep,
    outside_strings,
    too_deep,
    values_bound,
    with_emptied_strings,
    without_texts,
)
from gatepost.tools.context.forms import validation_error_in
from gatepost.tools.schemas.argument_size import is_large
from gatepost.tools.schemas.raw_schema import checker
from gatepost.tools.schemas.schema_branches import branching_of
from tests.support.client import modern_request
from tests.support.endpoint import JSON as JSON_BODY
from tests.support.endpoint import EndpointClient, Response, a_caller
from tests.support.endpoint_clients import RestEndpoint
from tests.support.measuring import each

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**40), 10**40) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)
pack = Pack("office")


class ManyValuesRow(BaseModel):
    """One line of a table."""

    name: str
    amount: int
    paid: bool


class TreeLeaf(BaseModel):
    """One of two alternatives, which holds both."""

    kind: Literal["leaf"]
    inner: "list[TreeLeaf | TreeBranch]" = []


class TreeBranch(BaseModel):
    """The other, which does so too."""

    kind: Literal["branch"]
    inner: "list[TreeLeaf | TreeBranch]" = []


class KindedNode(BaseModel):
    """An alternative that is known by its kind."""

    kind: Literal["sure"]
    inner: "list[Annotated[KindedNode | OtherNode, Field(discriminator='kind')]]" = []


class OtherNode(BaseModel):
    """The other one."""

    kind: Literal["other"]


@pack.tool()
async def save(ctx: CallContext, rows: list[ManyValuesRow], note: str = "") -> str:
    """Save a table."""
    return f"{len(rows)} rows, {len(note)} characters"


@pack.tool()
async def plant(ctx: CallContext, tree: TreeLeaf | TreeBranch) -> str:
    """Plant a tree of alternatives that are tried."""
    return "planted"


@pack.tool()
async def plant_by_kind(ctx: CallContext, tree: KindedNode) -> str:
    """Place a tree of alternatives that are known."""
    return "placed"


async def _raw(ctx: CallContext, arguments: Any) -> Outcome:
    return Outcome(({"type": "text", "text": "taken"},))


SCHEMA = {
    "type": "object",
    "properties": {
        "value": {
            "anyOf": [
                {"type": "array", "items": {"type": kind}}
                for kind in ("integer", "boolean", "null")
            ]
        }
    },
}
pack.add(name="raw", description="Take a raw schema.", input_schema=SCHEMA, invoke=_raw)


NESTED_DEEPLY = b'["["' + b",[" * NESTING + b"]" * NESTING + b"]"


def _many(values: int) -> bytes:
    return b"[" + b",".join([b"1"] * values) + b"]"


def _body(tool: str, arguments: bytes) -> tuple[list[tuple[str, str]], bytes]:
    fields, body = modern_request("tools/call", {"name": tool, "arguments": "HERE"})
    return [JSON_BODY, *fields], body.replace(b'"HERE"', arguments)


async def _call(tool: str, arguments: bytes, client: EndpointClient | None = None) -> Response:
    headers, body = _body(tool, arguments)
    return await (client or EndpointClient(pack.tools.values())).send(body, headers)


async def _said(tool: str, arguments: bytes) -> str:
    response = await _call(tool, arguments)
    assert response.status == 200, response
    return str(response.json["result"]["content"][0]["text"])


@given(JSON, st.sampled_from([None, 2]))
def test_the_count_of_json_values_is_never_too_low(value: Any, indent: int | None) -> None:
    """Outside of strings the count is exact, except that empty objects and lists count twice."""

    def count(value: Any) -> int:
        inner = (
            value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        )
        return (
            1 + (isinstance(value, dict | list) and not value) + sum(count(each) for each in inner)
        )

    body = json.dumps(value, indent=indent, ensure_ascii=False).encode(errors="surrogatepass")
    bound = values_bound(outside_strings(body))

    assert bound == count(value)
    assert values_bound(body) >= bound
    assert values_bound(body + b" " * COUNTED_BYTES) >= bound
    assert (excess(body, bound - 1) is None) == (len(body) <= 2 * (bound - 1))
    assert excess(body, bound) is None


@each("line", ["one, two, [three]\n", '{"one": "two", "three": [[]]}\n'], ids=repr)
def test_commas_in_a_long_string_do_not_count_as_values(line: str) -> None:
    """A long document is validated at once; only a long list goes to a thread."""
    body = json.dumps({"title": "a, b", "text": line * 1_000}).encode()

    assert values_bound(body) < 5


@given(
    st.lists(st.sampled_from(['"', "\\", ",", "[[", "{", "x" * 900, '",', '\\"']), max_size=9), JSON
)
def test_long_strings_cannot_hide_values_or_nesting(parts: list[str], value: Any) -> None:
    """A left out string may repeat the text between others, and names may repeat."""
    text, begun = json.dumps("".join(parts) + "." * TEXT_BYTES), json.dumps("".join(parts)[:70])
    inner = f"[{begun},{json.dumps(value)}]"
    for members in ((text, inner, text), (inner, text, text), (f"[{text},{inner}]", text, inner)):
        named = zip("abc", members, strict=True)
        body = "{" + ",".join(f'"{name}":{value}' for name, value in named) + "}"
        for document in (body, body.replace('"c"', '"a"'), body.replace('"b"', '"a"')):
            data, plain = document.encode(), outside_strings(document.encode())

            assert values_bound(data) >= values_bound(plain)
            outer = b'{"p":%b}' % data
            for body in (outer, b'{"p":%b,"q":%b}' % (data, NESTED_DEEPLY)):
                assert is_deep(body, Raw(data)) == too_deep(body)
            assert without_texts(data).count(b"[") >= plain.count(b"[")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text('"\\\\/,[{x\n\u00e9', max_size=6),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('"\\\\:x'), inner),
        max_leaves=12,
    ),
    st.integers(0, 12),
    st.booleans(),
)
@example(['a"b\\', {'x"': '"'}, "\\"], 12, False)
def test_emptied_strings_hide_no_value_level_or_digit(
    value: Any, strings: int, is_ascii: bool
) -> None:
    """What is between the strings stays, however they are escaped."""
    body = json.dumps(value, ensure_ascii=is_ascii).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_shape, "EMPTIED_STRINGS", strings)
        shape = with_emptied_strings(body)

    json.loads(shape)
    assert outside_strings(shape) == outside_strings(body)
    assert shape.count(b'"') <= body.count(b'"')


async def read_report(ctx: CallContext, report: Json[list[int]]) -> str:
    """Read JSON that stands in a text."""
    return f"{len(report)} numbers"


def test_json_inside_a_string_counts_for_a_tool_that_parses_it() -> None:
    """Such arguments are validated in a thread, so that no other call waits."""
    reports = Pack("reports")
    reports.tool()(read_report)
    (reader,) = reports.tools.values()
    text = json.dumps({"report": json.dumps([1] * 5_000)}).encode()

    assert reader.reads_texts
    assert not any(offer.reads_texts for offer in pack.tools.values())
    assert is_large(text, reads_texts=True)
    assert not is_large(text, reads_texts=False)


def test_a_long_number_is_refused_and_a_long_text_of_digits_is_not() -> None:
    """The time to read a number grows with the square of its digits."""
    digits = b"1" * (MAX_DIGITS + 1)

    assert excess(b'{"n":%b}' % digits, 10) is not None
    assert excess(b'{"n":"%b"}' % digits, 10) is None
    assert excess(b'{"n":%b}' % digits[1:], 10) is None


async def test_a_long_number_beside_long_texts_is_refused() -> None:
    """A body is as long as it was sent, although its texts are not looked at."""
    digits, text = b"1" * (MAX_DIGITS + 1), b"x" * (2 * MAX_VALUES)
    response = await _call("raw", b'{"note":"%b","value":0.%b}' % (text, digits))

    assert response.error == (413, -32600)


@pytest.mark.parametrize("tool", ["save", "raw"])
async def test_a_request_with_too_many_values_is_refused_with_its_id(tool: str) -> None:
    """A client of the MCP endpoint waits for an answer with its id."""
    response = await _call(tool, b'{"value":%b}' % _many(MAX_VALUES))

    assert response.error == (413, -32600)
    assert response.json["id"] == json.loads(_body(tool, b"{}")[1])["id"]
    assert "limits.max_body_values" in response.json["error"]["message"]


async def test_a_body_with_too_many_values_is_refused_over_rest() -> None:
    """The refusal has status 413 and the error code of REST."""
    client = EndpointClient(pack.tools.values())
    inner = RestEndpoint(client.runner, client.registry)
    response = await inner.call(a_caller(), "save", {"rows": [1] * MAX_VALUES})

    assert (response.status, response.json["error"]) == (413, "body_too_large")
    assert "limits.max_body_values" in response.json["message"]


async def test_large_valid_bodies_are_accepted() -> None:
    """Thousands of rows and a document of several megabytes reach the tool."""
    rows = json.dumps([{"name": 'a "b", {c}', "amount": 1, "paid": True}] * 5000).encode()
    note = json.dumps('x, [y] {z} "q" \\ 1111\n' * 100_000).encode()

    assert await _said("save", b'{"rows":%b}' % rows) == "5000 rows, 0 characters"
    assert await _said("save", b'{"rows":[],"note":%b}' % note) == "0 rows, 2200000 characters"


async def test_some_of_many_errors_are_returned_with_their_paths() -> None:
    """The answer also names paths if the document has too many errors to list."""
    rows = b'{"rows":[%b]}' % b",".join([b'{"name":1}'] * 10_000)
    message = await _said("save", rows)
    assert "`rows[0].name` should be a valid string." in message
    assert "`rows[0].amount` is required." in message

    message = await _said("save", b'{"rows":[%b]}' % b",".join([b"{}"] * 500))
    assert message.startswith("`rows[0].name` is required. `rows[0].amount` is required.")

    wrong = [{"name": "a", "amount": 1, "paid": True}] * 5000 + [{"name": "b", "amount": 1}]
    message = await _said("save", json.dumps({"rows": wrong[1:]}).encode())
    assert message == "`rows[4999].paid` is required."
    message = await _said("raw", b'{"value":[%b]}' % b",".join([b'"x"'] * 30_000))
    assert "`value`" in message


@pytest.mark.parametrize("depth", [12, 29])
async def test_nested_alternatives_that_take_exponential_time_are_refused(depth: int) -> None:
    """Each level doubles the work, so a few hundred bytes would take forever."""
    before, after = b'{"kind":"branch","inner":[', b"]}"
    tree = before * depth + b'{"kind":"none"}' + after * depth
    message = await _said("plant", b'{"tree":%b}' % tree)
    assert "nest it less deeply" in message

    renamed = tree.replace(b"branch", b"sure").replace(b"none", b"other")
    assert await _said("plant_by_kind", b'{"tree":%b}' % renamed) == "placed"


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param({"$ref": "#"}, id="itself"),
        pytest.param({"allOf": [{"anyOf": [{"$ref": "#"}]}]}, id="itself, on a way round"),
        pytest.param(
            {
                "$ref": "#/$defs/a0",
                "$defs": {
                    f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(30)
                }
                | {"a30": {"type": "string"}},
            },
            id="a billion of them",
        ),
    ],
)
def test_a_schema_with_too_many_alternatives_is_not_taken(schema: dict[str, Any]) -> None:
    """The tool is refused at registration, because no document could be validated."""
    with pytest.raises(ValueError, match="the schema"):
        checker({"type": "object", "properties": {"a": {}}, **schema})


def test_nested_alternatives_are_multiplied_and_parallel_ones_are_not() -> None:
    """Of parallel alternatives only the larger number counts."""
    text = {"type": "string"}
    three = {"anyOf": [text, text, text]}
    flat = {"properties": {"a": three, "b": text, "c": three}}
    below = {"properties": {"a": {"anyOf": [{"items": three}, {"items": three}]}}}
    tree = {"properties": {"inner": {"$ref": "#"}}}

    assert branching_of({"properties": {"a": text}}).maxima_at(9)[0] == 1
    assert branching_of(flat).maxima_at(9)[0] == 4
    assert branching_of(below).maxima_at(9)[0] == 8
    assert branching_of(tree).maxima_at(60)[0] == 2
    assert branching_of({"anyOf": [tree, tree]}).maxima_at(60)[0] > 10**6


def test_a_form_with_many_errors_is_validated_up_to_its_first_error() -> None:
    """Validating it takes less than twice the time to parse it."""
    schema = {
        "type": "object",
        "properties": {"days": {"type": "array", "items": {"enum": ["mon", "tue"]}}},
        "required": ["days"],
    }
    answers = [{"days": ["never"] * MAX_VALUES}, {f"k{n}": 1 for n in range(MAX_VALUES)}]
    began = time.thread_time()
    json.loads(b"[" + b"1," * 2_000_000 + b"1]")
    allowed = 2 * (time.thread_time() - began)
    began = time.thread_time()
    errors = [validation_error_in(schema, answer) for answer in answers]

    assert errors == ["`days.0` does not fit the form", "a required field is missing"]
    assert time.thread_time() - began < allowed


async def test_other_callers_are_served_while_long_arguments_are_validated() -> None:
    """The event loop is never blocked longer than it takes to parse such a body."""
    rows = json.dumps([{"name": "a", "amount": 1, "paid": True}] * 9_000 + [{}]).encode()
    bodies = [
        ("save", b'{"rows":%b}' % rows),
        ("save", b'{"rows":[],"note":"%b"}' % (rb",\"" * 1_000_000)),
        ("raw", b'{"value":%b}' % _many(MAX_VALUES - 100)),
        ("save", b"{%b}" % b",".join(b'"k%d":1' % n for n in range(MAX_VALUES - 100))),
    ]
    began = time.thread_time()
    for _ in range(2):
        msgspec.json.decode(b"[" + b'"",' * 1_300_000 + b'""]')
    allowed = 2 * (time.thread_time() - began)
    client, longest = EndpointClient(pack.tools.values()), 0.0
    for tool, arguments in bodies:
        running = asyncio.create_task(_call(tool, arguments, client))
        while not running.done():
            before = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - before)
        assert running.result().status == 200

    assert longest < allowed, (longest, allowed)
