"""How often somebody may call and how many calls may run at once, before the tool runs."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import structlog

from gatepost.limits.account import Account, Key
from gatepost.limits.levels import Levels, levels
from gatepost.limits.queue import Queue
from gatepost.limits.tally import Tally
from gatepost.limits.terms import ANY, LINE, Bound, Kind, Terms, rows_of
from gatepost.stores.api import Relay, StoreUnavailable, TenantRelay
from gatepost.tools.api import Call, Failure, Offer, Outcome
from gatepost.tools.client import NOBODY
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
        self.queue, self._accounts = self.tally.queue, self.tally.accounts
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
        self._accounts.clear()
        queue = self.queue
        queue.most, queue.each, queue.within_s = most or ANY, each, within_s
        queue.let_in()

    async def __call__(self, call: Call, offer: Offer, arguments: Any, proceed: Next) -> Outcome:
        """See `Stage`."""
        caller = call.caller
        key = (
            caller.tenant_id,
            caller.issuer,
            caller.subject_kind,
            caller.subject,
            # Other names than those of tools can be made up without end.
            call.name if call.kind == "tool" else "",
            call.depth > 0,
        )
        account = self._accounts.get(key) or self._account(key)
        if account.relay is not None:
            if refusal := await self._shared(account.relay, call, account):
                return refusal
        elif not account.take(now := self.monotonic()):
            return refusal_by(*account.shortage(now))
        queue = account.queue
        if queue is not None:
            if queue.running < queue.most:
                queue.running += 1
            elif refusal := await self._queued(queue, call, account):
                return refusal
        seat = None
        if call.client is not NOBODY and isinstance(call.client, Guard):
            # Nobody else could let a person decide.
            seat = call.client.seat = Seat(account)
        try:
            return await proceed(call, offer, arguments)
        finally:
            if seat is None:
                account.leave()
            else:
                seat.end()

    def _account(self, key: Key) -> Account:
        return self.tally.account(key, self.terms, self.monotonic(), self.relay)

    async def _shared(self, relay: TenantRelay, call: Call, account: Account) -> Outcome | None:
        """Take it where all processes count; a refusal where there is too little."""
        try:
            denial = await relay.spend_all(account.spendings, account.slots)
        except StoreUnavailable:
            log.warning("limits_counted_here", request_id=call.request_id)
            now = self.monotonic()
            if not account.take(now):
                return refusal_by(*account.shortage(now))
            relay.hold(account.slots)
            return None
        if denial is not None:
            return refusal_by(account.kinds[denial.at], denial.wait_s)
        for place in account.places:
            place.taken += 1
        return None

    async def _queued(self, queue: Queue, call: Call, account: Account) -> Outcome | None:
        """Wait for a place in the process; a refusal where none comes."""
        let_in, relay = False, account.relay
        if relay is not None:
            relay.hold(LINE)
        try:
            let_in = await queue.enter(account.tenant, call.caller.principal_key)
        finally:
            if relay is not None:
                relay.leave(LINE)
            if not let_in:
                queue.running += 1  # as if it had come in, and leaves with all that it has
                account.leave()
        return None if let_in else refusal_by("server", queue.within_s)

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
        of it; takes nothing. Who has no limit is left out.
        """
        principals = [caller.principal_key for caller in callers]
        rows = rows_of(self.terms, tenant, tools, principals)
        return await levels(self.tally, self.relay, tenant, rows, now=self.monotonic())


def refusal_by(limit: Kind, wait_s: float) -> Outcome:
    """What a call answers that this limit has refused."""
    wait = max(1, math.ceil(wait_s))
    return Outcome(failure=Failure("rate_limit", EXCEEDED, retry_after=wait, limit=limit))


class Seat(msgspec.Struct, gc=False):
    """The places of one call, as long as it runs; the `Clock` that people's decisions hold."""

    account: Account
    holds: int = 0
    over: bool = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Have no place for the time of a block; of several at once the last one comes back."""
        self.holds += 1
        if self.holds == 1 and not self.over:
            self.account.leave()
        try:
            yield
        finally:
            self.holds -= 1
            if self.holds == 0 and not self.over:
                self.account.hold()

    def end(self) -> None:
        """The call is over."""
        self.over = True
        if not self.holds:
            self.account.leave()
