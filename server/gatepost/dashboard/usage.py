"""How much is called, what comes of it, and how far limits are used up."""

from collections import Counter
from collections.abc import Callable, Iterable

import msgspec

from gatepost.audit.trail import Trail
from gatepost.dashboard.catalogue import Seen
from gatepost.dashboard.chart import Meter, Slot, columns
from gatepost.dashboard.sheet import Sheet
from gatepost.dashboard.visit import Answer, Visit
from gatepost.limits.levels import BucketLevel, PlaceLevel
from gatepost.limits.stage import Limits
from gatepost.stores.audit import Count

KINDS = ("answered", "asked", "failed", "refused")
ASKED = frozenset({"approval_pending", "input_required"})
"""Outcomes of calls that wait for somebody: their client comes back."""
CALLERS = 20


class Span(msgspec.Struct, frozen=True):
    """A time that the charts show, in columns of *step_s*."""

    key: str
    label: str
    length_s: int
    step_s: int


SPANS = (
    Span("day", "24 hours", 86_400, 3_600),
    Span("week", "7 days", 7 * 86_400, 6 * 3_600),
)


class ToolUse(msgspec.Struct, frozen=True, kw_only=True):
    """What came of the calls of one tool."""

    tool: str
    counts: tuple[int, ...]
    """By `KINDS`."""
    outcomes: tuple[tuple[str, int], ...]
    """What failed or was refused, the most frequent outcome first."""
    share: float
    """Of the tool that is called most, 0 to 1."""

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.counts)

    @property
    def bars(self) -> list[tuple[str, float, float]]:
        """Kind, begin and width of each part of a bar that is 160 wide at most."""
        parts: list[tuple[str, float, float]] = []
        begin, scale = 0.0, 160 * self.share / max(self.total, 1)
        for kind, count in zip(KINDS, self.counts, strict=True):
            if count:
                parts.append((kind, round(begin, 1), round(count * scale, 1)))
                begin += count * scale
        return parts


class Usage:
    """The page of limits and usage; *several*: its database is one for many processes."""

    def __init__(
        self,
        sheet: Sheet,
        *,
        trail: Trail,
        limits: Limits,
        tools: Callable[[], Iterable[str]],
        seen: Seen,
        several: bool,
    ) -> None:
        self._sheet, self._trail, self._limits = sheet, trail, limits
        self._tools, self._seen, self._several = tools, seen, several

    async def show(self, visit: Visit) -> Answer:
        """The last day, or the last week."""
        span = next((one for one in SPANS if one.key == visit.query.get("span")), SPANS[0])
        now = self._sheet.clock()
        since = (now - span.length_s) // span.step_s * span.step_s + span.step_s
        counts = await self._trail.usage(visit.tenant, since=since, bucket_s=span.step_s)
        # One bucket each, whatever clients and tokens they use.
        seen = await self._seen(visit.tenant, CALLERS)
        callers = list({one.principal_key: one for one in seen}.values())
        levels = await self._limits.levels(
            visit.tenant, tools=sorted(self._tools()), callers=callers
        )
        return self._sheet.page(
            "usage.html",
            visit,
            here="/usage",
            span=span,
            spans=SPANS,
            chart=columns(slots_of(counts, since, span, now), KINDS, step_s=span.step_s),
            tools=tools_of(counts),
            buckets=[bucket_meter(one) for one in levels.buckets],
            places=[place_meter(one) for one in levels.places],
            levels=levels,
            refused=refused_by(counts),
            several=self._several,
        )


def slots_of(counts: Iterable[Count], since: float, span: Span, now: float) -> list[Slot]:
    """One slot for each step, also where nothing was called."""
    by_slot: Counter[tuple[int, str]] = Counter()
    for one in counts:
        if (kind := kind_of(one)) is not None:
            by_slot[int((one.at / 1000 - since) // span.step_s), kind] += one.number
    number = int((now - since) // span.step_s) + 1
    return [
        Slot(since + at * span.step_s, tuple(by_slot[at, kind] for kind in KINDS))
        for at in range(number)
    ]


def tools_of(counts: Iterable[Count]) -> list[ToolUse]:
    """What came of the calls of each tool, the most called first."""
    kinds: dict[str, Counter[str]] = {}
    outcomes: dict[str, Counter[str]] = {}
    for one in counts:
        if (kind := kind_of(one)) is None:
            continue
        kinds.setdefault(one.tool, Counter())[kind] += one.number
        if kind not in {"answered", "asked"}:
            outcomes.setdefault(one.tool, Counter())[one.outcome] += one.number
    most = max((found.total() for found in kinds.values()), default=1)
    used = [
        ToolUse(
            tool=tool,
            counts=tuple(found[kind] for kind in KINDS),
            outcomes=tuple(outcomes.get(tool, Counter()).most_common(4)),
            share=found.total() / most,
        )
        for tool, found in kinds.items()
    ]
    return sorted(used, key=lambda one: (-one.total, one.tool))


def refused_by(counts: Iterable[Count]) -> list[tuple[str, int]]:
    """How many calls each kind of limit has refused, the most first; "": none of `[limits]`."""
    refused: Counter[str] = Counter()
    for one in counts:
        if (one.kind, one.outcome) == ("refusal", "rate_limit"):
            refused[one.limit] += one.number
    return refused.most_common()


def kind_of(count: Count) -> str | None:
    """Which of `KINDS` these count as; None: they are about no call."""
    if count.kind not in {"call", "refusal"}:
        return None
    if count.outcome in ASKED:
        return "asked"
    if count.kind == "refusal":
        return "refused"
    return "answered" if count.outcome == "success" else "failed"


def bucket_meter(level: BucketLevel) -> tuple[Meter, BucketLevel]:
    """How much of a bucket is used up."""
    used = max(level.burst - level.held, 0.0)
    return Meter(label=_label(level.kind, level.name), used=used, most=level.burst), level


def place_meter(level: PlaceLevel) -> tuple[Meter, PlaceLevel]:
    """How many of the places are taken."""
    label = _label(level.kind, level.name)
    return Meter(label=label, used=level.taken, most=level.most), level


def _label(kind: str, name: str) -> str:
    return {"tenant": "All of the tenant"}.get(kind, name)
