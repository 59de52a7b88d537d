"""How far a tenant has used up what it may do, for whoever looks after it."""

from collections.abc import Mapping, Sequence

import msgspec

from gatepost.limits.tally import Tally
from gatepost.limits.terms import ANY, Kind, Row
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
    """Calls that run at once, here and in all processes together; ``most`` None: any number."""

    kind: Kind
    name: str
    most: int | None
    here: int
    everywhere: int


class Levels(msgspec.Struct, frozen=True):
    """All of one tenant, and how full this process is."""

    buckets: tuple[BucketLevel, ...]
    places: tuple[PlaceLevel, ...]
    waiting: int
    """Calls of the tenant that wait here for their turn."""
    refused: Mapping[Kind, int]
    """Refusals of this process since its start, by the limit that refused."""
    running: int
    """Calls of all tenants that run in this process."""
    most: int | None
    together: bool
    """Whether all processes were asked; else what is told of them is this one's."""


async def levels(
    tally: Tally, relay: Relay | None, tenant: str, rows: Sequence[Row], *, now: float
) -> Levels:
    """See `Limits.levels`."""
    buckets = [row for row in rows if row.bound.rate]
    places = [row for row in rows if row.kind == "tenant" or row.bound.most != ANY]
    held = [
        tally.buckets.held(row.here, now, rate=row.bound.rate, burst=row.bound.burst)
        for row in buckets
    ]
    running = tally.running
    here = [running.get(row.here, 0) for row in places]
    everywhere = here
    told = await _told(relay, tenant, buckets, places)
    if told is not None:
        held = told[: len(buckets)]
        # A place without a bound is counted here only.
        everywhere = [
            max(int(one), own) for one, own in zip(told[len(buckets) :], here, strict=True)
        ]
    queue = tally.queue
    return Levels(
        buckets=tuple(
            BucketLevel(row.kind, row.name, row.bound.rate, row.bound.burst, max(level, 0.0))
            for row, level in zip(buckets, held, strict=True)
        ),
        places=tuple(
            PlaceLevel(row.kind, row.name, _number(row.bound.most), own, together)
            for row, own, together in zip(places, here, everywhere, strict=True)
        ),
        waiting=queue.waiting_of(tenant),
        refused=tally.refusals(tenant),
        running=queue.running,
        most=_number(queue.most),
        together=relay is None or told is not None,
    )


async def _told(
    relay: Relay | None, tenant: str, buckets: Sequence[Row], places: Sequence[Row]
) -> list[float] | None:
    """What all processes know together; None where nobody answers that."""
    if relay is None:
        return None
    spendings = [Spending(row.shared, row.bound.rate, row.bound.burst) for row in buckets]
    try:
        return await relay.of(tenant).levels(spendings, [Slot(row.shared, 0) for row in places])
    except StoreUnavailable:
        return None


def _number(most: float) -> int | None:
    return None if most == ANY else int(most)
