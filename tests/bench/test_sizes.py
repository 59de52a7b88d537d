"""Documents of growing sizes: what is sent, and how their costs are shown."""

import base64
import json

import pytest

from bench.sizes import KIB, KINDS, SIZES, SizeRow, render


@pytest.mark.parametrize("kind", KINDS)
def test_documents_have_their_size(kind: str) -> None:
    """Their content matches their kind, and the report compares the sizes."""
    for size in SIZES:
        assert 0.9 * size <= len(KINDS[kind](size)) <= 1.01 * size
    text = KINDS[kind](KIB)
    read = {"text": str.splitlines, "JSON": json.loads, "base64": base64.b64decode}[kind]
    assert len(read(text)) > 1


def test_costs_are_shown_beside_the_floor_and_for_each_kibibyte() -> None:
    """A ratio of 1 is the floor; what grows with the size has one cost for each KiB."""
    report = render([SizeRow("text", 64 * KIB, floor_us=200.0, off_us=800.0, on_us=1_600.0)])

    *_, off, off_ratio, off_each, on, on_ratio, on_each = report.splitlines()[-1].split()
    assert (off, off_ratio, off_each) == ("800", "0.25", "12.5")
    assert (on, on_ratio, on_each) == ("1,600", "0.12", "25.0")
