"""Cutting a text: as much of it as fits, without holding the event loop up."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.tools.calls import truncation
from gatepost.tools.calls.truncation import NOTE_BYTES, truncate
from gatepost.tools.offers.offer import Outcome
from gatepost_packs import demo
from tests.support.measuring import HOLD_S, server_garbage_collection, shortest_hold

ECHO = demo.pack.tools["echo"]
LETTERS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('"\\\n\x01é€😀'))


def _text(value: str) -> Outcome:
    return Outcome(({"type": "text", "text": value},))


@given(LETTERS, st.integers(0, 400), st.integers(1, 7))
def test_a_cut_text_keeps_as_much_as_fits(text: str, room: int, piece: int) -> None:
    """The encoding does not matter, nor where the pieces of the text end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(truncation, "PIECE_CHARACTERS", piece)
        prefix = truncation._prefix(text, room)
    assert text.startswith(prefix)
    assert not prefix or len(msgspec.json.encode(prefix)) <= room
    if len(prefix) < len(text):
        assert len(msgspec.json.encode(text[: len(prefix) + 1])) > room


@given(
    st.text(st.characters(exclude_categories=["Cs"]) | st.characters(max_codepoint=160)),
    st.integers(1, 4),
)
def test_the_size_of_a_long_text_is_that_of_its_json(text: str, piece: int) -> None:
    """It is the sum of its pieces, wherever they end."""
    block = {"type": "text", "text": text}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(truncation, "PIECE_CHARACTERS", piece)
        assert truncation._size(block) == len(msgspec.json.encode(block))


@pytest.mark.parametrize("letter", ['"', "\x01", "é", "x"])
async def test_cutting_a_long_text_delays_no_other_call(letter: str) -> None:
    """A text whose JSON is far longer than the limit, of which half a million letters stay."""
    outcome, limit = _text(letter * 3_000_000), 4_000_000 if letter != "x" else 2_000_000
    computed: list[Any] = []

    async def work() -> None:
        computed.append(truncate(outcome, ECHO, limit))

    with server_garbage_collection():
        hold_s, most = await shortest_hold(work, HOLD_S)
    assert len(msgspec.json.encode(computed[0].content[0])) > limit - 3 * NOTE_BYTES
    assert hold_s < most
