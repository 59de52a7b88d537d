"""
Park the calls that wait in this process for a caller's answers, and let other replicas reach them.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Collection
from contextvars import Context

import msgspec

from gatepost.secrets.keyring import KeyRing
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.shared_store import SharedStore, Subscription, TenantSharedStore
from gatepost.tools.calls.runner import GRACE_S
from gatepost.upstreams.calls.call_states import PARKED_S, Ended, ExchangeStep
from gatepost.upstreams.calls.parked_messages import (
    KEEP_ALIVE,
    KEEP_ALIVE_S,
    NOTE_S,
    READY,
    SILENT_S,
    ParkedRequest,
    Sealing,
    replica_topic,
    reply_topic,
    request_note,
    step_note,
)
from gatepost.upstreams.calls.running import NoSuchStep, RunningExchange
from gatepost.upstreams.connection import UpstreamNotification
from gatepost.upstreams.upstream_server import UpstreamServer
from gatepost_authz.caller import TenantContext

log = logging.getLogger(__name__)

ENDED_GONE = Ended("gone")
SERVER_STOPS = "The server stops"
LOOK_S = 3_600.0
"""The longest time between two looks at whether a call's token has expired."""


class ParkingLimits(msgspec.Struct, frozen=True):
    """How many calls may be parked at once."""

    caller: int = 8
    tenant: int = 64
    process: int = 512
    kept_s: float = PARKED_S
    """How long the last step of a call is kept for a caller that repeats its round."""
    silent_s: float = SILENT_S
    """The time without a message of a replica after which its parked calls count as lost."""
    kept_bytes: int = 64_000_000
    """The size of all last steps that are kept; beyond it the oldest are dropped."""


DEFAULT_PARKING = ParkingLimits()


class ParkedCall(msgspec.Struct, eq=False):
    """One call that is parked here, or has ended and is kept for a while."""

    id: str
    caller: TenantContext
    server: UpstreamServer
    call: str
    """The digest of caller and arguments that a request for it must repeat."""
    running: RunningExchange
    valid_until: float = 0.0
    """The expiry of the newest token with which the call was made or continued."""
    timer: asyncio.TimerHandle | None = None
    ended_at: float | None = None
    size: int = 0


