"""What a tool returns, as content and as a structured value with a schema."""

import dataclasses
import json
from datetime import date
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from gatepost.tools.authoring.results import returned_by
from gatepost.tools.offers.offer import CallContext, Outcome
from tests.support.measuring import each


class Model(BaseModel):
    rows: int


class TypedRows(TypedDict):
    rows: int


@dataclasses.dataclass
class Data:
    rows: int


class Packed(msgspec.Struct):
    rows: int


def model(ctx: CallContext) -> Model: ...
def typed(ctx: CallContext) -> TypedRows: ...
def data(ctx: CallContext) -> Data: ...
def packed(ctx: CallContext) -> Packed: ...
def mapping(ctx: CallContext) -> dict[str, int]: ...
def text(ctx: CallContext) -> str: ...
def untold(ctx: CallContext): ...  # type: ignore[no-untyped-def]
def nothing(ctx: CallContext) -> None: ...
def numbers(ctx: CallContext) -> list[int]: ...
def outcome(ctx: CallContext) -> Outcome: ...


STRUCTURED_TOOLS = [
    (model, Model(rows=2)),
    (typed, {"rows": 2}),
    (data, Data(2)),
    (packed, Packed(2)),
    (mapping, {"rows": 2}),
]


@pytest.mark.requirement("TL-08")
@pytest.mark.parametrize(("function", "value"), STRUCTURED_TOOLS)
def test_an_object_is_structured_and_repeated_as_text(function: Any, value: Any) -> None:
    """Its schema is an object, and the value matches it."""
    returned = returned_by(function)
    answered = returned.answer(value)

    assert returned.schema is not None
    assert returned.schema["type"] == "object"
    sent = json.loads(bytes(answered.structured))
    jsonschema_rs.Draft202012Validator(returned.schema).validate(sent)
    assert sent == {"rows": 2} == json.loads(answered.content[0]["text"])


TEXTS = [
    (text, "hello", ["hello"]),
    (untold, "hello", ["hello"]),
    (untold, {"a": 1}, ['{"a":1}']),
    (untold, None, []),
    (nothing, None, []),
]


class TableRow(BaseModel):
    """A row."""

    cell: int


class ResultTree(BaseModel):
    """A tree."""

    below: list["ResultTree"] = []


def count(ctx: CallContext) -> int: ...
def share(ctx: CallContext) -> float: ...
def verdict(ctx: CallContext) -> bool: ...
def rows(ctx: CallContext) -> list[TableRow]: ...
def trees(ctx: CallContext) -> list[ResultTree]: ...
def perhaps(ctx: CallContext) -> TableRow | None: ...
def pair(ctx: CallContext) -> tuple[int, str]: ...
def day(ctx: CallContext) -> date: ...


TYPED_TOOLS = [
    # function, what it returns                what is sent
    (count, 5, 5),
    (share, 0.5, 0.5),
    (verdict, True, True),
    (numbers, [1, 2], [1, 2]),
    (numbers, [], []),
    (rows, [TableRow(cell=1)], [{"cell": 1}]),
    (trees, [ResultTree(below=[ResultTree()])], [{"below": [{"below": []}]}]),
    (perhaps, None, None),
    (perhaps, TableRow(cell=1), {"cell": 1}),
    (pair, (1, "é"), [1, "é"]),
    (day, date(2026, 7, 28), "2026-07-28"),
]


@pytest.mark.requirement("TL-08", "O2")
@each(("function", "value", "sent"), TYPED_TOOLS)
def test_a_value_that_is_no_object_is_wrapped_and_keeps_its_type(
    function: Any, value: Any, sent: Any
) -> None:
    """The object has the value as its one member; the text is the value's own JSON."""
    returned = returned_by(function)
    answered = returned.answer(value)

    assert returned.schema is not None
    assert returned.schema["type"] == "object"
    shown_value = json.loads(bytes(answered.structured))
    jsonschema_rs.Draft202012Validator(returned.schema).validate(shown_value)
    assert shown_value == {"result": sent}
    assert type(shown_value["result"]) is type(sent)
    assert json.loads(answered.content[0]["text"]) == sent
    with pytest.raises(TypeError):
        returned.answer(object())


@pytest.mark.requirement("TL-10")
@pytest.mark.parametrize(("function", "value", "texts"), TEXTS)
def test_a_return_type_without_a_schema_becomes_text(
    function: Any, value: Any, texts: list[str]
) -> None:
    """The content has a block even if the text is empty."""
    returned = returned_by(function)
    answered = returned.answer(value)

    assert returned.schema is None
    assert [block["text"] for block in answered.content] == texts
    assert answered.structured is msgspec.UNSET


def test_an_outcome_is_passed_on_unchanged() -> None:
    """Tools that make their own blocks say so by their annotation."""
    original = Outcome(({"type": "image", "data": "", "mimeType": "image/png"},))

    assert returned_by(outcome).answer(original) is original


def test_the_value_of_an_outcome_is_encoded_when_the_tool_returns_it() -> None:
    """What the tool does to its own list afterwards changes no answer."""
    rows: list[Any] = [{"rows": 1}]
    answered = returned_by(outcome).answer(Outcome(structured=rows))
    rows.clear()

    assert bytes(answered.structured) == b'[{"rows":1}]'


@pytest.mark.requirement("TL-08")
@pytest.mark.parametrize(
    ("function", "value"),
    [(typed, {"rows": "x"}), (model, {"other": 1}), (packed, {"rows": 2}), (outcome, "text")],
)
def test_a_result_that_violates_the_declared_type_is_an_error(function: Any, value: Any) -> None:
    """It never reaches a client."""
    with pytest.raises(TypeError):
        returned_by(function).answer(value)
