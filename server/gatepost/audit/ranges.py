"""Numbers of records, written as people write pages: 1-3,7."""

from bisect import bisect_right
from collections.abc import Iterable

Ranges = list[tuple[int, int]]
"""First and last of each, in their order."""


def ranges_of(numbers: Iterable[int]) -> str:
    """The numbers, which are in their order, in as few words as possible."""
    found: Ranges = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in found)


def numbers_of(said: str) -> Ranges:
    """What `ranges_of` wrote."""
    found = []
    for part in said.split(","):
        first, _, last = part.partition("-")
        if first:
            found.append((int(first), int(last or first)))
    return found


def inside(number: int, ranges: Ranges) -> bool:
    """Whether the number is one of them."""
    at = bisect_right(ranges, (number, 1 << 62)) - 1
    return at >= 0 and number <= ranges[at][1]
