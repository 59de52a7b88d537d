"""What the bytes of JSON show without decoding it."""

from math import isfinite

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from gatepost import decoded_within
from gatepost.documents.json_shape import holds_many, is_deep, may_overflow, too_deep
from tests.support.measuring import count_lines


@given(
    st.integers(1, 330).map("1".__mul__) | st.integers(0, 10**20).map(str),
    st.sampled_from(["", ".5", ".000000000000000000001"]),
    st.sampled_from(["", "e", "E", "e+", "E-"]),
    st.integers(0, 400),
)
def test_a_number_that_is_infinite_is_never_overlooked(
    digits: str, fraction: str, mark: str, exponent: int
) -> None:
    """A body without such numbers is not decoded to look for them."""
    number = digits + fraction + (f"{mark}{exponent}" if mark else "")

    assert may_overflow(f'{{"text": "1, 2", "value": [0, {number}]}}'.encode()) or isfinite(
        float(number)
    )
    assert not may_overflow(b'{"name": "A row", "total": 12.5, "tags": ["a", "e"], "id": 9}')


def test_json_of_another_process_has_as_many_values_as_allowed() -> None:
    """Decoding them delays all other calls, and so does a number of very many digits."""
    body = b'[1,"a,b",{"c":[2]}]'

    assert decoded_within(body, 40_000) == [1, "a,b", {"c": [2]}]
    for too_much in (b"[" + b"[]," * 40_000 + b"1]", b"[" + b"1" * 100_000 + b"]"):
        with pytest.raises(ValueError, match="more than"):
            decoded_within(too_much, 40_000)


def test_the_brackets_of_rows_are_counted_once() -> None:
    """Only a body with a long text is counted again, without that text."""
    rows = msgspec.json.encode({"rows": [{"id": number, "tags": []} for number in range(500)]})
    body = b'{"params":{"arguments":%b}}' % rows
    once = count_lines(lambda: holds_many(body) and too_deep(body))

    assert not is_deep(body, Raw(rows))
    assert count_lines(lambda: is_deep(body, Raw(rows))) < 1.5 * once
