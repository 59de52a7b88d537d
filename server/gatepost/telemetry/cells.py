"""The numbers of every process in memory that they share, so that any of them can tell all."""

import mmap
from collections.abc import Mapping, Sequence
from itertools import product

from gatepost.telemetry.family import FAMILIES, OTHER, UNKNOWN, Axis, Closed, Family, Open

CELL = 8
NAME_BYTES = 64
"""As long as a tool's name or a tenant's id may be."""
HEAD = 1
"""Cells before the families: the process that counts here, 0 while there was none."""

AT: dict[str, int] = {}
"""Where each family's cells begin."""
NAMES_AT: dict[str, int] = {}
"""Where the names of each open label begin, in cells; the first cell says how many there are."""


def _laid_out() -> int:
    at = HEAD
    for family in FAMILIES:
        AT[family.name] = at
        at += family.size
        for axis in family.axes:
            if isinstance(axis, Open) and axis.label not in NAMES_AT:
                NAMES_AT[axis.label] = at
                at += 1 + axis.most * NAME_BYTES // CELL
    return at


SLOT_CELLS = _laid_out()

Cells = memoryview
"""Unsigned numbers of 64 bits; one is written and read in a single piece."""


class Board:
    """
    Room for the numbers of so many processes, made before they are forked.

    What a process has counted stays when it dies, however it does, and whoever takes its place
    counts on from there: a counter never goes back.
    """

    def __init__(self, processes: int = 1) -> None:
        self._memory = mmap.mmap(-1, processes * SLOT_CELLS * CELL)
        self._cells = memoryview(self._memory).cast("Q")
        self.processes = processes

    def slot(self, place: int) -> Cells:
        """The cells of one process; only that one may write there, and from one thread a cell."""
        return self._cells[place * SLOT_CELLS : (place + 1) * SLOT_CELLS]

    def slots(self) -> list[Cells]:
        """The cells of all processes that have ever begun to count."""
        found = [self.slot(place) for place in range(self.processes)]
        return [cells for cells in found if cells[0]]


class Names:
    """
    The values of one open label, as one process numbers them.

    They are kept with the numbers, so that whoever takes the process's place, or reads, finds them.
    """

    def __init__(self, cells: Cells, axis: Open) -> None:
        self._axis = axis
        start = NAMES_AT[axis.label]
        self._count = cells[start : start + 1]
        self._bytes = cells[start + 1 : start + 1 + axis.most * NAME_BYTES // CELL].cast("B")
        self.places = {name: number for number, name in enumerate(self.read())}
        """Name = its number; what is not in here counts under OTHER."""

    def read(self) -> list[str]:
        """All values by their numbers."""
        named = (
            bytes(self._bytes[at * NAME_BYTES : (at + 1) * NAME_BYTES]).rstrip(b"\0").decode()
            for at in range(self._count[0])
        )
        return [UNKNOWN, OTHER, *named]

    def learn(self, names: Sequence[str]) -> None:
        """Make room for these; for as many as there is room for, and none is ever forgotten."""
        for name in names:
            written = name.encode()
            at = self._count[0]
            if name in self.places or at >= self._axis.most or len(written) > NAME_BYTES:
                continue
            self._bytes[at * NAME_BYTES : (at + 1) * NAME_BYTES] = written.ljust(NAME_BYTES, b"\0")
            self._count[0] = at + 1  # last: whoever reads meanwhile finds no half a name
            self.places[name] = at + 2


Labels = tuple[str, ...]
Value = int | list[int]
"""A number, or a histogram's buckets (each on its own, not added up) and its sum."""


def gathered(board: Board, family: Family) -> Mapping[Labels, Value]:
    """The family's values over all processes, without combinations of labels that never were."""
    found: dict[Labels, Value] = {}
    for cells in board.slots():
        # Names are the first label, so that those there are have the first of the cells.
        values = [_values(cells, axis) for axis in family.axes]
        at, width = AT[family.name], family.width
        for labels in product(*values):
            read = cells[at : at + width].tolist()
            at += width
            # A gauge of 0 is told: nothing and zero are different news.
            if any(read) or not family.axes or family.kind == "gauge":
                _add(found, labels, read, family)
    return found


def _values(cells: Cells, axis: Axis) -> Sequence[str]:
    return axis.values if isinstance(axis, Closed) else Names(cells, axis).read()


def _add(found: dict[Labels, Value], labels: Labels, read: list[int], family: Family) -> None:
    before = found.get(labels)
    if before is None:
        found[labels] = read if family.kind == "histogram" else read[0]
    elif isinstance(before, list):
        found[labels] = [one + other for one, other in zip(before, read, strict=True)]
    elif family.joined == "sum":
        found[labels] = before + read[0]
    else:
        found[labels] = max(before, read[0]) if family.joined == "max" else min(before, read[0])
