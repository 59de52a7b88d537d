"""Arguments that take long to check hold the event loop no longer than 50 ms."""

import asyncio
import gc
from collections.abc import Iterator
from decimal import Decimal
from ipaddress import IPv6Network
from typing import Annotated, Any, Union

import pytest
from pydantic import AfterValidator, BaseModel, Field, Json, create_model

from gatepost import CallContext, Pack
from tests.attacks.conftest import (
    delays_no_other_call,
    endpoint_of,
    object_of,
    tool_of_schema,
    tool_of_type,
)
from tests.support.client import modern_request
from tests.support.endpoint import JSON, EndpointClient
from tests.support.measuring import HOLD_S, server_garbage_collection, shortest_hold


@pytest.fixture(autouse=True)
def _garbage() -> Iterator[None]:
    with server_garbage_collection():
        yield


HASH_MODULUS = 2**61 - 1
"""What all multiples of have the same hash."""


def _listing(items: Iterator[bytes]) -> bytes:
    return b'{"value":[' + b",".join(items) + b"]}"


def _multiples(count: int) -> Iterator[bytes]:
    return (b"%d" % (number * HASH_MODULUS) for number in range(count))


def _wide_union() -> Any:
    """Return a union of twenty models, each of which lacks one of ten members of its own."""
    fields: dict[str, Any] = {f"f{n}": (int, ...) for n in range(10)}
    own: list[dict[str, Any]] = [{**fields, f"own{n}": (int, ...)} for n in range(20)]
    first, *others = (create_model(f"Wide{n}", **fields) for n, fields in enumerate(own))
    return Union[(first, *others)]  # how many there are is known only now


class _Route(BaseModel):
    to: list[IPv6Network]


DEAR_TYPES = {
    "set": (set[int], _listing(_multiples(39_000))),
    "some sets": (
        list[set[int]],
        _listing(b"[%b]" % b",".join(_multiples(900)) for _ in range(43)),
    ),
    "dictionary": (dict[int, int], b'{"value":%b}'),
    "pairs": (set[tuple[int, int]], _listing(b"[%b,%b]" % (n, n) for n in _multiples(13_000))),
    "pattern": (list[Annotated[str, Field(pattern="^[a-z]+$")]], _listing(iter([b'"1"'] * 39_000))),
    "bounds": (list[Annotated[int, Field(ge=5)]], _listing(iter([b"1"] * 39_000))),
    "networks": (list[IPv6Network], _listing(iter([b'"zz"'] * 39_000))),
    "networks by name": (dict[str, IPv6Network], b'{"value":%b}' % object_of(b'"zz"', 39_000)),
    "networks of models": (list[_Route], _listing(iter([b'{"to":["zz"]}'] * 19_000))),
    "JSON in a text": (Json[list[int]], b'{"value":"[%b"}' % (b"null," * 780_000)),
    "good JSON in a text": (Json[list[int]], b'{"value":"[%b1]"}' % (b"1," * 1_900_000)),
    "long numbers": (
        list[Annotated[Decimal, Field(multiple_of=Decimal("0.01"))]],
        _listing(iter([b"1" * 318] * 12_000)),
    ),
    "long numbers in texts": (
        list[Annotated[Decimal, Field(multiple_of=Decimal("0.01"))]],
        _listing(iter([b'"%b"' % (b"1" * 318)] * 12_000)),
    ),
    "wide union": (list[_wide_union()], _listing(iter([b"{}"] * 39_000))),
    "few of a wide union": (list[_wide_union()], _listing(iter([b"{}"] * 400))),
}
"""What an author may write whose check takes most, and what makes it do so."""


@pytest.mark.parametrize(("hint", "body"), DEAR_TYPES.values(), ids=DEAR_TYPES)
async def test_slow_pydantic_validation_delays_no_other_caller(hint: Any, body: bytes) -> None:
    """The arguments are numbers with one hash, or lists whose items are all invalid."""
    if b"%b" in body:
        body %= b"{" + b",".join(b'"%b":1' % number for number in _multiples(13_000)) + b"}"
    tool = tool_of_type(hint)
    await delays_no_other_call(endpoint_of([tool]), tool.name, body)


def _items(**schema: Any) -> dict[str, Any]:
    return {"type": "array", "items": schema}