class ParkedCalls:
    """
    The parked calls of this process, which is one replica.

    A parked call holds its exchange with the upstream. Any replica can send the caller's answers
    here over the shared store: the message names the call by an id that cannot be guessed, and it
    is encrypted for the tenant and this replica.
    """

    def __init__(
        self,
        shared_store: SharedStore,
        keyring: KeyRing,
        *,
        limits: ParkingLimits = DEFAULT_PARKING,
        clock: Callable[[], float],
    ) -> None:
        self.replica = secrets.token_urlsafe(12)
        self.shared_store, self.keyring = shared_store, keyring
        self.limits, self._clock = limits, clock
        self._calls: dict[str, ParkedCall] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._subscribing = asyncio.Lock()
        self._serving: dict[str, asyncio.Task[None]] = {}
        self._closed = False

    def __len__(self) -> int:
        return sum(parked.ended_at is None for parked in self._calls.values())

    def waiting(self) -> int:
        """Return the number of requests in this process that wait for a parked call."""
        return sum(parked.running.waiting for parked in self._calls.values())

    async def park(self, call: ParkedCall) -> bool:
        """
        Keep a call after its request has ended; return False if there is no room.

        Raises StoreUnavailable if other replicas could not reach it.
        """
        self._sweep()
        if call.id not in self._calls:
            if self._closed or not self._has_room(call):
                return False
            await self._subscribe(call.caller.tenant_id)
            self._calls[call.id] = call
        self.extend(call.id, call.caller.expires_at)
        return True

    def extend(self, identity: str, valid_until: float) -> None:
        """Note when the token of a call's caller expires; the latest time counts."""
        call = self._calls.get(identity)
        if call is not None and call.ended_at is None:
            call.valid_until = max(call.valid_until, valid_until)
            self._time(call)

    def find(self, tenant: str, identity: str, call: str) -> RunningExchange | None:
        """Return the exchange of a parked call; None if it is unknown or another caller's."""
        self._sweep()
        parked = self._calls.get(identity)
        if parked is None or parked.caller.tenant_id != tenant or parked.call != call:
            return None
        return parked.running

    def note_end(self, identity: str, size: int) -> None:
        """Note that a call has ended, with a last step of this size."""
        if (call := self._calls.get(identity)) is not None:
            call.ended_at, call.size = self._clock(), size
            if call.timer is not None:
                call.timer.cancel()

    def end(self, predicate: Callable[[TenantContext], bool]) -> None:
        """Cancel the parked calls of these callers, whose access has ended."""
        for parked in self._calls.values():
            if predicate(parked.caller):
                parked.running.cancel("The caller may not call any more")

    def servers(self, tenant: str) -> set[str]:
        """Return the ids of a tenant's servers that have parked calls here."""
        return {
            parked.server.id
            for parked in self._calls.values()
            if parked.ended_at is None and parked.caller.tenant_id == tenant
        }

    def end_removed(self, tenant: str, active: Collection[str]) -> None:
        """Cancel the parked calls of a tenant's servers that are not among the *active* ones."""
        for parked in self._calls.values():
            if parked.caller.tenant_id == tenant and parked.server.id not in active:
                parked.running.cancel("The server was removed or disabled")

    def _time(self, call: ParkedCall) -> None:
        """End a call when its caller's token has expired, as a running one ends (`Runner`)."""
        if call.timer is not None:
            call.timer.cancel()
        left_s = call.valid_until + GRACE_S - self._clock()
        if left_s <= 0:
            call.running.cancel("The caller's token has expired")
            return
        loop = asyncio.get_running_loop()
        again_s = min(left_s, LOOK_S)
        call.timer = loop.call_later(again_s, self._time, call, context=Context())

    async def aclose(self) -> None:
        """Cancel all parked calls: their callers are told that the outcome is unknown."""
        self._closed = True
        running = [parked.running for parked in self._calls.values() if not parked.running.over]
        for parked in self._calls.values():
            if parked.timer is not None:
                parked.timer.cancel()
        self._calls.clear()
        await asyncio.gather(*(exchange.aclose(SERVER_STOPS) for exchange in running))
        if serving := tuple(self._serving.values()):
            for task in serving:
                task.cancel()
            await asyncio.wait(serving)
        for subscription in self._subscriptions.values():
            subscription.end()
        self._subscriptions.clear()

    def _has_room(self, call: ParkedCall) -> bool:
        waiting = [parked for parked in self._calls.values() if parked.ended_at is None]
        tenant = [parked for parked in waiting if parked.caller.tenant_id == call.caller.tenant_id]
        caller = [
            parked for parked in tenant if parked.caller.principal_key == call.caller.principal_key
        ]
        # Each holds a request at its server, and these must stay available to others.
        server = [parked for parked in tenant if parked.server.id == call.server.id]
        limits = self.limits
        return (
            len(waiting) < limits.process
            and len(tenant) < limits.tenant
            and len(caller) < limits.caller
            and len(server) < max(call.server.concurrency // 2, 1)
        )

    def _sweep(self) -> None:
        now, limits = self._clock(), self.limits
        ended_calls = [parked for parked in self._calls.values() if parked.ended_at is not None]
        size = sum(parked.size for parked in ended_calls)
        for parked in sorted(ended_calls, key=lambda parked: parked.ended_at or 0.0):
            if now - (parked.ended_at or 0.0) > limits.kept_s or size > limits.kept_bytes:
                size -= parked.size
                del self._calls[parked.id]

    async def _subscribe(self, tenant: str) -> None:
        async with self._subscribing:
            if tenant not in self._subscriptions:
                topic = replica_topic(self.replica)
                self._subscriptions[tenant] = await self.shared_store.for_tenant(tenant).follow(
                    topic, lambda message: self._receive(tenant, message)
                )

    def _receive(self, tenant: str, message: bytes) -> None:
        if self._closed:
            return
        reply = message.decode(errors="replace")
        if reply in self._serving:
            return  # the request was repeated because its first message was late
        task = self._serving[reply] = asyncio.create_task(self._serve(tenant, reply))
        task.add_done_callback(lambda _: self._serving.pop(reply, None))

    async def _serve(self, tenant: str, reply: str) -> None:
        """Answer the request of another replica."""
        shared_store, sealing = (
            self.shared_store.for_tenant(tenant),
            Sealing(self.keyring, tenant, reply),
        )
        try:
            note = await shared_store.take(request_note(reply))
            request = None if note is None else sealing.open(note, ParkedRequest)
            if request is None:
                return  # another message of the same request, or one that is not ours
            running = self.find(tenant, request.parked, request.call)
            if request.cancels:
                await self._give_up(request.cancels, running)
                return
            if running is not None:
                self.extend(request.parked, request.valid_until)
            step = await self._next(shared_store, reply, running, request, sealing)
            await shared_store.put(step_note(reply), sealing.seal(step), ttl_s=NOTE_S)
            await shared_store.publish(reply_topic(reply), READY)
        except StoreUnavailable:
            # The other replica gets no further message, and its caller repeats the round.
            log.warning("parked_call_not_answered")

    async def _give_up(self, reply: str, running: RunningExchange | None) -> None:
        serving = self._serving.get(reply)
        if serving is not None:
            serving.cancel()
            await asyncio.wait({serving})
        if running is not None:
            running.leave("The caller cancelled the call")

    async def _next(
        self,
        shared_store: TenantSharedStore,
        reply: str,
        running: RunningExchange | None,
        request: ParkedRequest,
        sealing: Sealing,
    ) -> ExchangeStep:
        if running is None:
            return ENDED_GONE
        publisher = _StepPublisher(shared_store, sealing, reply)
        waiting = asyncio.create_task(running.next_step(request.step, request.answer, publisher))
        try:
            while not waiting.done():
                await shared_store.publish(reply_topic(reply), KEEP_ALIVE)
                await asyncio.wait({waiting}, timeout=KEEP_ALIVE_S)
            return waiting.result()
        except NoSuchStep:
            return ENDED_GONE
        finally:
            waiting.cancel()
            await asyncio.wait({waiting})


class _StepPublisher:
    """Sends a call's notifications to the replica that has the caller's request."""

    def __init__(self, shared_store: TenantSharedStore, sealing: Sealing, reply: str) -> None:
        self._shared_store, self._sealing, self._topic = shared_store, sealing, reply_topic(reply)

    async def __call__(self, notification: UpstreamNotification) -> None:
        """Send one notification; raises StoreUnavailable."""
        await self._shared_store.publish(self._topic, self._sealing.seal(notification))
