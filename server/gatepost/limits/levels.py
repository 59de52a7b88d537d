"""How far a tenant has used up what it may do, for whoever looks after it."""

from collections.abc import Sequence

import msgspec

from gatepost.limits.tally import Tally
from gatepost.limits.terms import ANY, LINE, Kind, Row
from gatepost.stores.allowance import Slot, Spending
from gatepost.stores.api import Relay, StoreUnavailable


class BucketLevel(msgspec.Struct, frozen=True):
    """A token bucket: calls a second, what it holds when it is full, and what is in it now."""

    kind: Kind
    name: str
    """The tool's name, the caller's subject, or nothing: the tenant's."""
    rate: float
    burst: float
    held: float


class PlaceLevel(msgspec.Struct, frozen=True):
    """Calls that run at once in all processes that count together, and how many may."""

    kind: Kind
    name: str
    most: int
    taken: int


class Levels(msgspec.Struct, frozen=True):
    """All of one tenant: of all processes, where they count together and answer."""

    buckets: tuple[BucketLevel, ...]
    places: tuple[PlaceLevel, ...]
    waiting: int
    """Calls of the tenant that wait for their process to have room."""
    shared: bool
    """Whether processes count together; else each has limits of its own."""
    together: bool
    """Whether that is what is told: who counts together answered, or there is nobody to ask."""


async def levels(
    tally: Tally, relay: Relay | None, tenant: str, rows: Sequence[Row], *, now: float
) -> Levels:
    """See `Limits.levels`."""
    buckets = [row for row in rows if row.bound.rate]
    places = [row for row in rows if row.bound.most != ANY]
    held = [
        tally.buckets.held(row.here, now, rate=row.bound.rate, burst=row.bound.burst)
        for row in buckets
    ]
    running = tally.running
    taken = [running.get(row.here, 0) for row in places]
    waiting = tally.queue.waiting_of(tenant)
    told = await _told(relay, tenant, buckets, places)
    if told is not None:
        held, others = told[: len(buckets)], told[len(buckets) :]
        # What this process has taken it may not have told yet.
        *taken, waiting = [
            max(int(one), own) for one, own in zip(others, [*taken, waiting], strict=True)
        ]
    return Levels(
        buckets=tuple(
            BucketLevel(row.kind, row.name, row.bound.rate, row.bound.burst, max(level, 0.0))
            for row, level in zip(buckets, held, strict=True)
        ),
        places=tuple(
            PlaceLevel(row.kind, row.name, int(row.bound.most), number)
            for row, number in zip(places, taken, strict=True)
        ),
        waiting=waiting,
        shared=relay is not None,
        together=relay is None or told is not None,
    )


async def _told(
    relay: Relay | None, tenant: str, buckets: Sequence[Row], places: Sequence[Row]
) -> list[float] | None:
    """What all processes know together, last how many calls wait; None where nobody answers."""
    if relay is None:
        return None
    spendings = [Spending(row.shared, row.bound.rate, row.bound.burst) for row in buckets]
    slots = [*(Slot(row.shared, 0) for row in places), *LINE]
    try:
        return await relay.of(tenant).levels(spendings, slots)
    except StoreUnavailable:
        return None
