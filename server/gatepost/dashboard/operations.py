"""The operators' page: the processes, issuers, refusals, tools and callers of all tenants."""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from gatepost.dashboard.page import PageRequest, PageResponse, PageRoute
from gatepost.dashboard.templating import Templates
from gatepost.runtime.process_reports import (
    BOUNDS_S,
    OUTDATED_S,
    ProcessReport,
    ReportedKeys,
    ToolTimes,
    added,
    reports,
)
from gatepost.runtime.recent_callers import RecentCallers
from gatepost.runtime.services import Services
from gatepost_authz.check import OPERATOR
from gatepost_authz.reasons import RULES, UNKNOWN_REASON

CALLERS, TOOLS = 50, 20
SLOW_SHARE = 0.95
BUCKETS = len(BOUNDS_S) + 1
OLD_KEYS_S = 7_200.0
"""The age of keys above which the documented alert fires."""
GOOD_STATES = frozenset({"ready", "asked", "template"})

log = logging.getLogger(__name__)

Reports = Callable[[float], Awaitable[list[ProcessReport]]]


class IssuerOverview(msgspec.Struct, frozen=True, kw_only=True):
    """An issuer, as all processes see it."""

    issuer: str
    states: tuple[str, ...]
    """Each state once."""
    usable: int
    """The processes that can check its tokens."""
    total: int
    oldest_s: float | None
    """The age of the oldest keys in use."""

    @property
    def is_old(self) -> bool:
        """Return whether the keys are older than they should be."""
        return self.oldest_s is not None and self.oldest_s > OLD_KEYS_S


class SlowTool(msgspec.Struct, frozen=True, kw_only=True):
    """How long the calls of a tool took."""

    tool: str
    calls: int
    mean_s: float
    most_s: float | None
    """The time within which 95 of 100 calls ended; None: longer than the highest bucket."""


class OperationsPage:
    """Render the operators' page. It reads the stores when it is opened, and never by itself."""

    def __init__(self, view: Templates, read: Reports, callers: RecentCallers) -> None:
        self._view, self._read, self._callers = view, read, callers

    async def show(self, page_request: PageRequest) -> PageResponse:
        """Show the deployment as its processes reported it last."""
        now = time.time()
        # The record belongs to no tenant, because the page is about all of them.
        user = page_request.user
        log.info("operations_shown", extra={"issuer": user.issuer, "subject": user.subject})
        process_reports = await self._read(now)
        return await self._view.page(
            "operations.html",
            page_request,
            tab="/operations",
            processes=process_reports,
            late={
                report.process for report in process_reports if now - report.written_at > OUTDATED_S
            },
            versions=sorted({report.version for report in process_reports}),
            issuers=issuers_of([report.issuers for report in process_reports]),
            refusals=added([report.refusals for report in process_reports]),
            tokens=[
                (reason, number, RULES.get(reason, UNKNOWN_REASON))
                for reason, number in added([report.tokens for report in process_reports])
            ],
            tools=slow_tools([times for report in process_reports for times in report.tools]),
            callers=await self._callers.everywhere(CALLERS),
        )


def issuers_of(keys_of_processes: Sequence[Sequence[ReportedKeys]]) -> list[IssuerOverview]:
    """Return the issuers of all reports, those with problems first."""
    by_issuer: dict[str, list[ReportedKeys]] = {}
    for keys in keys_of_processes:
        for key_set in keys:
            by_issuer.setdefault(key_set.issuer, []).append(key_set)
    overviews = [
        IssuerOverview(
            issuer=issuer,
            states=tuple(sorted({key_set.state for key_set in key_sets})),
            usable=sum(key_set.state in GOOD_STATES for key_set in key_sets),
            total=len(key_sets),
            oldest_s=max(
                (key_set.age_s for key_set in key_sets if key_set.age_s is not None), default=None
            ),
        )
        for issuer, key_sets in by_issuer.items()
    ]
    return sorted(
        overviews,
        key=lambda overview: (
            overview.usable == overview.total,
            not overview.is_old,
            overview.issuer,
        ),
    )


def slow_tools(tool_times: Sequence[ToolTimes]) -> list[SlowTool]:
    """Return the slowest tools of all reports, by the time of most of their calls."""
    counts: dict[str, list[int]] = {}
    seconds: dict[str, float] = {}
    for times in tool_times:
        if len(times.counts) != BUCKETS:
            continue  # written by another version with other buckets
        before = counts.get(times.tool, [0] * BUCKETS)
        counts[times.tool] = [a + b for a, b in zip(before, times.counts, strict=True)]
        seconds[times.tool] = seconds.get(times.tool, 0.0) + times.seconds
    tools = [
        SlowTool(
            tool=tool,
            calls=sum(tool_counts),
            mean_s=seconds[tool] / max(sum(tool_counts), 1),
            most_s=bound_of(tool_counts),
        )
        for tool, tool_counts in counts.items()
    ]
    longest = float("inf")
    order = sorted(
        tools, key=lambda tool: (-(longest if tool.most_s is None else tool.most_s), -tool.mean_s)
    )
    return order[:TOOLS]


def bound_of(counts: Sequence[int]) -> float | None:
    """Return the bucket's bound below which most calls ended; None for the last bucket."""
    threshold, counted = SLOW_SHARE * sum(counts), 0
    for bound, number in zip(BOUNDS_S, counts, strict=False):
        counted += number
        if counted >= threshold:
            return bound
    return None


def operator_routes(view: Templates, services: Services) -> tuple[PageRoute, ...]:
    """Return the route of the operators' page, which no other role opens."""
    page = OperationsPage(view, lambda now: reports(services.records, now), services.callers)
    return (PageRoute(path="/operations", get=page.show, roles=frozenset({OPERATOR})),)
