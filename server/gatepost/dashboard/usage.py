"""The usage page: calls, their outcomes, and the current use of limits."""

import time
from collections import Counter
from collections.abc import Callable, Iterable

import msgspec

from gatepost.dashboard.chart import ChartInterval, UsageMeter, columns
from gatepost.dashboard.page import PageRequest, PageResponse
from gatepost.dashboard.templating import Templates
from gatepost.dashboard.tools import ReadRecentCallers
from gatepost.policy.limits.local_counters import BucketUsage, ConcurrencyUsage
from gatepost.policy.limits.stage import LimitStage
from gatepost.storage.audit import AuditStore, Count
from gatepost.storage.revocations import RevocationRecord
from gatepost_authz.reasons import RULES, UNKNOWN_REASON, RefusalReason

OUTCOME_KINDS = ("answered", "waited", "failed", "refused")
WAITING_OUTCOMES = frozenset({"approval_pending", "input_required"})
"""Outcomes of calls that wait for approval or input."""
CALLERS = 20


class UsagePeriod(msgspec.Struct, frozen=True):
    """A time span of the charts, in columns of *step_s*."""

    key: str
    label: str
    length_s: int
    step_s: int


SPANS = (
    UsagePeriod("day", "24 hours", 86_400, 3_600),
    UsagePeriod("week", "7 days", 7 * 86_400, 6 * 3_600),
)


class ToolUse(msgspec.Struct, frozen=True, kw_only=True):
    """The outcomes of the calls of one tool."""

    tool: str
    counts: tuple[int, ...]
    """By `OUTCOME_KINDS`."""
    outcomes: tuple[tuple[str, int], ...]
    """Failed and refused outcomes, the most frequent first."""
    share: float
    """The calls relative to the most called tool, from 0 to 1."""

    @property
    def total(self) -> int:
        """Return the number of all calls."""
        return sum(self.counts)

    @property
    def bars(self) -> list[tuple[str, float, float]]:
        """Return kind, start and width of each part of a bar that is at most 160 wide."""
        parts: list[tuple[str, float, float]] = []
        begin, scale = 0.0, 160 * self.share / max(self.total, 1)
        for kind, count in zip(OUTCOME_KINDS, self.counts, strict=True):
            if count:
                parts.append((kind, round(begin, 1), round(count * scale, 1)))
                begin += count * scale
        return parts


class UsagePage:
    """Render the usage page; *several* says that many processes share the database."""

    def __init__(  # noqa: PLR0913  # the composition root hands over each part by name
        self,
        view: Templates,
        *,
        audit_store: AuditStore,
        limits: LimitStage,
        tools: Callable[[], Iterable[str]],
        recent_callers: ReadRecentCallers,
        several: bool,
        holds_of: Callable[[str], list[RevocationRecord]],
    ) -> None:
        self._view, self._audit_store, self._limits = view, audit_store, limits
        self._tools, self._recent_callers, self._several = tools, recent_callers, several
        self._holds_of = holds_of

    async def show(self, page_request: PageRequest) -> PageResponse:
        """Show the last day or the last week."""
        span = next(
            (candidate for candidate in SPANS if candidate.key == page_request.query.get("span")),
            SPANS[0],
        )
        now = time.time()
        since = (now - span.length_s) // span.step_s * span.step_s + span.step_s
        tenant_log = self._audit_store.tenant_log(page_request.tenant)
        counts = await tenant_log.count(int(since * 1000), span.step_s * 1000)
        # A caller has one bucket, whatever clients and tokens it uses.
        recent = await self._recent_callers(page_request.tenant, CALLERS)
        callers = list({caller.principal_key: caller for caller in recent}.values())
        levels = await self._limits.levels(
            page_request.tenant, tools=sorted(self._tools()), callers=callers
        )
        return await self._view.page(
            "usage.html",
            page_request,
            tab="/usage",
            span=span,
            spans=SPANS,
            chart=columns(
                intervals_of(counts, since, span, now), OUTCOME_KINDS, step_s=span.step_s
            ),
            tools=tools_of(counts),
            buckets=[bucket_meter(bucket) for bucket in levels.buckets],
            concurrency_limits=[concurrency_meter(limit) for limit in levels.concurrency],
            levels=levels,
            refused=refused_by(counts),
            tokens=tokens_of(counts),
            several=self._several,
            holds=self._holds_of(page_request.tenant),
        )


