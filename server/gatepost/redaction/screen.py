"""Find the places of a long text that need a search, several times faster than the search."""

from collections.abc import Collection, Iterator
from operator import itemgetter

from ahocorasick_rs import BytesAhoCorasick, MatchKind

PIECE_BYTES = 4
PIECES_AT_ONCE = 64
"""
Maximum number of patterns that the library compares with vector instructions; with more patterns it
reads byte by byte.
"""
MAX_PASSES = 8
"""Up to this many passes take half as long as a search; above, every byte is searched."""
MAX_WINDOWS = MAX_PASSES * PIECES_AT_ONCE
STEP_BYTES = 65_536
"""The number of bytes that are screened at once."""
FIRST_LOOK_BYTES, LOOK_BYTES = 512, 16_384
"""
The number of bytes that are searched for patterns that may occur thousands of times. It is small at
first, because a text that contains any usually has one near its beginning, and each hit takes as
long as a kilobyte without hits.
"""
MAX_PLACES = 64
"""
Maximum number of places of one step; above, the rest of the text is a single place. An attacker can
write a text that consists of such pieces, and finding each of them takes twenty times as long as a
search.
"""

_COMMON = frozenset(b"etaoinsrhldcumfpgwy ")
_start = itemgetter(1)


class Screen:
    """
    Finds the places that may contain one of some windows.

    Each window contains one of a few short pieces, which are searched instead: the library compares
    few and short patterns with many bytes at once.
    """

    def __init__(self, windows: Collection[bytes]) -> None:
        self._passes = [
            BytesAhoCorasick(together, MatchKind.LeftmostFirst)
            for together in _grouped(_pieces(windows))
        ]
        # A piece that begins within another one is not found, but the other one is.
        self._overlap = max(map(len, windows)) + PIECE_BYTES

    def search_areas(self, text: bytes) -> Iterator[tuple[int, int]]:
        """Yield the beginning and end of each place, in order and apart from each other."""
        begin = end = 0
        for first, last in self._areas(text):
            if first > end:
                if end:
                    yield begin, end
                begin = first
            end = max(end, last)
        if end:
            yield begin, min(end, len(text))

    def _areas(self, text: bytes) -> Iterator[tuple[int, int]]:
        view = memoryview(text)
        for step in range(0, len(text), STEP_BYTES):
            part = view[step : step + STEP_BYTES + PIECE_BYTES]
            hits: list[tuple[int, int, int]] = []
            for automaton in self._passes:
                hits += automaton.find_matches_as_indexes(part)
                if len(hits) > MAX_PLACES:
                    yield max(step - self._overlap, 0), len(text)
                    return
            for _, start, end in sorted(hits, key=_start):
                yield max(step + start - self._overlap, 0), step + end + self._overlap


def has_pattern(patterns: BytesAhoCorasick, text: bytes) -> bool:
    """
    Return whether a text contains one of a few patterns, each of which may occur any number of
    times.
    """
    view, start, size = memoryview(text), 0, FIRST_LOOK_BYTES
    while start < len(text):
        if patterns.find_matches_as_indexes(view[start : start + size + PIECE_BYTES]):
            return True
        start, size = start + size, LOOK_BYTES
    return False


def screen_of(windows: Collection[bytes]) -> Screen | None:
    """Return a screen; None where a search of every byte takes no longer."""
    return Screen(windows) if 0 < len(windows) <= MAX_WINDOWS else None


def _pieces(windows: Collection[bytes]) -> set[bytes]:
    """Return strings so that each window holds one of them: few, and rare in texts."""
    full_pieces: set[bytes] = set()
    shorter: set[bytes] = set()
    for window in sorted(windows, key=lambda window: (len(window), window)):
        size = min(PIECE_BYTES, len(window))
        pieces = [window[at : at + size] for at in range(len(window) - size + 1)]
        if full_pieces.isdisjoint(pieces) and not any(piece in window for piece in shorter):
            piece = min(pieces, key=common_in)
            (full_pieces if size == PIECE_BYTES else shorter).add(piece)
    return full_pieces | shorter


def common_in(piece: bytes) -> int:
    """Return how many bytes of a piece occur often in texts."""
    return sum(byte in _COMMON for byte in piece)


def _grouped(pieces: Collection[bytes]) -> Iterator[list[bytes]]:
    """
    Yield the pieces that are searched for together.

    The library compares as many bytes as the shortest piece has, of several pieces at once: the
    more alike those are, the fewer places it looks at in vain.
    """
    for size in range(1, PIECE_BYTES + 1):
        same_size = sorted((piece for piece in pieces if len(piece) == size), key=_digits)
        for at in range(0, len(same_size), PIECES_AT_ONCE):
            yield same_size[at : at + PIECES_AT_ONCE]


def _digits(piece: bytes) -> tuple[list[int], bytes]:
    return [byte >> 4 for byte in piece], piece
