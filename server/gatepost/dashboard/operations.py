"""The operators' page: the processes, issuers, refusals, tools and callers of all tenants."""

import logging
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from gatepost.dashboard.navigation import PageLayout
from gatepost.dashboard.page import PageRequest, PageResponse, PageRoute
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

log = logging.getLogger("gatepost.dashboard")

Reports = Callable[[float], Awaitable[list[ProcessReport]]]


class IssuerOverview(msgspec.Struct, frozen=True, kw_only=True):
    """An issuer, as all processes see it."""

    issuer: str
    states: tuple[str, ...]
    """Each state once."""
    good: int
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

    def __init__(self, layout: PageLayout, read: Reports, callers: RecentCallers) -> None:
        self._layout, self._read, self._callers = layout, read, callers

    async def show(self, page_request: PageRequest) -> PageResponse:
        """Show the deployment as its processes reported it last."""
        now = self._layout.clock()
        # The record belongs to no tenant, because the page is about all of them.
        user = page_request.user
        log.info("operations_shown", extra={"issuer": user.issuer, "subject": user.subject})
        found = await self._read(now)
        return self._layout.page(
            "operations.html",
            page_request,
            tab="/operations",
            processes=found,
            late={one.process for one in found if now - one.written_at > OUTDATED_S},
            versions=sorted({one.version for one in found}),
            issuers=issuers_of([one.issuers for one in found]),
            refusals=added([one.refusals for one in found]),
            tokens=[
                (reason, number, RULES.get(reason, UNKNOWN_REASON))
                for reason, number in added([one.tokens for one in found])
            ],
            tools=slow_tools([one for report in found for one in report.tools]),
            callers=await self._callers.everywhere(CALLERS),
        )


def issuers_of(found: Sequence[Sequence[ReportedKeys]]) -> list[IssuerOverview]:
    """Return the issuers of all reports, those with problems first."""
    by_issuer: dict[str, list[ReportedKeys]] = {}
    for keys in found:
        for one in keys:
            by_issuer.setdefault(one.issuer, []).append(one)
    overviews = [
        IssuerOverview(
            issuer=issuer,
            states=tuple(sorted({one.state for one in seen})),
            good=sum(one.state in GOOD_STATES for one in seen),
            total=len(seen),
            oldest_s=max((one.age_s for one in seen if one.age_s is not None), default=None),
        )
        for issuer, seen in by_issuer.items()
    ]
    return sorted(overviews, key=lambda one: (one.good == one.total, not one.is_old, one.issuer))


def slow_tools(found: Sequence[ToolTimes]) -> list[SlowTool]:
    """Return the slowest tools of all reports, by the time of most of their calls."""
    counts: dict[str, list[int]] = {}
    seconds: dict[str, float] = {}
    for one in found:
        if len(one.counts) != BUCKETS:
            continue  # written by another version with other buckets
        before = counts.get(one.tool, [0] * BUCKETS)
        counts[one.tool] = [a + b for a, b in zip(before, one.counts, strict=True)]
        seconds[one.tool] = seconds.get(one.tool, 0.0) + one.seconds
    tools = [
        SlowTool(
            tool=tool,
            calls=sum(inside),
            mean_s=seconds[tool] / max(sum(inside), 1),
            most_s=bound_of(inside),
        )
        for tool, inside in counts.items()
    ]
    longest = float("inf")
    order = sorted(
        tools, key=lambda one: (-(longest if one.most_s is None else one.most_s), -one.mean_s)
    )
    return order[:TOOLS]


def bound_of(counts: Sequence[int]) -> float | None:
    """Return the bucket's bound below which most calls ended; None for the last bucket."""
    threshold, seen = SLOW_SHARE * sum(counts), 0
    for bound, number in zip(BOUNDS_S, counts, strict=False):
        seen += number
        if seen >= threshold:
            return bound
    return None


def operator_routes(layout: PageLayout, services: Services) -> tuple[PageRoute, ...]:
    """Return the route of the operators' page, which no other role opens."""
    page = OperationsPage(layout, lambda now: reports(services.records, now), services.callers)
    return (PageRoute(path="/operations", get=page.show, roles=frozenset({OPERATOR})),)
