"""Bytes into lines, events into messages: however they are cut on the way."""

from hypothesis import given
from hypothesis import strategies as st

from gatepost.mcp.pipes import LineReader, LineTooLong
from gatepost.mcp.stdio import Frames

LIMIT = 12
TEXTS = st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\n", b"")), max_size=8)


def pieces_of(data: bytes, sizes: list[int]) -> list[bytes]:
    """Return the data in pieces of these sizes, the rest in one."""
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [*pieces, data]


@given(TEXTS, st.lists(st.integers(0, 9), max_size=20), st.booleans())
def test_a_line_is_read_whole_or_reported_as_too_long(
    texts: list[bytes], sizes: list[int], ended: bool
) -> None:
    """A line that is too long takes no other with it."""
    data = b"\n".join(texts) + (b"\n" if ended else b"")
    lines = LineReader(LIMIT)
    got = [line for piece in pieces_of(data, sizes) for line in lines.split(piece)]
    got += lines.unfinished_line()

    expected = [
        "too long" if len(text) > LIMIT else text.strip(b" \t\r")
        for text in texts
        if len(text) > LIMIT or text.strip(b" \t\r")
    ]
    assert ["too long" if isinstance(line, LineTooLong) else line for line in got] == expected


def test_an_endless_line_is_dropped_as_it_arrives() -> None:
    """It is reported once, and the next line counts again."""
    lines = LineReader(LIMIT)
    got = [line for _ in range(1000) for line in lines.split(b"x" * 100)]
    assert len(got) == 1
    assert len(lines._unfinished) == 0

    assert [*lines.split(b"x\nnext\n")] == [b"next"]


EVENTS = (
    b"id: a-1\ndata: \n\n"
    b": comment\n\n"
    b'id: a-2\nevent: message\ndata: {"jsonrpc":"2.0","method":"m"}\n\n'
    b"retry: 250\n\n"
)


@given(st.lists(st.integers(0, 40), max_size=12))
async def test_events_become_messages(sizes: list[int]) -> None:
    """Empty data and comments are left out; a stream that ends early has a retry time."""
    got: list[bytes] = []

    async def take(message: bytes) -> None:
        got.append(message)

    frames = Frames(take, b"1")
    headers = [(b"content-type", b"text/event-stream"), (b"mcp-session-id", b"s")]
    await frames.send({"type": "http.response.start", "status": 200, "headers": headers})
    for piece in pieces_of(EVENTS, sizes):
        await frames.send({"type": "http.response.body", "body": piece, "more_body": True})
    assert not frames.paused
    await frames.send({"type": "http.response.body", "body": b""})

    assert got == [b'{"jsonrpc":"2.0","method":"m"}']
    assert (frames.session, frames.last_event, frames.retry_s) == (b"s", b"a-2", 0.25)
    assert frames.paused
