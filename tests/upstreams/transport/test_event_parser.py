"""Streams are split into the same events, whatever pieces they arrive in, and are bounded."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.upstreams.transport.event_parser import (
    EventParser,
    ReceivedEvent,
    StreamTooLarge,
)

LINE_ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
FIELD_VALUES = st.text(
    st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=20
)
EVENTS = st.lists(
    st.tuples(FIELD_VALUES.filter(str.strip), FIELD_VALUES.filter(lambda v: "\0" not in v))
)


def events_of(data: bytes, cuts: Sequence[int] = ()) -> list[ReceivedEvent]:
    parser = EventParser(1_000_000)
    places = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    pieces = [data[start:end] for start, end in pairwise(places)]
    return [event for piece in pieces for event in parser.receive(piece)]


@given(EVENTS, LINE_ENDS, st.lists(st.integers(0, 10_000)))
def test_the_result_does_not_depend_on_how_the_stream_is_cut(
    events: list[tuple[str, str]], end: bytes, cuts: list[int]
) -> None:
    """Cuts may be within lines, line ends and characters."""
    data = b"".join(
        b"id: %b%b: comment%bdata: %b%b%b" % (identity.encode(), end, end, text.encode(), end, end)
        for text, identity in events
    )

    assert events_of(data, cuts) == [
        ReceivedEvent("message", text.encode(), identity) for text, identity in events
    ]


@given(st.binary(max_size=300), st.lists(st.integers(0, 300)))
def test_any_bytes_are_read_the_same_way(data: bytes, cuts: list[int]) -> None:
    """The parser never fails on bytes within its limits."""
    assert events_of(data, cuts) == events_of(data)


def test_data_lines_are_joined_and_an_unfinished_event_is_dropped() -> None:
    """The HTML standard says so; a byte order mark at the beginning is skipped, too."""
    data = (
        b"\xef\xbb\xbfevent: x\ndata: a\ndata:b\ndata\n\n: c\nretry: 250\nid: 7\ndata:\n\ndata: z\n"
    )
    parser = EventParser(1_000)

    assert parser.receive(data) == [ReceivedEvent("x", b"a\nb\n", "")]
    assert (parser.last_id, parser.retry_ms) == ("7", 250)


@pytest.mark.parametrize("piece", [b"data: " + b"x" * 50, b"x" * 50, b"data: x\n"])
def test_a_large_event_is_refused_while_it_arrives(piece: bytes) -> None:
    """It has one long line or many lines."""
    parser = EventParser(1_000)

    with pytest.raises(StreamTooLarge, match="larger"):
        [parser.receive(piece) for _ in range(200)]


def test_lines_without_an_event_are_bounded() -> None:
    """Comments cost time and end at some point."""
    parser = EventParser(1_000, max_lines=100)

    with pytest.raises(StreamTooLarge, match="lines"):
        parser.receive(b":\n" * 101)


def test_size_limits_apply_to_each_event() -> None:
    """The limits are those of one event."""
    parser = EventParser(100, max_lines=10)

    assert len(parser.receive(b": ping\ndata: 12345\n\n" * 1_000)) == 1_000
