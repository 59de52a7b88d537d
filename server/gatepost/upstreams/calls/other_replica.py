"""Reach a parked call on the replica that holds it."""

import asyncio
import secrets
from contextlib import suppress

from gatepost.secrets.keyring import KeyRing
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.shared_store import SharedStore
from gatepost.upstreams.calls.call_states import Answer, Ended, ExchangeStep
from gatepost.upstreams.calls.parked_messages import (
    ALIVE,
    BEAT_S,
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

    async def after(
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
        received: asyncio.Queue[bytes] = asyncio.Queue(MAX_MESSAGES)

        def receive(message: bytes) -> None:
            if received.full():
                received.get_nowait()  # the newest notifications matter most
            received.put_nowait(message)

        subscription = await self._shared_store.follow(reply_topic(reply), receive)
        try:
            request = ParkedRequest(
                state.parked, state.target.call, step, answer, valid_until=self._valid_until
            )
            await self._shared_store.put(request_note(reply), sealing.seal(request), ttl_s=NOTE_S)
            await self._wait(reply, sealing, received, listener)
            note = await self._shared_store.take(step_note(reply))
        finally:
            subscription.end()
        next_step: ExchangeStep | None = None if note is None else sealing.open(note, ExchangeStep)  # type: ignore[arg-type]
        return Ended("gone") if next_step is None else next_step

    async def _wait(
        self,
        reply: str,
        sealing: Sealing,
        received: asyncio.Queue[bytes],
        listener: ReceiveNotification,
    ) -> None:
        """Wait for the step, or until the other replica is silent for too long."""
        loop = asyncio.get_running_loop()
        last, answers = loop.time(), False
        while loop.time() - last <= self._silent_s:
            if not answers:
                # A message may be lost. The note is taken once, so a second one does nothing.
                await self._shared_store.publish(replica_topic(self._state.replica), reply.encode())
            message = b""
            with suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    message = await received.get()
            if message == READY:
                return
            if message:
                last, answers = loop.time(), True
            if message not in (b"", ALIVE):
                notification = sealing.open(message, UpstreamNotification)
                if notification is not None:
                    await listener(notification)

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
