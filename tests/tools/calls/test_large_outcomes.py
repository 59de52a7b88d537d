"""Large outcomes are converted, searched and cut without delaying other calls."""

import asyncio
import threading
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, field_serializer

from gatepost import CallContext, Depends, Outcome, Pack
from gatepost.tools.authoring.mixed_content import is_content
from tests.support.endpoint import EndpointClient
from tests.support.measuring import count_lines

SERIALIZING = set[threading.Thread]()


class Row(BaseModel):
    """A row that records in which thread it is encoded."""

    number: int

    @field_serializer("number")
    def recorded(self, number: int) -> int:
        SERIALIZING.add(threading.current_thread())
        return number


def database(ctx: CallContext) -> int:
    return 7


def plain(ctx: CallContext) -> list[Row]:
    """Return a row."""
    return [Row(number=1)]


def dependent(ctx: CallContext, number: Annotated[int, Depends(database)]) -> list[Row]:
    """Return a row of a database."""
    return [Row(number=number)]


@pytest.mark.parametrize("function", [plain, dependent])
async def test_what_a_plain_function_returns_is_converted_in_a_thread(function: Any) -> None:
    """It may be a table of a hundred thousand rows, which takes tenths of a second."""
    pack = Pack("rows")
    pack.tool(name="rows", read_only=True)(function)
    SERIALIZING.clear()

    answer = await EndpointClient(pack.tools.values()).call("rows")

    assert answer.json["result"]["isError"] is False
    assert SERIALIZING
    assert threading.current_thread() not in SERIALIZING


def _lines_of_blocks(count: int) -> int:
    """Return the lines that run on the event loop for an outcome of so many blocks."""
    pack = Pack("blocks")
    outcome = Outcome(({"type": "text", "text": "x" * 100},) * count)

    @pack.tool(read_only=True)
    async def blocks(ctx: CallContext) -> Outcome:
        """Return blocks."""
        return outcome

    client = EndpointClient(pack.tools.values())
    with asyncio.Runner() as runner:
        return count_lines(lambda: runner.run(client.call("blocks")))


def test_an_outcome_of_many_blocks_is_cut_in_a_thread() -> None:
    """Each block is measured; a hundred thousand of them take a tenth of a second."""
    assert _lines_of_blocks(60_000) - _lines_of_blocks(2_000) < 1_000


def test_a_long_list_is_looked_through_by_the_types_of_its_items() -> None:
    """A loop over 300,000 items takes 0.3 seconds."""
    assert count_lines(lambda: is_content([1] * 10_000)) < 20
    assert is_content([1, "a", b"x"])
    assert not is_content([1, "a", {}])
