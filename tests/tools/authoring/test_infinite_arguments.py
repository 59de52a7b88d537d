"""Infinity and NaN reach no tool, however its arguments are declared and sent."""

import json
import math
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Json, WrapValidator

from gatepost.tools.authoring.schema import arguments_of, texts_of
from gatepost.tools.offers.offer import CallContext, ToolFailure
from tests.support.measuring import each


class SchemaPoint(BaseModel):
    x: float


class SchemaBag(BaseModel):
    model_config = {"extra": "allow"}


async def measure(
    ctx: CallContext,
    value: Any = None,
    point: SchemaPoint | None = None,
    bag: SchemaBag | None = None,
    items: list[Any] | None = None,
) -> None: ...


MEASURE = arguments_of(measure)


@each(
    "arguments",
    [
        '{"value":%s}',
        '{"value":[{"x":%s}]}',
        '{"point":{"x":%s}}',
        '{"bag":{"more":%s}}',
        '{"items":[%s]}',
    ],
)
@pytest.mark.parametrize(
    "infinite", ["1e999", "-1e999", "9" * 310, "9" * 310 + ".5", "NaN", "-Infinity"]
)
def test_infinity_reaches_no_tool(arguments: str, infinite: str) -> None:
    """A model or a value of any type would take it, and the tool would compute with it."""
    assert MEASURE.check((arguments % "1e300").encode())
    with pytest.raises(ToolFailure):
        MEASURE.check((arguments % infinite).encode())


@each("number", ["1e999", "NaN", "-Infinity"])
def test_infinity_reaches_no_tool_as_a_complex_number(number: str) -> None:
    """A complex number has two floats, and its type asks nothing of them."""

    async def turn(ctx: CallContext, by: complex) -> None: ...

    check = arguments_of(turn).check
    assert check(b'{"by":"1e300+2j"}')
    with pytest.raises(ToolFailure):
        check(b'{"by":%b}' % number.encode())


class SchemaNumbers(BaseModel):
    by_number: dict[float, int] = {}


async def read(
    ctx: CallContext,
    value: Json[Any] = None,
    items: list[Json[dict[str, Any]]] | None = None,
    numbers: SchemaNumbers | None = None,
    turn: complex = 0j,
) -> None: ...


NUMBERS = arguments_of(read)


@each(
    "arguments",
    [
        '{"value":"%s"}',
        '{"value":"[{\\"x\\": %s}]"}',
        '{"items":["{}","{\\"x\\":%s}"]}',
        '{"numbers":{"by_number":{"%s":1}}}',
        '{"turn":"%s"}',
    ],
)
@each("infinite", ["1e999", "-1e999", "NaN", "Infinity", "-Infinity"])
def test_infinity_reaches_no_tool_in_a_text(arguments: str, infinite: str) -> None:
    """JSON in a text, the name of a member and a complex number are read as numbers, too."""
    assert NUMBERS.check((arguments % "1e300").encode())
    with pytest.raises(ToolFailure) as raised:
        NUMBERS.check((arguments % infinite).encode())
    assert raised.value.failure.kind == "validation"


def test_a_text_in_the_json_of_a_text_may_name_infinity() -> None:
    """Only numbers are refused."""
    assert NUMBERS.check(rb'{"value":"[\"NaN\",\"Infinity\"]"}') == {"value": ["NaN", "Infinity"]}


class OpenModel(BaseModel, extra="allow"):
    limit: float = math.inf


@dataclass
class OpenDataclass:
    __pydantic_config__ = ConfigDict(extra="allow")
    limit: float = math.inf


@each("shape", [Json[Any], Json[OpenModel], Json[OpenDataclass], Json[dict[str, float]]])
def test_json_in_a_text_goes_before_the_text_in_a_union(shape: Any) -> None:
    """The check for infinity must not make pydantic prefer the text."""

    async def look(ctx: CallContext, value: Any) -> None: ...

    look.__annotations__["value"] = shape | str
    check = arguments_of(look).check
    assert not isinstance(check(rb'{"value":"{\"2\": 1e3}"}')["value"], str)
    assert check(b'{"value":"two"}') == {"value": "two"}
    for infinite in ("1e999", "NaN", "-Infinity"):
        text = f'{{"2": {infinite}}}'
        assert check(json.dumps({"value": text}).encode()) == {"value": text}


def test_an_integer_may_be_long_for_a_tool_without_floats() -> None:
    """Only a float would be infinite."""

    async def factor(ctx: CallContext, number: int, more: Any = None) -> None: ...

    number = int("9" * 310)
    arguments = {"number": number, "more": number}
    assert arguments_of(factor).check(json.dumps(arguments).encode()) == arguments


def test_infinity_reaches_no_prompt_in_the_json_of_a_text() -> None:
    """A prompt's arguments are all texts."""

    def ask(ctx: CallContext, value: Json[Any]) -> None: ...

    check = texts_of(ask).check
    assert check({"value": "[1e300]"}) == {"value": [1e300]}
    with pytest.raises(ToolFailure):
        check({"value": "[NaN]"})


@each("number", ["1e999", "NaN", "-Infinity"])
def test_infinity_reaches_no_tool_through_a_validator_of_an_author(number: str) -> None:
    """It is given the number as it was sent, whatever type the argument has."""

    async def count(
        ctx: CallContext,
        number: Annotated[int, WrapValidator(lambda value, _: value)],
    ) -> None: ...

    check = arguments_of(count).check
    assert check(b'{"number":1e300}')
    with pytest.raises(ToolFailure):
        check(b'{"number":%b}' % number.encode())
