"""Line-by-line differences between the current text and the text after a call."""

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Literal

import msgspec

RowKind = Literal["same", "gone", "new", "gap"]

MAX_LINES = 2_000
"""Maximum number of differing lines in either text; the time grows with the square of it."""
CONTEXT = 3


class DiffLine(msgspec.Struct, frozen=True):
    """One line with its numbers before and after, or a gap with the number of lines left out."""

    kind: RowKind
    text: str = ""
    before: int = 0
    after: int = 0
    count: int = 0


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The rows that differ, with context."""

    rows: tuple[DiffLine, ...] = ()
    removed: int = 0
    new: int = 0
    too_long: bool = False
    """The texts are too long to compare."""

    @property
    def is_none(self) -> bool:
        """Return whether the two texts are the same."""
        return not (self.removed or self.new or self.too_long)


class ComparisonLimit:
    """Bounds the work of all differences of one page, whose texts are untrusted."""

    def __init__(self) -> None:
        self._remaining = MAX_LINES**2

    def reserve(self, lines: int, other_lines: int) -> bool:
        """Return whether there is room to compare so many lines with so many, and take it."""
        if lines * other_lines > self._remaining:
            return False
        self._remaining -= lines * other_lines
        return True


def difference(
    before: str, after: str, *, context: int = CONTEXT, limit: ComparisonLimit | None = None
) -> Difference:
    """
    Return the differences between *before* and *after*; may run in a thread.

    Only a line feed ends a line. The program that reads the file may not treat other characters as
    line ends, and a line that looks like two could hide what it does.
    """
    old, new = before.split("\n"), after.split("\n")
    if not old[-1] and not new[-1]:
        # Both end with a line feed, and the empty text after it is not a line.
        old.pop()
        new.pop()
    head = _shared(old, new)
    tail = _shared(old[head:][::-1], new[head:][::-1])
    changed_old, changed_new = old[head : len(old) - tail], new[head : len(new) - tail]
    if max(len(changed_old), len(changed_new)) > MAX_LINES:
        return Difference(too_long=True)
    if limit is not None and not limit.reserve(len(changed_old), len(changed_new)):
        return Difference(too_long=True)
    rows = list(_rows(changed_old, changed_new, head))
    return Difference(
        rows=tuple(
            _folded([*_same_lines(old, 0, 0, head), *rows, *_tail(old, new, tail)], context)
        ),
        removed=sum(1 for row in rows if row.kind == "gone"),
        new=sum(1 for row in rows if row.kind == "new"),
    )


def _shared(first: Sequence[str], second: Sequence[str]) -> int:
    count = 0
    for first_item, second_item in zip(first, second, strict=False):
        if first_item != second_item:
            break
        count += 1
    return count


def _same_lines(lines: Sequence[str], before: int, after: int, count: int) -> Iterator[DiffLine]:
    for at in range(count):
        yield DiffLine("same", lines[before + at], before + at + 1, after + at + 1)


def _tail(old: Sequence[str], new: Sequence[str], count: int) -> Iterator[DiffLine]:
    return _same_lines(old, len(old) - count, len(new) - count, count)


def _rows(old: Sequence[str], new: Sequence[str], offset: int) -> Iterator[DiffLine]:
    for tag, a, b, c, d in SequenceMatcher(None, old, new).get_opcodes():
        if tag == "equal":
            for at in range(b - a):
                yield DiffLine("same", old[a + at], offset + a + at + 1, offset + c + at + 1)
            continue
        for at in range(a, b):
            yield DiffLine("gone", old[at], before=offset + at + 1)
        for at in range(c, d):
            yield DiffLine("new", new[at], after=offset + at + 1)


def _folded(rows: Sequence[DiffLine], context: int) -> Iterator[DiffLine]:
    """Yield the rows with long unchanged runs folded into gaps; a single line is kept."""
    is_near = [False] * len(rows)
    for at, row in enumerate(rows):
        if row.kind != "same":
            first, last = max(at - context, 0), min(at + context + 1, len(rows))
            is_near[first:last] = [True] * (last - first)
    at = 0
    while at < len(rows):
        end = at
        while end < len(rows) and not is_near[end]:
            end += 1
        if end - at > 1:
            yield DiffLine("gap", count=end - at)
        elif end > at:
            yield rows[at]
        if end < len(rows):
            yield rows[end]
        at = end + 1
