"""
Make calls of session-era upstreams: send each once, and park it while a modern caller answers.
"""

import asyncio
import secrets
from functools import partial
from typing import Protocol

import msgspec

from gatepost.secrets.keyring import KeyRing
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.shared_store import SharedStore
from gatepost.tools.context.client import Capabilities, InputNeeded, MissingCapability
from gatepost.tools.offers.offer import CallContext, ToolFailure
from gatepost.upstreams.calls.call_states import (
    INTERNAL,
    PARKED_S,
    Answer,
    Concluded,
    Ended,
    ExchangeStep,
    InputRequested,
    LastStep,
    SessionCall,
)
from gatepost.upstreams.calls.other_replica import OtherReplicaExchange
from gatepost.upstreams.calls.parked import SERVER_STOPS, ParkedCall, ParkedCalls
from gatepost.upstreams.calls.parked_messages import Sealing
from gatepost.upstreams.calls.progress_and_logs import passed_on
from gatepost.upstreams.calls.round_state import ParkedState, UpstreamTarget, encoded
from gatepost.upstreams.calls.running import (
    NoSuchStep,
    OpenExchange,
    ReceiveNotification,
    RunningExchange,
)
from gatepost.upstreams.upstream_server import UpstreamServer

REJECTED = -1
"""The code with which clients say that their user refused."""
CLIENT_UNAVAILABLE = "The client cannot be asked now."


class Steps(Protocol):
    """The source of the steps of a call: this process, or the replica that holds it."""

    async def next_step(
        self, step: int, answer: Answer | None, listener: ReceiveNotification
    ) -> ExchangeStep:
        """Answer the request of a step and return the next; *listener* gets notifications."""


