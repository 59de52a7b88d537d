"""Counting, for many calls or requests at once: each is then a fraction of a microsecond."""

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import repeat

from gatepost.telemetry.cells import AT, Board, Cells, Names
from gatepost.telemetry.family import (
    CALL_BOUNDS,
    DECIDED,
    FAMILIES,
    LIMITED,
    MOST_TENANTS,
    OTHER,
    OTHER_CALLS,
    OUTCOMES,
    REASONS,
    REFUSALS,
    REQUEST_BOUNDS,
    REQUEST_SECONDS,
    REQUESTS,
    ROUTES,
    STARTED,
    STATUSES,
    TENANT_CALLS,
    TOOL_CALLS,
    TOOL_SECONDS,
    TOOLS,
    WORKERS,
    Closed,
    Family,
    Open,
)

NANOSECONDS = 1_000_000_000
UNKNOWN_AT, OTHER_AT = 0, 1
"""The numbers of an open label's values that are no names."""


def _numbers(values: Iterable[str]) -> dict[str, int]:
    return {value: number for number, value in enumerate(values)}


_OUTCOME, _REASON, _ROUTE = _numbers(OUTCOMES), _numbers(REASONS), _numbers(ROUTES)
_OTHER_OUTCOME, _OTHER_REASON = _OUTCOME[OTHER], _REASON[OTHER]
_OUTCOMES, _STATUSES, _NO_STATUS = len(OUTCOMES), len(STATUSES), len(STATUSES) - 1
_KIND = {
    kind: AT[OTHER_CALLS.name] + number * _OUTCOMES
    for axis in OTHER_CALLS.axes[:1]
    if isinstance(axis, Closed)
    for number, kind in enumerate(axis.values)
}
_TENANTS = Open("tenant", MOST_TENANTS)
_CALLS, _CALL_SECONDS = AT[TOOL_CALLS.name], AT[TOOL_SECONDS.name]
_TENANT_CALLS = AT[TENANT_CALLS.name]
_REQUESTS, _REQUEST_SECONDS = AT[REQUESTS.name], AT[REQUEST_SECONDS.name]
_REFUSALS = AT[REFUSALS.name]


class Meter:
    """
    Counts for one process, on its event loop.

    Labels come from closed lists or from the configuration, never from what a client sends: what
    is not in them counts as `unknown` or `other`.
    """

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self._tools = Names(cells, TOOLS)
        self._tenants = Names(cells, _TENANTS)
        self._tool_at = self._tools.places
        self._tenant_at: dict[str, int] | None = None
        self.tells_tenants = False
        """Whether calls are told by tenant."""

    @classmethod
    def alone(cls) -> "Meter":
        """One that shares its numbers with nobody."""
        return cls(Board().slot(0))

    def begin(self, *, now: float) -> None:
        """Take the place over: counters go on, gauges begin anew; *now* since the epoch."""
        for family in FAMILIES:
            if family.kind == "gauge":
                start = AT[family.name]
                self._cells[start : start + family.size] = memoryview(bytes(8 * family.size)).cast(
                    "Q"
                )
        self.put(WORKERS, 1)
        self.put(STARTED, now)
        self._cells[0] = os.getpid()

    def know(self, tools: Iterable[str], tenants: Iterable[str] | None) -> None:
        """The names that may be labels from now on; *tenants* None: calls are not told by them."""
        self._tools.learn(sorted(tools))
        self._tenant_at = None
        self.tells_tenants = tenants is not None
        if tenants is not None:
            named = sorted(tenants)
            self._tenants.learn(named)
            known = self._tenants.places
            self._tenant_at = {name: known[name] for name in named if name in known}

    def called(self, kind: str, name: str | None, outcome: str, *seconds: float) -> None:
        """
        Calls ended so, after so many seconds each.

        *kind* as in `Call.kind`, *name* the tool's own, or None where there is none of that name;
        *outcome* is "success", a failure's kind, or another of OUTCOMES.
        """
        ended = _OUTCOME.get(outcome, _OTHER_OUTCOME)
        if kind != "tool":
            self._cells[_KIND[kind] + ended] += len(seconds)
            return
        tool = UNKNOWN_AT if name is None else self._tool_at.get(name, OTHER_AT)
        self._cells[_CALLS + tool * _OUTCOMES + ended] += len(seconds)
        self._spread(_CALL_SECONDS + tool * TOOL_SECONDS.width, CALL_BOUNDS, seconds)

    def called_for(self, tenant: str, outcome: str, calls: int = 1) -> None:
        """Calls of tools by this tenant ended so; counts only where tenants are told."""
        if self._tenant_at is not None:
            at = self._tenant_at.get(tenant, OTHER_AT) * _OUTCOMES
            self._cells[_TENANT_CALLS + at + _OUTCOME.get(outcome, _OTHER_OUTCOME)] += calls

    def answered(self, route: str, status: int, *seconds: float) -> None:
        """
        HTTP requests were answered, after so many seconds each.

        *route* is of ROUTES, *status* 0 where nobody was left.
        """
        number = _ROUTE[route]
        kind = status // 100 - 2 if 200 <= status < 600 else _NO_STATUS
        self._cells[_REQUESTS + number * _STATUSES + kind] += len(seconds)
        self._spread(_REQUEST_SECONDS + number * REQUEST_SECONDS.width, REQUEST_BOUNDS, seconds)

    def refused(self, reason: str) -> None:
        """A request was refused; *reason* of REASONS."""
        self._cells[_REFUSALS + _REASON.get(reason, _OTHER_REASON)] += 1

    def limited(self, limit: str) -> None:
        """A call was refused by that limit (`caller`, `tenant`, `tool`, `concurrency`, …)."""
        self.add(LIMITED, 1, limit)

    def decided(self, result: str) -> None:
        """An approval request came to an end here: `approved`, `rejected`, `expired`, …"""
        self.add(DECIDED, 1, result)

    def add(self, family: Family, amount: float, *values: str) -> None:
        """Raise a counter or a gauge; seconds where the family counts them."""
        self._cells[_at(family, values)] += _written(family, amount)

    def put(self, family: Family, amount: float, *values: str) -> None:
        """Set a gauge."""
        self._cells[_at(family, values)] = max(_written(family, amount), 0)

    def observe(self, family: Family, seconds: float, *values: str) -> None:
        """Put one observation into a histogram."""
        self._spread(_at(family, values), family.bounds, (max(seconds, 0.0),))

    def _spread(self, at: int, bounds: Sequence[float], seconds: Sequence[float]) -> None:
        """Add observations to the histogram whose cells begin there."""
        cells = self._cells
        for bucket, number in Counter(map(bisect_left, repeat(bounds), seconds)).items():
            cells[at + bucket] += number
        cells[at + len(bounds) + 1] += int(sum(seconds) * NANOSECONDS)


def _at(family: Family, values: tuple[str, ...]) -> int:
    """The first cell of a family of closed labels with these values."""
    number = 0
    for axis, value in zip(family.axes, values, strict=True):
        if not isinstance(axis, Closed):
            raise TypeError(f"{family.name} has names for labels")
        known = axis.values
        number = number * axis.size + (known.index(value if value in known else OTHER))
    return AT[family.name] + number * family.width


def _written(family: Family, amount: float) -> int:
    return int(amount * NANOSECONDS) if family.in_seconds else int(amount)


class Growth:
    """A number that somebody else counts, from which a counter is to grow."""

    def __init__(self, before: float = 0) -> None:
        self._before = before

    def since(self, now: float) -> float:
        """How much it has grown since the last time; one that begins anew has grown from 0."""
        grown = now - self._before if now >= self._before else now
        self._before = now
        return grown
