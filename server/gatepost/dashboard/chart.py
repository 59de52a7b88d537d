"""Charts as coordinates, which the templates draw as SVG without style or script."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

WIDTH, HEIGHT = 720, 200
LEFT, RIGHT, TOP, BOTTOM = 44, 8, 10, 26
GAP = 0.28
"""Share of a column's width that stays empty."""


class ColumnPart(msgspec.Struct, frozen=True):
    """One coloured part of a column."""

    kind: str
    y: float
    height: float


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One stacked column; *title* is its tooltip."""

    x: float
    width: float
    parts: tuple[ColumnPart, ...]
    title: str
    counts: tuple[int, ...]
    label: str


class AxisLabel(msgspec.Struct, frozen=True):
    """A label at a position of an axis."""

    at: float
    label: str


class Columns(msgspec.Struct, frozen=True, kw_only=True):
    """A chart of stacked columns, with its data for a table."""

    columns: tuple[Column, ...]
    kinds: tuple[str, ...]
    levels: tuple[AxisLabel, ...]
    """Horizontal lines, from the bottom."""
    marks: tuple[AxisLabel, ...]
    """Labels below."""
    total: int
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    bottom: int = HEIGHT - BOTTOM

    @property
    def totals(self) -> tuple[int, ...]:
        """Return the sum of each kind over all columns."""
        return tuple(
            sum(column.counts[at] for column in self.columns) for at in range(len(self.kinds))
        )


class ChartInterval(msgspec.Struct, frozen=True):
    """The counts from *start* on (seconds since the epoch), by kind in the chart's order."""

    start: float
    counts: tuple[int, ...]


def columns(intervals: Sequence[ChartInterval], kinds: Sequence[str], *, step_s: float) -> Columns:
    """Return a chart with one column for each interval of *step_s* seconds."""
    largest = max((sum(interval.counts) for interval in intervals), default=0)
    top = ceiling(largest)
    width = (WIDTH - LEFT - RIGHT) / max(len(intervals), 1)
    scale = (HEIGHT - TOP - BOTTOM) / top
    every = max(math.ceil(len(intervals) / 8), 1)
    return Columns(
        columns=tuple(
            _column(interval, kinds, LEFT + at * width, width, scale, step_s)
            for at, interval in enumerate(intervals)
        ),
        kinds=tuple(kinds),
        levels=tuple(
            AxisLabel(round(HEIGHT - BOTTOM - level * scale, 1), f"{level:,}")
            for level in levels(top)
        ),
        marks=tuple(
            AxisLabel(round(LEFT + (at + 0.5) * width, 1), _short_label(interval.start, step_s))
            for at, interval in enumerate(intervals)
            if at % every == 0
        ),
        total=sum(sum(interval.counts) for interval in intervals),
    )


def ceiling(largest: int) -> int:
    """Return the end of an axis, at least *largest*: 4, 8, 10, 20, 40, 80, 100…"""
    if largest <= 4:
        return 4
    size = int(10 ** math.floor(math.log10(largest)))
    for factor in (1, 2, 4, 6, 8, 10):
        if factor * size >= largest:
            return factor * size
    return 10 * size


def levels(top: int) -> list[int]:
    """Return the positions of the lines of an axis that ends at *top*."""
    step = top // 4 if top % 4 == 0 else top // 2 if top % 2 == 0 else top
    return list(range(0, top + 1, step))


def _column(
    interval: ChartInterval,
    kinds: Sequence[str],
    x: float,
    width: float,
    scale: float,
    step_s: float,
) -> Column:
    parts: list[ColumnPart] = []
    bottom = float(HEIGHT - BOTTOM)
    for kind, count in zip(kinds, interval.counts, strict=True):
        if count:
            height = count * scale
            bottom -= height
            parts.append(ColumnPart(kind, round(bottom, 1), round(height, 1)))
    label = _long_label(interval.start, step_s)
    title = ", ".join(
        f"{count} {kind}" for kind, count in zip(kinds, interval.counts, strict=True) if count
    )
    return Column(
        x=round(x + width * GAP / 2, 1),
        width=round(width * (1 - GAP), 1),
        parts=tuple(parts),
        title=f"{label}: {title or 'no calls'}",
        counts=interval.counts,
        label=label,
    )


def _short_label(start: float, step_s: float) -> str:
    moment = datetime.fromtimestamp(start, UTC)
    return f"{moment:%H:%M}" if step_s <= 3_600 else f"{moment:%d %b}".lstrip("0")


def _long_label(start: float, step_s: float) -> str:
    moment = datetime.fromtimestamp(start, UTC)
    return f"{moment:%d %b %H:%M}".lstrip("0") if step_s < 86_400 else f"{moment:%d %B}".lstrip("0")


class UsageMeter(msgspec.Struct, frozen=True, kw_only=True):
    """The used part of a limit; *share* is from 0 to 1."""

    label: str
    used: float
    maximum: float

    @property
    def share(self) -> float:
        """Return the used share, from 0 to 1."""
        return min(max(self.used / self.maximum, 0.0), 1.0) if self.maximum else 0.0

    @property
    def width(self) -> float:
        """Return the width of the bar, from 0 to 200."""
        return round(self.share * 200, 1)

    @property
    def level(self) -> str:
        """Return how close the limit is: `fine`, `high` or `full`."""
        return "full" if self.share >= 0.95 else "high" if self.share >= 0.75 else "fine"
