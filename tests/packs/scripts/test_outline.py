"""A script is described without running it, whatever is in it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost_packs.scripts.outline import MAX_DESCRIPTION, outline_of
from tests.support.measuring import count_lines, each

pytestmark = pytest.mark.requirement("P10")

FUNCTIONS = [
    ("def main():\n  pass\n", ["main()"]),
    ("def a(x, y=1, *args, **kw): return x\ndef b(): pass", ["a(x, y=1, *args, **kw)", "b()"]),
    ("def a(x = (1, 2), y = {'k': [3, 4]}):\n  pass", ["a(x = (1, 2), y = {'k': [3, 4]})"]),
    ("def a(\n    x,  # what\n    y,\n):\n  pass\n", ["a(x, y)"]),
    ("def a(x: int, y: list[str] = []) -> str:\n  pass", ["a(x: int, y: list[str] = [])"]),
    ("if True:\n  def inner(): pass\n", []),
    ("def _hidden(): pass\n", []),
    ("'''\ndef text(): pass\n'''\ndef real(): pass\n", ["real()"]),
    ('x = """\ndef text():\n  \\"""\n"""\ndef real(): pass\n', ["real()"]),
    ("x = '\\\ndef text(): pass'\ndef real(): pass\n", ["real()"]),
    ("# def said(): pass\nx = [\ndef\n]\ndef real(): pass\n", ["real()"]),
    ("defer = 1\ndefine()\ndef real(): pass\n", ["real()"]),
    ("main = lambda: 1\n", []),
    ("def", []),
    ("def (", []),
    ("def a", ["a()"]),
    ("def a(x", ["a(x)"]),
    ("]])def a(): pass\n)))\ndef b(): pass\n", ["b()"]),
    ("'unclosed\ndef real(): pass\n", ["real()"]),
    ("'''unclosed\ndef text(): pass\n", []),
    ("", []),
]


@each(("text", "functions"), FUNCTIONS, ids=[row[0][:30] for row in FUNCTIONS])
def test_functions_at_the_top_are_found(text: str, functions: list[str]) -> None:
    """The outline has their parameters as written."""
    outlined = outline_of(text).functions

    assert [
        f"{function.name}({', '.join(function.parameters)})" for function in outlined
    ] == functions


DESCRIPTIONS = [
    ("# One.\n#  Two.\n\n# Not this.\n", "One.\nTwo."),
    ("\n\n#!/usr/bin/starlark\n# One.\nx = 1\n", "/usr/bin/starlark\nOne."),
    ('"""One.\n\nTwo."""\nx = 1\n', "One.\n\nTwo."),
    ("'One.'\n", "One."),
    ("r'''One.'''", "One."),
    ("x = 'no'\n# no\n", ""),
    ("", ""),
]


@pytest.mark.parametrize(("text", "description"), DESCRIPTIONS)
def test_the_first_comment_or_docstring_is_the_description(text: str, description: str) -> None:
    """Comments or a docstring."""
    assert outline_of(text).description == description


@given(st.text(alphabet="def ab(),:=[]{}'\"\\#\n\t0\0ä", max_size=200))
def test_every_text_has_a_bounded_outline(text: str) -> None:
    """The description never exceeds its maximum length."""
    outline = outline_of(text)

    assert len(outline.description) <= MAX_DESCRIPTION


HARD_TEXTS = ["(", "'", '"""', "\\", "def a(", "#", "'''\\", "def a(x,", "[{(", '"\\\n', "rb'"]


@each("piece", HARD_TEXTS)
def test_the_outline_takes_linear_time(piece: str) -> None:
    """Ten times the text takes no more than about ten times the steps."""
    few = count_lines(lambda: outline_of(piece * 200))
    many = count_lines(lambda: outline_of(piece * 2_000))

    assert many <= 15 * max(few, 100)
