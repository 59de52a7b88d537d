"""
Count the records of a segment by sort: the JSON of its column `counts`.

It is ``[[kind, tool, outcome, number], …]``, or ``[kind, tool, outcome, limit, number]`` for
records that name a limit.
"""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from gatepost.storage.audit import Sort

MAX_COUNTS = 1_000
"""
The number of values of the column `counts` that are cached: most segments have a few records of one
sort.
"""

MAX_COUNTED = 1 << 40
"""The number of records above which a segment is damaged: a database cannot add larger numbers."""

Counts = tuple[tuple[tuple[str, str, str, str], int], ...]
"""Kind, tool, outcome and limit, and their number."""

_encode = msgspec.json.encode
_decode = msgspec.json.Decoder(list[tuple[str | int, ...]]).decode


def counts_of(sorts: Sequence[Sort]) -> str:
    """Return the column `counts` of a segment with records of these sorts."""
    if len({*sorts}) == 1:
        return usual_counts(sorts[0], len(sorts))  # true for nearly all segments
    return _counts_of(sorts)


@lru_cache(MAX_COUNTS)
def usual_counts(sort: Sort, number: int) -> str:
    """Return the column for a number of records of one sort."""
    return _counts_of([sort] * number)


def _counts_of(sorts: Sequence[Sort]) -> str:
    counted: Counter[tuple[str, ...]] = Counter()
    for sort, number in Counter(sorts).items():
        if len(sort) == 3:
            counted[sort] += number
        else:
            *fields, times = sort
            counted[(*fields,)] += number * times
    return _encode([(*sort, number) for sort, number in sorted(counted.items())]).decode()


@lru_cache(MAX_COUNTS)
def joined_counts(counts: tuple[str, ...]) -> str:
    """Return the column `counts` of several segments from that of each."""
    sums: Counter[tuple[str | int, ...]] = Counter()
    for text in counts:
        for *sort, number in _decode(text):
            sums[(*sort,)] += int(number)
    return _encode([(*sort, number) for sort, number in sorted(sums.items())]).decode()


@lru_cache(MAX_COUNTS)
def read_counts(counts: str) -> Counts:
    """
    Return the number of records of each kind, tool, outcome and limit of the column `counts`.

    Refusals by a limit count as many calls as they stand for. Raises ValueError.
    """
    parsed_counts = []
    for entry in _decode(counts):
        match entry:
            case (str(kind), str(tool), str(outcome), int(number)) if number <= MAX_COUNTED:
                parsed_counts.append(((kind, tool, outcome, ""), number))
            case (str(kind), str(tool), str(outcome), str(limit), int(number)) if (
                number <= MAX_COUNTED
            ):
                parsed_counts.append(((kind, tool, outcome, limit), number))
            case _:
                raise ValueError(f"no sort of records has {len(entry)} fields like these")
    return (*parsed_counts,)