def intervals_of(
    counts: Iterable[Count], since: float, span: UsagePeriod, now: float
) -> list[ChartInterval]:
    """Return one interval for each step, including empty ones."""
    by_interval: Counter[tuple[int, str]] = Counter()
    for count in counts:
        if (kind := kind_of(count)) is not None:
            by_interval[int((count.at / 1000 - since) // span.step_s), kind] += count.number
    number = int((now - since) // span.step_s) + 1
    return [
        ChartInterval(
            since + at * span.step_s, tuple(by_interval[at, kind] for kind in OUTCOME_KINDS)
        )
        for at in range(number)
    ]


def tools_of(counts: Iterable[Count]) -> list[ToolUse]:
    """Return the outcomes of the calls of each tool, the most called first."""
    kinds: dict[str, Counter[str]] = {}
    outcomes: dict[str, Counter[str]] = {}
    for count in counts:
        if (kind := kind_of(count)) is None:
            continue
        kinds.setdefault(count.tool, Counter())[kind] += count.number
        if kind not in {"answered", "waited"}:
            outcomes.setdefault(count.tool, Counter())[count.outcome] += count.number
    largest = max((of_tool.total() for of_tool in kinds.values()), default=1)
    used = [
        ToolUse(
            tool=tool,
            counts=tuple(of_tool[kind] for kind in OUTCOME_KINDS),
            outcomes=tuple(outcomes.get(tool, Counter()).most_common(4)),
            share=of_tool.total() / largest,
        )
        for tool, of_tool in kinds.items()
    ]
    return sorted(used, key=lambda tool: (-tool.total, tool.tool))


def refused_by(counts: Iterable[Count]) -> list[tuple[str, int]]:
    """Return how many calls each limit refused, most first; "" for limits outside `[limits]`."""
    refused: Counter[str] = Counter()
    for count in counts:
        if (count.kind, count.outcome) == ("refusal", "rate_limit"):
            refused[count.limit] += count.number
    return refused.most_common()


def tokens_of(counts: Iterable[Count]) -> list[tuple[str, int, RefusalReason]]:
    """Return refused tokens by reason, most first, each with its rule."""
    refused: Counter[str] = Counter()
    for count in counts:
        if count.kind == "token":
            refused[count.outcome] += count.number
    return [
        (reason, number, RULES.get(reason, UNKNOWN_REASON))
        for reason, number in refused.most_common()
    ]


def kind_of(count: Count) -> str | None:
    """Return the kind of these calls in `OUTCOME_KINDS`; None if they are not calls."""
    if count.kind not in {"call", "refusal"}:
        return None
    if count.outcome in WAITING_OUTCOMES:
        return "waited"
    if count.kind == "refusal":
        return "refused"
    return "answered" if count.outcome == "success" else "failed"


def bucket_meter(level: BucketUsage) -> tuple[UsageMeter, BucketUsage]:
    """Return how much of a token bucket is used."""
    used = max(level.burst - level.tokens, 0.0)
    return UsageMeter(label=_label(level.kind, level.name), used=used, maximum=level.burst), level


def concurrency_meter(level: ConcurrencyUsage) -> tuple[UsageMeter, ConcurrencyUsage]:
    """Return how much of a concurrency limit is used."""
    label = _label(level.kind, level.name)
    return UsageMeter(label=label, used=level.running, maximum=level.maximum), level


def _label(kind: str, name: str) -> str:
    return {"tenant": "Whole tenant"}.get(kind, name)