NUMBERS = [*range(400)]
DEAR_SCHEMAS = {
    "numbers": (_items(enum=NUMBERS), [b"399"] * 39_000),
    "a few numbers": (_items(enum=NUMBERS), [b"399"] * 240),
    "fractions": (_items(enum=[0.5, 1.5, 2.5, 3.5]), [b"3.5"] * 39_000),
    "objects": (_items(enum=[{"a": n} for n in NUMBERS]), [b'{"a":399}'] * 19_000),
    "fraction": (_items(const=0.5), [b"0.5"] * 39_000),
    "multiples": (_items(multipleOf=0.01), [b"1e308"] * 39_000),
    "bounds": (_items(minimum=0.5, maximum=1e300), [b"1e299"] * 39_000),
    "a pattern that goes back": (_items(pattern="^(?:(?!b).)*$"), [b'"%b"' % (b"a" * 900)] * 62),
    "more of them": (_items(pattern="^(?:(?!b).)*$"), [b'"%b"' % (b"a" * 900)] * 990),
    "nine lookarounds": (
        _items(pattern="^" + "".join(f"(?=.*{letter})" for letter in "abcdefghi")),
        [b'"%b"' % (b"x" * 3_900_000 + b"abcdefghi")],
    ),
    "no match": (_items(pattern=r"^(a|aa)+\1c$"), [b'"%b!"' % (b"a" * 60_000)] * 62),
    "required": (_items(required=[f"p{n}" for n in range(4_000)]), [b"{}"] * 900),
}
"""What another server may bring whose check takes most, and what makes it do so."""


@pytest.mark.parametrize(("schema", "items"), DEAR_SCHEMAS.values(), ids=DEAR_SCHEMAS)
async def test_a_slow_validator_delays_no_other_caller(
    schema: dict[str, Any], items: list[bytes]
) -> None:
    """Many options and bounds are compared one by one, and every item is an error."""
    tool = tool_of_schema(schema)
    await delays_no_other_call(endpoint_of([tool]), tool.name, _listing(iter(items)))


@pytest.mark.parametrize("members", [90, 300, 900])
@pytest.mark.parametrize(
    "schema",
    [
        {"propertyNames": {"pattern": "^[a-z]+$"}},
        {"dependentRequired": {f"k{n}": ["x", "y"] for n in range(500)}},
    ],
    ids=["names", "members that need others"],
)
async def test_errors_that_each_copy_an_object_delay_no_other_caller(
    schema: dict[str, Any], members: int
) -> None:
    """Without a limit, their size would grow with the square of the object."""
    tool = tool_of_schema({"type": "object", **schema})
    await delays_no_other_call(
        endpoint_of([tool]), tool.name, b'{"value":%b}' % object_of(b"1", members)
    )


async def test_simultaneous_long_bodies_block_the_loop_no_longer_than_one() -> None:
    """Threads that compute side by side would hold the interpreter lock in turn."""
    tool = tool_of_type(list[Annotated[str, Field(pattern="^[a-z]+$")]])
    client = endpoint_of([tool])
    fields, body = modern_request("tools/call", {"name": tool.name, "arguments": "HERE"})
    body = body.replace(b'"HERE"', _listing(iter([b'"1111"'] * 39_000)))

    async def ask() -> None:
        await asyncio.gather(*(client.send(body, [JSON, *fields]) for _ in range(8)))

    hold_s, limit = await shortest_hold(ask, HOLD_S)
    assert hold_s < limit, (hold_s, limit)


class _OddStrings(ValueError):
    """What an author's validator raises."""


def _never(value: str) -> str:
    raise _OddStrings(value)


@pytest.mark.parametrize("count", [1, 400, 39_000])
async def test_refused_arguments_are_freed(count: int) -> None:
    """Errors of a Python validator formed a reference cycle that no collector could see."""
    tool = tool_of_type(list[Annotated[str, AfterValidator(_never)]])
    client = endpoint_of([tool])
    fields, body = modern_request("tools/call", {"name": tool.name, "arguments": "HERE"})
    body = body.replace(b'"HERE"', _listing(iter([b'"no"'] * count)))

    for _ in range(3):
        assert (await client.send(body, [JSON, *fields])).json["result"]["isError"]

    gc.collect()
    assert [value for value in gc.get_objects() if isinstance(value, _OddStrings)] == []


async def test_refused_prompt_arguments_are_freed() -> None:
    """The arguments of a prompt take another path than those of a tool."""
    pack = Pack("odd")

    @pack.prompt()
    def odd(ctx: CallContext, word: Annotated[str, AfterValidator(_never)]) -> str:
        """Ask nothing."""
        return word

    client = EndpointClient(pack.offers)
    for _ in range(3):
        refused = await client.ask("prompts/get", {"name": "odd", "arguments": {"word": "no"}})
        assert refused.json["error"]["code"] == -32602

    gc.collect()
    assert [value for value in gc.get_objects() if isinstance(value, _OddStrings)] == []
