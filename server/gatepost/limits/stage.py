"""How often somebody may call and how many calls may run at once, before the tool runs."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import structlog

from gatepost.limits.levels import Levels, levels, rows_of
from gatepost.limits.tally import Kind, Place, Tally
from gatepost.limits.terms import ANY, Bound, Terms, bucket_of
from gatepost.stores.allowance import Slot, Spending
from gatepost.stores.api import Relay, StoreUnavailable
from gatepost.stores.bucket import Terms as Wanted
from gatepost.tools.api import Call, Failure, Offer, Outcome
from gatepost.tools.redaction import Guard
from gatepost.tools.runner import Next
from gatepost_authz.caller import TenantContext

log = structlog.get_logger("gatepost.limits")

EXCEEDED = "Rate limit exceeded. Please try again later."


class Limits:
    """
    Token buckets of the caller, its tenant and the tool, the places of tenant and tool, and a place
    in this process: all taken before anything that costs more than looking the tool up.

    Its caller is the principal, whatever client or token it uses: a second client must not double
    what somebody may do. Buckets and places are taken in one step, all or none; with a *relay*
    several processes count together, and while that does not answer each process counts for
    itself, since nobody is better off when calls stop because they cannot be counted. Last comes
    the process's own place, for which calls wait by turns.

    While a person decides, the call has no place; afterwards it takes its places whether there is
    room or not, and the next ones wait: a decision must not be lost to a limit. A call that another
    call's tool makes spends from every bucket, but has a place of its tool only: a tenant whose
    calls wait for each other would stand still.
    """

    def __init__(
        self, relay: Relay | None = None, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.tally = Tally()
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
        self._caller, self._tenant = terms.caller, terms.tenant
        self._tool = None if terms.tool == Bound() else terms.tool
        self._tools = terms.tools
        queue = self.tally.queue
        queue.most, queue.each, queue.within_s = most or ANY, each, within_s
        queue.let_in()

    async def __call__(self, call: Call, offer: Offer, arguments: Any, proceed: Next) -> Outcome:
        """See `Stage`."""
        seat = self._seat(call)
        if self.relay is None:
            denied = self.tally.take(seat.wanted, seat.places, self.monotonic())
            if denied is not None:
                return self._refused(call, denied[0], self._kind(seat, denied[1]))
        elif refusal := await self._shared(self.relay, call, seat):
            return refusal
        if not call.depth:
            queue = self.tally.queue
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

    def _seat(self, call: Call) -> "Seat":
        """What a call takes, none of which it has yet."""
        caller, tenant = call.caller, call.caller.tenant_id
        wanted: list[Wanted] = []
        places: list[Place] = []
        bound = self._caller
        if bound.rate:
            principal = (tenant, caller.issuer, caller.subject_kind, caller.subject)
            wanted.append((principal, bound.each_s, bound.room_s))
        bound = self._tenant
        if bound.rate:
            wanted.append((tenant, bound.each_s, bound.room_s))
        if not call.depth:
            places.append((tenant, bound.most))
        own = self._tools.get(call.name, self._tool) if call.kind == "tool" else None
        if own is not None:
            name = (tenant, call.name)
            if own.rate:
                wanted.append((name, own.each_s, own.room_s))
            if own.most != ANY:
                places.append((name, own.most))
        return Seat(self, tenant, wanted, places, own, not call.depth)

    async def _shared(self, relay: Relay, call: Call, seat: "Seat") -> Outcome | None:
        """Take it where all processes count; what was refused, if it was."""
        kinds = self._name(call, seat)
        try:
            denial = await relay.of(seat.tenant).spend_all(seat.spendings, seat.slots)
        except StoreUnavailable:
            log.warning("limits_counted_here", request_id=call.request_id)
            here = self.tally.take(seat.wanted, seat.places, self.monotonic())
            if here is not None:
                return self._refused(call, here[0], self._kind(seat, here[1]))
            relay.of(seat.tenant).hold(seat.slots)
            return None
        if denial is not None:
            return self._refused(call, denial.wait_s, kinds[denial.at])
        self.tally.hold(seat.places)
        return None

    def _name(self, call: Call, seat: "Seat") -> list[Kind]:
        """The same by the names that processes share; whose limit each of them is."""
        named: list[tuple[Kind, str, Bound, bool]] = [
            ("caller", bucket_of(call.caller), self._caller, False),
            ("tenant", "tenant", self._tenant, seat.queues),
        ]
        if seat.tool is not None:
            named.append(("tool", f"tool {call.name}", seat.tool, True))
        buckets = [one for one in named if one[2].rate]
        # Places without a bound are counted here only.
        places = [one for one in named if one[3] and one[2].most != ANY]
        seat.spendings = [Spending(name, of.rate, of.burst) for _, name, of, _ in buckets]
        seat.slots = [Slot(name, int(of.most)) for _, name, of, _ in places]
        return [one[0] for one in (*buckets, *places)]

    async def _queued(self, call: Call, seat: "Seat") -> Outcome | None:
        entered = False
        queue = self.tally.queue
        try:
            entered = await queue.enter(seat.tenant, call.caller.principal_key)
        finally:
            if not entered:
                self._give_back(seat)
        return None if entered else self._refused(call, queue.within_s, "server")

    def _kind(self, seat: "Seat", at: int) -> Kind:
        """Whose limit it is, counted through what `_seat` has just put together."""
        buckets: list[tuple[Kind, Bound]] = [("caller", self._caller), ("tenant", self._tenant)]
        places: list[Kind] = ["tenant"] if seat.queues else []
        if seat.tool is not None:
            buckets.append(("tool", seat.tool))
            places.append("tool")
        return [*(kind for kind, of in buckets if of.rate), *places][at]

    def _refused(self, call: Call, wait_s: float, by: Kind) -> Outcome:
        self.tally.refused(call.caller.tenant_id, by)
        wait = max(1, math.ceil(wait_s))
        return Outcome(failure=Failure("rate_limit", EXCEEDED, retry_after=wait, limit=by))

    @property
    def limits_nothing(self) -> bool:
        """Whether there is nothing that a call could be refused for."""
        terms = self.terms
        bounds = (terms.caller, terms.tenant, terms.tool, *terms.tools.values())
        return self.tally.queue.most == ANY and all(bound == Bound() for bound in bounds)

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
        self._give_back(seat)
        if seat.queues:
            queue = self.tally.queue
            queue.running -= 1
            if queue.waiting:
                queue.let_in()

    def come_back(self, seat: "Seat") -> None:
        """Take the same again, whether there is room or not."""
        self.tally.hold(seat.places)
        if self.relay is not None and seat.slots:
            self.relay.of(seat.tenant).hold(seat.slots)
        if seat.queues:
            self.tally.queue.running += 1

    def _give_back(self, seat: "Seat") -> None:
        self.tally.leave(seat.places)
        if self.relay is not None and seat.slots:
            self.relay.of(seat.tenant).leave(seat.slots)


class Seat(msgspec.Struct, gc=False):
    """What one call has taken, as long as it runs; the `Clock` that people's decisions hold."""

    limits: Limits
    tenant: str
    wanted: list[Wanted]
    places: list[Place]
    tool: Bound | None
    queues: bool
    """Whether it has a place in the process."""
    spendings: Sequence[Spending] = ()
    slots: Sequence[Slot] = ()
    """The same at the relay."""
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
