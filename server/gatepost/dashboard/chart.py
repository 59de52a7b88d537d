"""Charts as numbers to draw by: the templates make SVG of them, without style or script."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

WIDTH, HEIGHT = 720, 200
LEFT, RIGHT, TOP, BOTTOM = 44, 8, 10, 26
GAP = 0.28
"""Of a column's room, how much stays empty."""


class Part(msgspec.Struct, frozen=True):
    """One coloured piece of a column."""

    kind: str
    y: float
    height: float


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One stacked column; *title* is told when it is pointed at."""

    x: float
    width: float
    parts: tuple[Part, ...]
    title: str
    counts: tuple[int, ...]
    label: str


class Mark(msgspec.Struct, frozen=True):
    """A label at a place of an axis."""

    at: float
    label: str


class Columns(msgspec.Struct, frozen=True, kw_only=True):
    """A chart of stacked columns, and the same as a table."""

    columns: tuple[Column, ...]
    kinds: tuple[str, ...]
    levels: tuple[Mark, ...]
    """Horizontal lines, from the bottom."""
    marks: tuple[Mark, ...]
    """Labels below."""
    total: int
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    bottom: int = HEIGHT - BOTTOM

    @property
    def totals(self) -> tuple[int, ...]:
        """Of each kind, over all columns."""
        return tuple(
            sum(column.counts[at] for column in self.columns) for at in range(len(self.kinds))
        )


class Slot(msgspec.Struct, frozen=True):
    """What happened from *start* on (seconds since the epoch), by kind in the chart's order."""

    start: float
    counts: tuple[int, ...]


def columns(slots: Sequence[Slot], kinds: Sequence[str], *, step_s: float) -> Columns:
    """A column for each slot, each *step_s* long."""
    most = max((sum(slot.counts) for slot in slots), default=0)
    top = ceiling(most)
    room = (WIDTH - LEFT - RIGHT) / max(len(slots), 1)
    scale = (HEIGHT - TOP - BOTTOM) / top
    every = max(math.ceil(len(slots) / 8), 1)
    return Columns(
        columns=tuple(
            _column(slot, kinds, LEFT + at * room, room, scale, step_s)
            for at, slot in enumerate(slots)
        ),
        kinds=tuple(kinds),
        levels=tuple(
            Mark(round(HEIGHT - BOTTOM - level * scale, 1), f"{level:,}") for level in levels(top)
        ),
        marks=tuple(
            Mark(round(LEFT + (at + 0.5) * room, 1), _short(slot.start, step_s))
            for at, slot in enumerate(slots)
            if at % every == 0
        ),
        total=sum(sum(slot.counts) for slot in slots),
    )


def ceiling(most: int) -> int:
    """The end of an axis: 4, 8, 10, 20, 40, 80, 100… at least *most*."""
    if most <= 4:
        return 4
    size = int(10 ** math.floor(math.log10(most)))
    for factor in (1, 2, 4, 6, 8, 10):
        if factor * size >= most:
            return factor * size
    return 10 * size


def levels(top: int) -> list[int]:
    """Where an axis of that length has its lines."""
    step = top // 4 if top % 4 == 0 else top // 2 if top % 2 == 0 else top
    return list(range(0, top + 1, step))


def _column(
    slot: Slot, kinds: Sequence[str], x: float, room: float, scale: float, step_s: float
) -> Column:
    parts: list[Part] = []
    bottom = float(HEIGHT - BOTTOM)
    for kind, count in zip(kinds, slot.counts, strict=True):
        if count:
            height = count * scale
            bottom -= height
            parts.append(Part(kind, round(bottom, 1), round(height, 1)))
    label = _long(slot.start, step_s)
    told = ", ".join(
        f"{count} {kind}" for kind, count in zip(kinds, slot.counts, strict=True) if count
    )
    return Column(
        x=round(x + room * GAP / 2, 1),
        width=round(room * (1 - GAP), 1),
        parts=tuple(parts),
        title=f"{label}: {told or 'no calls'}",
        counts=slot.counts,
        label=label,
    )


def _short(start: float, step_s: float) -> str:
    moment = datetime.fromtimestamp(start, UTC)
    return f"{moment:%H:%M}" if step_s <= 3_600 else f"{moment:%d %b}".lstrip("0")


def _long(start: float, step_s: float) -> str:
    moment = datetime.fromtimestamp(start, UTC)
    return f"{moment:%d %b %H:%M}".lstrip("0") if step_s < 86_400 else f"{moment:%d %B}".lstrip("0")


class Meter(msgspec.Struct, frozen=True, kw_only=True):
    """How much of something is used; *share* is 0 to 1."""

    label: str
    used: float
    most: float

    @property
    def share(self) -> float:
        """Used of most."""
        return min(max(self.used / self.most, 0.0), 1.0) if self.most else 0.0

    @property
    def width(self) -> float:
        """Of 200."""
        return round(self.share * 200, 1)

    @property
    def level(self) -> str:
        """How near the end is."""
        return "full" if self.share >= 0.95 else "high" if self.share >= 0.75 else "fine"
