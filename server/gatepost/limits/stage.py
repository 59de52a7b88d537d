"""How often somebody may call and how many calls may run at once, before the tool runs."""

import math
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import structlog

from gatepost.limits.levels import Levels, levels, rows_of
from gatepost.limits.tally import Kind, Tally
from gatepost.limits.terms import ANY, Bound, Shape, Terms, bucket_of, shapes_of
from gatepost.stores.allowance import PLACE_WAIT_S, Slot, Spending
from gatepost.stores.api import Relay, StoreUnavailable
from gatepost.tools.api import Call, Failure, Offer, Outcome
from gatepost.tools.redaction import Guard
from gatepost.tools.runner import Next
from gatepost_authz.caller import TenantContext

log = structlog.get_logger("gatepost.limits")

KINDS: tuple[Kind, ...] = ("caller", "tenant", "tool")
EXCEEDED = "Rate limit exceeded. Please try again later."


class Limits:
    """
    Token buckets of the caller, its tenant and the tool, the places of tenant and tool, and a place
    in this process: all taken before anything that costs more than looking the tool up.

    Its caller is the principal, whatever client or token it uses: a second client must not double
    what somebody may do. Buckets and places are taken in one step, all or none. With a *relay*
    several processes count together; a process that is alone needs none, as the way through it
    costs more than counting. While it does not answer each process counts for itself, since nobody
    is better off when calls stop because they cannot be counted. Last comes the process's own
    place, for which calls wait by turns.

    While a person decides, the call has no place; afterwards it takes its places whether there is
    room or not, and the next ones wait: a decision must not be lost to a limit. A call that another
    call's tool makes spends from every bucket, but has a place of its tool only: a tenant whose
    calls wait for each other would stand still.
    """

    def __init__(
        self, relay: Relay | None = None, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.tally = Tally()
        self.buckets, self.running, self.queue = (
            self.tally.buckets,
            self.tally.running,
            self.tally.queue,
        )
        self.relay = relay
        self.monotonic = monotonic
        self.apply(Terms())

    def apply(self, terms: Terms, *, most: int = 0, each: int = 100, within_s: float = 5.0) -> None:
        """
        Count by these terms from now on; what runs keeps its places.

        In this process *most* calls run at once (0: any number), *each* of a tenant's may wait for
        that, for *within_s* seconds.
        """
        self.terms = terms
        self._shapes = {name: shapes_of(terms, bound) for name, bound in terms.tools.items()}
        self._usual, self._other = shapes_of(terms, terms.tool), shapes_of(terms, Bound())
        queue = self.queue
        queue.most, queue.each, queue.within_s = most or ANY, each, within_s
        queue.let_in()

    async def __call__(self, call: Call, offer: Offer, arguments: Any, proceed: Next) -> Outcome:
        """See `Stage`."""
        shapes = self._shapes.get(call.name, self._usual) if call.kind == "tool" else self._other
        shape = shapes[1 if call.depth else 0]
        if self.relay is None:
            seat = self._enter(call, shape)
        else:
            seat = await self._shared(self.relay, call, shape)
        if isinstance(seat, Outcome):
            return seat
        if seat.queues:
            queue = self.queue
            if queue.running < queue.most:
                queue.running += 1
            elif refusal := await self._queued(call, seat):
                return refusal
        if isinstance(call.client, Guard):
            call.client.seat = seat
        try:
            return await proceed(call, offer, arguments)
        finally:
            seat.over = True
            if not seat.holds:
                self.leave(seat)

    def _enter(self, call: Call, shape: Shape) -> "Seat | Outcome":
        """Take it, all or nothing, as this process counts; a refusal where there is too little."""
        caller = call.caller
        tenant, running = caller.tenant_id, self.running
        principal = (tenant, caller.issuer, caller.subject_kind, caller.subject)
        if shape.usual is not None:
            # On the way of nearly every call: nothing is made that is not kept.
            each_s, room_s, most = shape.usual
            here = running.get(tenant, 0)
            if here < most and not self.buckets.take(principal, each_s, room_s, self.monotonic()):
                running[tenant] = here + 1
                return Seat(self, tenant, (tenant,), True)
        names: tuple[Hashable, ...] = (principal, tenant, (tenant, call.name))
        places: list[Hashable] = []
        full = -1
        for whose, most in shape.places:
            name = names[whose]
            places.append(name)
            if running.get(name, 0) >= most:
                full = whose
        if shape.buckets:
            wanted: list[tuple[Hashable, float, float]] = []
            for whose, each_s, room_s in shape.buckets:  # a comprehension would be one more call
                wanted.append((names[whose], each_s, room_s))
            wait, at = self.buckets.spend_all(wanted, self.monotonic(), take=full < 0)
            if wait > PLACE_WAIT_S or (wait and full < 0):
                return self._refused(call, wait, KINDS[shape.buckets[at][0]])
        if full >= 0:
            return self._refused(call, PLACE_WAIT_S, KINDS[full])
        for name in places:
            running[name] = running.get(name, 0) + 1
        return Seat(self, tenant, places, not call.depth)

    async def _shared(self, relay: Relay, call: Call, shape: Shape) -> "Seat | Outcome":
        """The same where all processes count."""
        tenant = call.caller.tenant_id
        names = (bucket_of(call.caller), "tenant", f"tool {call.name}")
        spendings = [Spending(names[whose], rate, burst) for whose, rate, burst in shape.rates]
        # Places without a bound are counted here only.
        bounded = [(whose, int(most)) for whose, most in shape.places if most != ANY]
        slots = [Slot(names[whose], most) for whose, most in bounded]
        try:
            denial = await relay.of(tenant).spend_all(spendings, slots)
        except StoreUnavailable:
            log.warning("limits_counted_here", request_id=call.request_id)
            seat = self._enter(call, shape)
            if isinstance(seat, Outcome):
                return seat
            relay.of(tenant).hold(slots)
            seat.slots = slots
            return seat
        if denial is not None:
            at = denial.at
            whose = (shape.buckets[at] if at < len(spendings) else bounded[at - len(spendings)])[0]
            return self._refused(call, denial.wait_s, KINDS[whose])
        here: tuple[Hashable, ...] = ("", tenant, (tenant, call.name))
        places = [here[whose] for whose, _ in shape.places]
        self.tally.hold(places)
        return Seat(self, tenant, places, not call.depth, slots)

    async def _queued(self, call: Call, seat: "Seat") -> Outcome | None:
        queue = self.queue
        seat.queues = False
        try:
            seat.queues = await queue.enter(seat.tenant, call.caller.principal_key)
        finally:
            if not seat.queues:
                self.leave(seat)
        return None if seat.queues else self._refused(call, queue.within_s, "server")

    def _refused(self, call: Call, wait_s: float, by: Kind) -> Outcome:
        self.tally.refused(call.caller.tenant_id, by)
        wait = max(1, math.ceil(wait_s))
        return Outcome(failure=Failure("rate_limit", EXCEEDED, retry_after=wait, limit=by))

    @property
    def limits_nothing(self) -> bool:
        """Whether there is nothing that a call could be refused for."""
        terms = self.terms
        bounds = (terms.caller, terms.tenant, terms.tool, *terms.tools.values())
        return self.queue.most == ANY and all(bound == Bound() for bound in bounds)

    async def levels(
        self, tenant: str, *, tools: Sequence[str] = (), callers: Sequence[TenantContext] = ()
    ) -> Levels:
        """
        What *tenant* has used up, by its own limits, those of these *tools*, and of these *callers*
        of it; takes nothing. Tools without a limit are left out.
        """
        rows = rows_of(self.terms, tenant, tools, callers)
        return await levels(self.tally, self.relay, tenant, rows, now=self.monotonic())

    def leave(self, seat: "Seat") -> None:
        """Give back all that a call has a place of."""
        running = self.running
        for place in seat.places:
            left = running[place] - 1
            if left:
                running[place] = left
            else:
                del running[place]
        if seat.slots and self.relay is not None:
            self.relay.of(seat.tenant).leave(seat.slots)
        if seat.queues:
            queue = self.queue
            queue.running -= 1
            if queue.waiting:
                queue.let_in()

    def come_back(self, seat: "Seat") -> None:
        """Take the same again, whether there is room or not."""
        self.tally.hold(seat.places)
        if seat.slots and self.relay is not None:
            self.relay.of(seat.tenant).hold(seat.slots)
        if seat.queues:
            self.queue.running += 1


class Seat(msgspec.Struct, gc=False):
    """What one call has taken, as long as it runs; the `Clock` that people's decisions hold."""

    limits: Limits
    tenant: str
    places: Sequence[Hashable]
    queues: bool
    """Whether it has a place in the process."""
    slots: Sequence[Slot] = ()
    """Its places at the relay."""
    holds: int = 0
    over: bool = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Have no place for the time of a block; of several at once the last one comes back."""
        self.holds += 1
        if self.holds == 1 and not self.over:
            self.limits.leave(self)
        try:
            yield
        finally:
            self.holds -= 1
            if self.holds == 0 and not self.over:
                self.limits.come_back(self)
