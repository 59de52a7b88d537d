"""One process's interest in one retry key: it runs the call, or waits for whoever runs it."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from gatepost.guard.ending import (
    NOTHING_DONE,
    OTHER_ARGUMENTS,
    STOPPED,
    UNKNOWN,
    Ending,
    keep,
    keep_error,
    replay,
)
from gatepost.stores.api import Claim, Claims, StoreUnavailable, TenantRelay
from gatepost.tools.api import Call, CallContext, FailureKind, Outcome, Tool
from gatepost.tools.attend import HUNG_UP
from gatepost.tools.client import InputNeeded, MissingCapability, ProtocolError, Unaccepted
from gatepost.tools.fit import UNENCODABLE, fit
from gatepost.tools.redaction import Guard
from gatepost.tools.runner import Next, outcome_of
from gatepost_authz.errors import AuthError

log = structlog.get_logger("gatepost.once")

# Renewed twice before it is over: one renewal may fail.
LEASE_S = 15.0
RENEW_S = 5.0
# A wake-up may be lost; whoever waits looks for itself this often.
POLL_S = 1.0
# What happened must be kept although the database is away: tried again after so many seconds.
BACKOFF_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)

# These say that nothing was done and that the same call may succeed later; kept, they would answer
# every retry for a day.
INVITING: frozenset[FailureKind] = frozenset(
    {"rate_limit", "upstream_unavailable", "approval_pending"}
)
# A tool raises these to be called again: with answers, by an abler client, with more permissions;
# the last comes from before the tool.
NOT_AN_OUTCOME = (InputNeeded, MissingCapability, AuthError, Unaccepted)


class Work(msgspec.Struct, frozen=True):
    """What is to be done once."""

    call: Call
    tool: Tool
    arguments: Any
    proceed: Next
    repeatable: bool
    """The tool may run again where nobody knows how it ended."""
    limit_s: float
    max_result_bytes: int
    guard: Guard
    """What is kept has no secrets in it, whoever reads the store."""


class Terms(msgspec.Struct, frozen=True):
    """The claim that the work needs, and how long its ending counts, in seconds."""

    key: bytes
    digest: bytes
    holder: str
    running_s: float
    kept_s: float
    unknown_s: float | None
    """How long after the lease an unknown ending stands in the way; None: as long as the claim."""


class Run:
    """
    Begins at once, in a task of its own: it belongs to its key, and whoever called may leave.

    The claim is durable before the tool runs, and so is the ending before anybody hears of it.
    """

    def __init__(
        self,
        work: Work,
        terms: Terms,
        *,
        claims: Claims,
        relay: TenantRelay,
        clock: Callable[[], float],
        ended: Callable[[], object],
    ) -> None:
        self._work, self._terms = work, terms
        self.caller = work.call.caller
        self._claims, self._relay, self._clock, self._ended = claims, relay, clock, ended
        self._topic = f"once:{terms.key.hex()}"
        loop = asyncio.get_running_loop()
        self._done: asyncio.Future[Ending] = loop.create_future()
        self._stopped: asyncio.Future[None] = loop.create_future()
        self._woken: asyncio.Future[None] = loop.create_future()
        self._callers = 0
        self.leads = False
        """Whether the work was done here, and not elsewhere or before."""
        self._invoked = False
        self.task = asyncio.create_task(self._go())
        self.task.add_done_callback(self._over)

    async def wait(self, until: float, *, own: bool) -> Ending | None:
        """
        Wait for the ending, until that time of the loop; None when it is still not there.

        Whose *own* work runs here waits as long as it runs: a person may have to decide first.
        """
        loop = asyncio.get_running_loop()
        self._callers += 1
        wanted = True
        try:
            while not self._done.done():
                left = None if own and self.leads else until - loop.time()
                if left is not None and left <= 0:
                    return None
                await asyncio.wait({self._done}, timeout=left)
            return self._done.result()
        except asyncio.CancelledError as cancelled:
            # A client with a retry key whose connection broke comes back for the answer; one that
            # takes its call back does not (T-11, CX-03).
            wanted = HUNG_UP in cancelled.args
            raise
        finally:
            self._callers -= 1
            if not self._callers and not (wanted and self.leads):
                self.stop()

    def stop(self) -> None:
        """Nobody wants the ending: stop the tool, or the waiting."""
        if not self._stopped.done():
            self._stopped.set_result(None)

    async def _go(self) -> None:
        claim = self._claim()
        held = await self._claims.begin(claim, now=self._clock())
        if held is None or await self._follow(held):
            await self._lead()

    def _over(self, task: asyncio.Task[None]) -> None:
        """Nobody may be left waiting, whatever the stores did."""
        error = None if task.cancelled() else task.exception()
        self._resolve(NOTHING_DONE if error is None else Ending(error=error))

    def _resolve(self, ending: Ending) -> None:
        if not self._done.done():
            self._done.set_result(ending)
            self._ended()

    def _claim(self) -> Claim:
        now, terms = self._clock(), self._terms
        return Claim(
            key=terms.key,
            digest=terms.digest,
            holder=terms.holder,
            leased_until=now + LEASE_S,
            expires_at=now + terms.running_s,
        )

    # Somebody else holds the claim.

    async def _follow(self, held: Claim) -> bool:
        """Wait for the ending elsewhere; True when the claim has become ours instead."""
        if self._settled(held):
            return False
        following = None
        try:
            following = await self._relay.follow(self._topic, self._wake)
        except StoreUnavailable:
            log.warning("wake_ups_unavailable")  # polling does without
        try:
            while (found := await self._claims.get(self._terms.key)) is not None:
                if self._settled(found):
                    return False
                if found.leased_until <= self._clock():
                    if not self._may_take_over(found):
                        self._resolve(UNKNOWN)
                        return False
                    if await self._claims.take_over(self._claim(), was=found):
                        return True
                    continue
                if self._stopped.done():
                    return False
                await self._pause()
        finally:
            if following is not None:
                await following.aclose()
        # Given up: nothing was done. Whoever waits tries for itself.
        return False

    def _settled(self, held: Claim) -> bool:
        if held.expires_at <= self._clock():
            self._resolve(NOTHING_DONE)
        elif held.digest != self._terms.digest:
            self._resolve(OTHER_ARGUMENTS)
        elif held.outcome is not None:
            self._resolve(replay(held.outcome))
        return self._done.done()

    def _may_take_over(self, held: Claim) -> bool:
        after = self._terms.unknown_s
        counts_no_more = after is not None and held.leased_until + after <= self._clock()
        return self._work.repeatable or counts_no_more

    def _wake(self, message: bytes) -> None:
        if not self._woken.done():
            self._woken.set_result(None)

    async def _pause(self) -> None:
        either = {self._woken, self._stopped}
        await asyncio.wait(either, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
        if self._woken.done():
            self._woken = asyncio.get_running_loop().create_future()

    # The claim is ours.

    async def _lead(self) -> None:
        self.leads = True
        if self._stopped.done():
            await self._give_up(NOTHING_DONE)
            return
        doing = asyncio.create_task(self._do())
        try:
            await self._attend(doing)
        finally:
            doing.cancel()  # nothing runs on whose ending nobody would keep
        ending, kept = self._judge(doing)
        if kept is None:
            await self._give_up(ending)
        else:
            await self._finish(ending, kept)

    async def _attend(self, doing: "asyncio.Task[Outcome]") -> None:
        """Renew the lease while the work goes on; stop it when nobody wants it any more."""
        waited: set[asyncio.Future[Any]] = {doing, self._stopped}
        while not doing.done():
            await asyncio.wait(waited, timeout=RENEW_S, return_when=asyncio.FIRST_COMPLETED)
            if self._stopped.done() and self._stopped in waited:
                waited = {doing}
                doing.cancel()
            elif not doing.done():
                await self._renew()

    async def _do(self) -> Outcome:
        work, invoke = self._work, self._work.tool.invoke

        async def invoked(ctx: CallContext, arguments: Any) -> Outcome:
            self._invoked = True
            try:
                return await invoke(ctx, arguments)
            except (SystemExit, KeyboardInterrupt) as wish:
                # Out of a task it would end the loop, and with it the server.
                raise RuntimeError("the tool asked the process to exit") from wish

        tool = msgspec.structs.replace(work.tool, invoke=invoked)
        return await work.guard.told(await work.proceed(work.call, tool, work.arguments))

    def _judge(self, doing: "asyncio.Task[Outcome]") -> tuple[Ending, bytes | None]:
        """How the work ended, and what of it is kept: only what an invoked tool answered."""
        work = self._work
        if doing.cancelled() and self._stopped.done():
            if not self._invoked or work.repeatable:
                return NOTHING_DONE, None
            return replay(STOPPED), STOPPED
        error = asyncio.CancelledError() if doing.cancelled() else doing.exception()
        if not self._invoked or isinstance(error, NOT_AN_OUTCOME):
            outcome = doing.result() if error is None else None
            return Ending(outcome, error, shared=False), None
        if isinstance(error, StoreUnavailable):
            return Ending(error=error), None if work.repeatable else STOPPED
        try:
            if isinstance(error, ProtocolError):
                told = work.guard.protocol_error(error)
                return Ending(error=told), keep_error(told)
            return self._judge_outcome(doing.result() if error is None else self._failed(error))
        except UNENCODABLE as bad:
            return self._judge_outcome(self._failed(bad))

    def _judge_outcome(self, outcome: Outcome) -> tuple[Ending, bytes | None]:
        if outcome.failure is not None:
            outcome = self._work.guard.outcome(outcome)
        if outcome.failure is not None and outcome.failure.kind in INVITING:
            return Ending(outcome), None
        fitted = fit(outcome, self._work.tool, self._work.max_result_bytes)
        return Ending(fitted), keep(fitted)

    def _failed(self, error: BaseException) -> Outcome:
        return outcome_of(error, self._work.call, self._work.limit_s)

    async def _renew(self) -> None:
        try:
            until = self._clock() + LEASE_S
            if await self._claims.renew(self._terms.key, self._terms.holder, until):
                return
            held = await self._claims.get(self._terms.key)
            if held is not None and held.holder != self._terms.holder:
                # The database was out of our reach for so long that somebody else could take the
                # key and begin the same work.
                self.stop()
        except StoreUnavailable:
            log.warning("lease_not_renewed", request_id=self._work.call.request_id)

    async def _finish(self, ending: Ending, kept: bytes) -> None:
        expires_at = self._clock() + self._terms.kept_s
        terms = self._terms
        await self._keep_trying(
            lambda: self._claims.finish(terms.key, terms.holder, kept, expires_at), ending
        )

    async def _give_up(self, ending: Ending) -> None:
        terms = self._terms
        await self._keep_trying(lambda: self._claims.release(terms.key, terms.holder), ending)

    async def _keep_trying(self, change: Callable[[], Any], ending: Ending) -> None:
        """Change the claim, then tell everybody; without the database, tell who is here first."""
        for pause_s in (*BACKOFF_S, None):
            try:
                await change()
                break
            except StoreUnavailable:
                # What is done is done: to answer 503 now would not undo it.
                self._resolve(ending)
                log.warning("ending_not_kept", request_id=self._work.call.request_id)
            if pause_s is not None:
                await asyncio.sleep(pause_s)
        self._resolve(ending)
        try:
            await self._relay.publish(self._topic, b"")
        except StoreUnavailable:
            log.warning("wake_up_not_sent")
