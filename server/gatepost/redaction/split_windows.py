"""Choose the bytes of a value, and the forms of them, that a text holds if it is split."""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import combinations, pairwise, product
from typing import NamedTuple

from gatepost.redaction.screen import PIECE_BYTES, common_in

WINDOW_BYTES = 2 * PIECE_BYTES
"""The part of each value that is looked for."""
TRIED_WINDOWS, MAX_TRIED = 16, 256
"""
How many parts of a value are compared to choose the one that is looked for; more if each of them
may be a number.
"""
QUOTATION_MARKS = frozenset(b"\"'")
NUMBER = frozenset(b"0123456789.eE+-")
"""The bytes that a number between the strings may have."""

SEPARATORS = frozenset(b",:")
"""The bytes that JSON has between the end of a string and the beginning of the next one."""
_NAMES = frozenset(b"abxy")
_USUAL = NUMBER | SEPARATORS | _NAMES
"""The bytes that are often strings of their own, as names of rows are, or seem to be."""


class PieceForm(NamedTuple):
    """Bytes of a window that stand together, and on which sides there is a quotation mark."""

    begin: int
    end: int
    is_begun: bool = False
    is_ended: bool = False


HALVES = (PieceForm(0, PIECE_BYTES), PieceForm(PIECE_BYTES, WINDOW_BYTES))
"""The halves of a window."""


def written(window: bytes, form: PieceForm, quote: bytes) -> bytes:
    """Return the bytes of a window in that form."""
    return quote * form.is_begun + window[form.begin : form.end] + quote * form.is_ended


@cache
def covering_forms(numbers: bytes) -> tuple[Sequence[PieceForm], Sequence[Sequence[int]]]:
    """
    Return forms of pieces, and places of single bytes, so that each way to cut a window has one.

    *numbers* says for each byte whether it may be a part of a number. All bytes at the places of
    one list are strings of their own.
    """
    cuts = [cut for size in range(1, 8) for cut in combinations(range(1, WINDOW_BYTES), size)]
    uncovered = [_forms_of(cut, numbers) for cut in cuts]
    chosen_forms: list[PieceForm] = []
    singles: list[Sequence[int]] = []
    counts = Counter(HALVES)
    while uncovered:
        best = max(counts, key=lambda form: (form.end - form.begin > 1, counts[form]))
        covered = [cut_forms for cut_forms in uncovered if best in cut_forms]
        if best.end - best.begin > 1:
            chosen_forms.append(best)
        else:
            singles.append([form.begin for form in set.intersection(*covered)])
        uncovered = [cut_forms for cut_forms in uncovered if best not in cut_forms]
        counts = Counter(form for forms in uncovered for form in forms)
    return chosen_forms, singles


def _forms_of(cuts: Sequence[int], numbers: bytes) -> set[PieceForm]:
    """Return the forms of four bytes, or of one in quotation marks, of a window cut there."""
    forms: set[PieceForm] = set()
    for begin, end in pairwise((0, *cuts, WINDOW_BYTES)):
        forms.update(half for half in HALVES if begin <= half.begin and half.end <= end)
        if all(numbers[begin:end]):
            continue  # it may stand between the strings
        size = end - begin
        if begin and size >= PIECE_BYTES - 1:
            forms.add(PieceForm(begin, begin + PIECE_BYTES - 1, is_begun=True))
        if end < WINDOW_BYTES and size >= PIECE_BYTES - 1:
            forms.add(PieceForm(end - PIECE_BYTES + 1, end, is_ended=True))
        if begin and end < WINDOW_BYTES and size < PIECE_BYTES - 1:
            forms.add(PieceForm(begin, end, is_begun=True, is_ended=True))
    return forms


def best_window(value: bytes, *, in_any_case: bool) -> int | None:
    """
    Return where the window of a value begins that costs least to look for; None if there is none.

    It is sought near the end, because keys of one service begin alike.
    """
    last = len(value) - WINDOW_BYTES
    near_start, far_start = max(last - TRIED_WINDOWS, 0), max(last - MAX_TRIED, 0)
    for positions, usual in (
        (range(near_start, last + 1), _USUAL),
        (range(far_start, near_start), _USUAL),
        (range(far_start, last + 1), NUMBER),
    ):
        usable = [at for at in positions if not usual.issuperset(value[at + 2 : at + 6])]
        if usable:
            return min(usable, key=partial(_cost, value, in_any_case))
    return None


def _cost(value: bytes, in_any_case: bool, at: int) -> tuple[int, int]:
    window = value[at : at + WINDOW_BYTES]
    halves = window[:PIECE_BYTES], window[PIECE_BYTES:]
    numbers = sum(map(NUMBER.issuperset, halves))
    if in_any_case:
        # Each letter doubles the patterns.
        return numbers, len(window.translate(None, b"0123456789: "))
    return numbers, sum(byte in NUMBER for byte in window) + common_in(window)


def cases(text: bytes) -> Iterator[bytes]:
    """Yield hexadecimal digits in each case of each letter."""
    for letters in product(*({byte, byte.upper()} for byte in map(bytes, zip(text, strict=True)))):
        yield b"".join(letters)


def rarity(byte: bytes) -> tuple[bool, bool, bool, int]:
    """Return how rarely a byte is a string of its own in texts, or seems to be."""
    code = byte[0]
    return code in SEPARATORS, code in _NAMES, byte.islower(), common_in(byte)
