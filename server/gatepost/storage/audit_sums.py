"""
Hourly sums of audit records, which the usage page reads instead of the records.

A store adds them in the transaction that adds the records. Each writer has sums of its own, so that
replicas do not wait for each other. They outlive the records that retention removes, and contain no
personal data.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from gatepost.storage.audit import Count, Segment
from gatepost.storage.audit_segments import HOUR_MS, counted

KEPT_MS = 31 * 24 * HOUR_MS
"""How long a sum is kept."""
SUMMED = ("call", "refusal", "token")
"""The kinds of records that are summed."""

SumKey = tuple[int, str, str, str, str]
"""An hour (milliseconds since the epoch), kind, tool, outcome and limit."""
Sums = Counter[SumKey]
"""The number of records of each key."""


def sums_of(segments: Iterable[Segment]) -> Sums:
    """Return the sums of these segments, each of which has records of one hour."""
    sums: Sums = Counter()
    for segment in segments:
        hour = segment.since - segment.since % HOUR_MS
        for sort, number in counted(segment):
            if sort[0] in SUMMED:
                sums[hour, *sort] += number
    return sums


def sliced(sums: Mapping[SumKey, int], slice_ms: int) -> list[Count]:
    """Return hourly sums as counts of longer slices, sorted."""
    by_slice: Sums = Counter()
    for (hour, *sort), number in sums.items():
        kind, tool, outcome, limit = sort
        by_slice[hour - hour % slice_ms, kind, tool, outcome, limit] += number
    return sorted_counts(by_slice)


def sorted_counts(sums: Mapping[SumKey, int]) -> list[Count]:
    """Return sums as a sorted list."""
    return [Count(*key[:4], sums[key], key[4]) for key in sorted(sums)]
