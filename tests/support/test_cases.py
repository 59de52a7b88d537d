"""What many cases in one test tell."""

import asyncio
import inspect

import pytest

from tests.support.measuring import each


def test_every_case_is_tried_and_each_that_fails_is_named() -> None:
    """A case fails by an assertion, an error, or an exception that was not raised."""
    tried = []
    param = pytest.param(3, 4, id="three", marks=pytest.mark.requirement("X1"))

    @each(("number", "other"), [(1, 2), pytest.param(0, 0, id="zero"), param, (5, 5)])
    def test(number: int, other: int, fixture: str) -> None:
        tried.append((number, fixture))
        assert number != 5
        with pytest.raises(ZeroDivisionError):
            _ = 1 / (number * (number - 1))

    with pytest.raises(BaseExceptionGroup) as failed:
        test(fixture="shared")

    assert tried == [(number, "shared") for number in (1, 0, 3, 5)]
    assert failed.value.message == "2 of 4 cases failed: three; (5, 5)"
    assert list(inspect.signature(test).parameters) == ["fixture"]
    assert [mark.args for mark in test.pytestmark] == [("X1",)]


def test_cases_may_be_coroutines() -> None:
    """Cases may be coroutines, and two sets of cases are tried in all pairs."""
    tried = []

    @each("one", "ab", ids=str.upper)
    @each("two", [1, 2])
    async def test(one: str, two: int) -> None:
        await asyncio.sleep(0)
        tried.append((one, two))
        assert one != "b"

    with pytest.raises(ExceptionGroup, match="1 of 2 cases failed: B"):
        asyncio.run(test())

    assert tried == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]