class SessionCalls:
    """Makes calls of session-era upstreams for callers of both eras."""

    def __init__(self, parked: ParkedCalls) -> None:
        self._parked = parked
        self._shared_store: SharedStore = parked.shared_store
        self._keyring: KeyRing = parked.keyring
        self._running: set[RunningExchange] = set()

    async def aclose(self) -> None:
        """Cancel all calls at their upstreams, the parked ones too."""
        await self._parked.aclose()
        await asyncio.gather(*(running.aclose(SERVER_STOPS) for running in tuple(self._running)))

    async def begin(
        self,
        ctx: CallContext,
        server: UpstreamServer,
        declared: Capabilities,
        target: UpstreamTarget,
        open_: OpenExchange,
        *,
        idempotency_digest: str | None,
    ) -> LastStep:
        """
        Send the call, and return its end; raises InputNeeded when it is parked.

        *idempotency_digest* names the caller's idempotency key: a call that is parked under it is
        not sent again.
        """
        if (
            idempotency_digest is not None
            and (parked_call := await self._parked_call(target, idempotency_digest)) is not None
        ):
            return await self.resume(ctx, server, parked_call)
        identity = secrets.token_urlsafe(24)
        loop = asyncio.get_running_loop()
        machine = SessionCall(server, declared, loop.time())
        running = RunningExchange(machine, open_, on_end=partial(self._note_end, identity))
        self._running.add(running)
        running.task.add_done_callback(lambda _: self._running.discard(running))
        first = ParkedState(target, self._parked.replica, identity, 0, {})
        is_parked = False
        try:
            return await self._exchange_rounds(ctx, server, running, first, idempotency_digest)
        except InputNeeded:
            is_parked = True  # it is parked
            raise
        finally:
            if not is_parked:
                running.cancel("The caller wants no answer any more")  # nothing if it has ended

    async def resume(
        self, ctx: CallContext, server: UpstreamServer, state: ParkedState
    ) -> LastStep:
        """Go on with a parked call, here or on the replica that holds it."""
        target = state.target
        if state.replica == self._parked.replica:
            running = self._parked.find(target.tenant, state.parked, target.call)
            if running is None:
                return Ended("gone")
            self._parked.extend(state.parked, ctx.caller.expires_at)
            try:
                return await self._exchange_rounds(ctx, server, running, state, None)
            except NoSuchStep:
                return Ended("gone")
            except asyncio.CancelledError:
                running.leave("The caller cancelled the call")
                raise
        remote = OtherReplicaExchange(
            self._shared_store,
            self._keyring,
            state,
            silent_s=self._parked.limits.silent_s,
            valid_until=ctx.caller.expires_at,
        )
        try:
            return await self._exchange_rounds(ctx, server, remote, state, None)
        except asyncio.CancelledError:
            await remote.cancel()
            raise

    async def _exchange_rounds(
        self,
        ctx: CallContext,
        server: UpstreamServer,
        steps: Steps,
        parked_state: ParkedState,
        idempotency_digest: str | None,
    ) -> LastStep:
        """Ask the caller what the upstream asks, until the call ends."""
        number, requests = parked_state.step, parked_state.requests
        while True:
            answer = None
            if requests:
                if parked_state.step == 0:
                    # If the caller's client accepts tasks, the call waits in a task. In a later
                    # round the answers are in the request, and a task would ask once more.
                    await ctx.detach()
                state = msgspec.structs.replace(parked_state, step=number, requests=requests)
                answer = await self._ask(ctx, server, steps, state, idempotency_digest)
            step = await steps.next_step(number, answer, partial(passed_on, ctx, server))
            if not isinstance(step, InputRequested):
                return step
            number, requests = number + 1, step.requests

    async def _ask(
        self,
        ctx: CallContext,
        server: UpstreamServer,
        steps: Steps,
        state: ParkedState,
        idempotency_digest: str | None,
    ) -> Answer:
        """Return the answers of the caller's client, or why there are none."""
        text = encoded(state)
        if text is None:
            return Answer(refusal="The requests for input are too large.", code=INTERNAL)
        try:
            responses = await ctx.client.request(state.requests, state=text)
        except InputNeeded:
            if isinstance(steps, RunningExchange) and not await self._park(
                ctx, server, steps, state, idempotency_digest
            ):
                return Answer(refusal=CLIENT_UNAVAILABLE, code=INTERNAL)
            raise
        except MissingCapability:
            return Answer(refusal="The client does not support this request.")
        except StoreUnavailable:
            # The call was sent. A 503 would make the caller's client send it again.
            return Answer(refusal=CLIENT_UNAVAILABLE, code=INTERNAL)
        except ToolFailure as refused:
            code = REJECTED if refused.failure.kind == "denied" else INTERNAL
            return Answer(refusal="The client gave no answer.", code=code)
        return Answer({key: dict(response) for key, response in responses.items()})

    async def _park(
        self,
        ctx: CallContext,
        server: UpstreamServer,
        running: RunningExchange,
        state: ParkedState,
        idempotency_digest: str | None,
    ) -> bool:
        running.unsubscribe()
        target = state.target
        call = ParkedCall(state.parked, ctx.caller, server, target.call, running)
        try:
            if not await self._parked.park(call):
                return False
            if idempotency_digest is not None:
                sealed = Sealing(self._keyring, target.tenant, idempotency_digest).seal(state)
                log = _call_log_name(idempotency_digest)
                await self._shared_store.for_tenant(target.tenant).append(
                    log, sealed, ttl_s=2 * PARKED_S, max_events=1
                )
        except StoreUnavailable:
            # The call was sent. An outage would make the caller's client send it again.
            return False
        return True

    async def _parked_call(
        self, target: UpstreamTarget, idempotency_digest: str
    ) -> ParkedState | None:
        """Return the call that is parked under the caller's idempotency key."""
        events = await self._shared_store.for_tenant(target.tenant).read(
            _call_log_name(idempotency_digest), 0
        )
        if not events:
            return None
        state = Sealing(self._keyring, target.tenant, idempotency_digest).open(
            events[-1].data, ParkedState
        )
        return state if state is not None and state.target.call == target.call else None

    def _note_end(self, identity: str, last: LastStep) -> None:
        size = len(msgspec.json.encode(last)) if isinstance(last, Concluded) else 256
        self._parked.note_end(identity, size)


def _call_log_name(idempotency_digest: str) -> str:
    return f"parked-key:{idempotency_digest}"
