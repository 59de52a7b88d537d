"""Counts answered requests, from the rows of the access log."""

from collections import defaultdict
from collections.abc import Callable, Sequence

from gatepost.telemetry.access import Row
from gatepost.telemetry.metrics import Meter


class Answers:
    """
    Takes up what the access log has gathered, so that a request leaves one row and no more.

    *route_of* knows the route of a path; a path is never a label.
    """

    def __init__(self, meter: Meter, route_of: Callable[[str], str]) -> None:
        self._meter = meter
        self._route_of = route_of

    def __call__(self, rows: Sequence[Row]) -> None:
        """See `AccessLog.counts`."""
        found: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
        for row in rows:
            found[row[2], row[3]].append(row[4])
        for (path, status), seconds in found.items():
            self._meter.answered(self._route_of(path), status, *seconds)
