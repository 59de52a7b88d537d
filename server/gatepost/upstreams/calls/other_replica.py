"""Reach a parked call on the replica that holds it."""

import asyncio
import secrets
from collections import deque
from contextlib import suppress

from gatepost.secrets.keyring import KeyRing
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.shared_store import DeliverMessage, SharedStore, Subscription, WakeUps
from gatepost.upstreams.calls.call_states import Answer, Ended, ExchangeStep
from gatepost.upstreams.calls.parked_messages import (
    KEEP_ALIVE,
    KEEP_ALIVE_S,
    NOTE_S,
    READY,
    ParkedRequest,
    Sealing,
    replica_topic,
    reply_topic,
    request_note,
    step_note,
)
from gatepost.upstreams.calls.round_state import ParkedState
from gatepost.upstreams.calls.running import ReceiveNotification
from gatepost.upstreams.connection import UpstreamNotification

MAX_MESSAGES = 256
"""The number of messages that wait here to be passed on."""
LOST_S = 2 * KEEP_ALIVE_S
"""After this time without a message, the step may be ready, and the message that says so lost."""


class OtherReplicaExchange:
    """A call that is parked on another replica."""

    def __init__(
        self,
        shared_store: SharedStore,
        keyring: KeyRing,
        state: ParkedState,
        *,
        silent_s: float,
        valid_until: float,
    ) -> None:
        """
        Prepare to follow the call *state* for a caller whose token is valid until *valid_until*.
        """
        self._valid_until = valid_until
        self._silent_s = silent_s
        self._reply = ""
        self._tenant = state.target.tenant
        self._shared_store = shared_store.for_tenant(self._tenant)
        self._keyring, self._state = keyring, state

    async def next_step(
        self, step: int, answer: Answer | None, listener: ReceiveNotification
    ) -> ExchangeStep:
        """
        Answer the request of *step* there and return the next; *listener* gets notifications.

        The step is an end of the kind "gone" if the other replica is dead or does not know the
        call. Raises StoreUnavailable; then the round can be repeated.
        """
        state, reply = self._state, secrets.token_urlsafe(16)
        self._reply = reply
        sealing = Sealing(self._keyring, self._tenant, reply)
        received: deque[bytes] = deque(maxlen=MAX_MESSAGES)  # the newest ones matter most

        async def follow(wake: DeliverMessage) -> Subscription:
            def receive(message: bytes) -> None:
                received.append(message)
                wake(message)

            return await self._shared_store.follow(reply_topic(reply), receive)

        async with WakeUps(follow) as wake_ups:
            request = ParkedRequest(
                state.parked, state.target.call, step, answer, valid_until=self._valid_until
            )
            await self._shared_store.put(request_note(reply), sealing.seal(request), ttl_s=NOTE_S)
            note = await self._step_note(sealing, wake_ups, received, listener)
            if note is None and not wake_ups.is_following:
                raise StoreUnavailable("the shared store delivers no messages of other replicas")
        next_step: ExchangeStep | None = None if note is None else sealing.open(note, ExchangeStep)  # type: ignore[arg-type]
        return Ended("gone") if next_step is None else next_step

    async def _step_note(
        self,
        sealing: Sealing,
        wake_ups: WakeUps,
        received: deque[bytes],
        listener: ReceiveNotification,
    ) -> bytes | None:
        """Return the note of the step; None if the other replica is silent for too long."""
        loop = asyncio.get_running_loop()
        last_message_at, answers, is_ready = loop.time(), False, False
        while True:
            if not answers:
                # A message may be lost. The note is taken once, so a second one does nothing.
                topic = replica_topic(self._state.replica)
                await self._shared_store.publish(topic, self._reply.encode())
            await wake_ups.wait(KEEP_ALIVE_S)
            while received and not is_ready:
                message = received.popleft()
                last_message_at, answers, is_ready = loop.time(), True, message == READY
                if message not in (READY, KEEP_ALIVE):
                    notification = sealing.open(message, UpstreamNotification)
                    if notification is not None:
                        await listener(notification)
            silent_s = loop.time() - last_message_at
            if is_ready or silent_s > min(LOST_S, self._silent_s):
                note = await self._shared_store.take(step_note(self._reply))
                if note is not None or is_ready or silent_s > self._silent_s:
                    return note

    async def cancel(self) -> None:
        """Cancel the call there, if that replica can be reached."""
        if not self._reply:
            return
        reply, state = secrets.token_urlsafe(16), self._state
        request = ParkedRequest(state.parked, state.target.call, cancels=self._reply)
        sealed = Sealing(self._keyring, self._tenant, reply).seal(request)
        with suppress(StoreUnavailable):
            await self._shared_store.put(request_note(reply), sealed, ttl_s=NOTE_S)
            await self._shared_store.publish(replica_topic(self._state.replica), reply.encode())
