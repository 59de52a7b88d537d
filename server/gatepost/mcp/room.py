"""One live session, and how what belongs to it finds each other in any process."""

import contextlib
from collections.abc import Callable
from typing import Literal

import msgspec

from gatepost.mcp.jsonrpc import RATE_LIMITED, Refused
from gatepost.mcp.legacy import LIFETIME_S, Session
from gatepost.stores.api import (
    Following,
    SessionRecord,
    Sessions,
    StoreUnavailable,
    TenantRelay,
)

Kind = Literal["cancel", "end", "listen", "watch", "asked", "answer", "event", "resume"]

_encode = msgspec.msgpack.encode


class Signal(msgspec.Struct, frozen=True, array_like=True):
    """
    What one part of a session tells the others, wherever they are.

    ``about`` is a request's id, a question's or a stream's; ``by`` tells two connections that want
    the same stream apart.
    """

    kind: Kind
    about: str = ""
    by: str = ""


_decode = msgspec.msgpack.Decoder(Signal).decode

Hear = Callable[[Signal], None]
Edit = Callable[[SessionRecord], SessionRecord]
"""Makes the next record out of the one that is kept; may be called again."""

NEW_PER_S, NEW_AT_ONCE = 0.2, 1000
"""Sessions that one caller may begin to keep: far more than clients open, and no flood."""
# An id costs nothing, but a record is kept for a week.
CROWDED = Refused(
    RATE_LIMITED,
    "Too many sessions were opened: use one for longer, or try again later",
    status=429,
    legacy_status=429,
    headers=((b"retry-after", b"%d" % (1 / NEW_PER_S)),),
)
CHANGES_PER_S, CHANGES_IN_A_ROW = 10, 500
"""Changes of what a caller's sessions remember; each is a durable write that others wait for."""
HASTY = Refused(
    RATE_LIMITED,
    "Too many changes of sessions: try again later",
    status=429,
    legacy_status=429,
    headers=((b"retry-after", b"1"),),
)

CHANGES_AT_ONCE = 50
"""How many others may change a session's record while we try to; more is a fault, not a crowd."""


class Room:
    """
    One session as one request finds it: what it remembers, and its way to other processes.

    Whatever it names at the relay begins with the session's key, which nobody chooses: ids that
    clients send are looked up below it and reach nothing of another session.
    """

    __slots__ = ("_relay", "_sessions", "_topic", "record", "session")

    def __init__(
        self,
        session: Session,
        record: SessionRecord,
        *,
        sessions: Sessions,
        relay: TenantRelay,
    ) -> None:
        self.session = session
        self.record = record
        self._sessions = sessions
        self._relay = relay
        self._topic = f"session/{session.key.hex()}"

    async def revise(self, change: Edit) -> SessionRecord:
        """Change what the session remembers, durably; raises Refused, see `revise`."""
        self.record = await revise(self._sessions, self._relay, self.session, change)
        return self.record

    async def look(self) -> SessionRecord:
        """What the session remembers now."""
        self.record = await self._sessions.get(self.session.key)
        return self.record

    async def tell(self, kind: Kind, about: str = "", by: str = "") -> None:
        """Tell every part of the session, in any process."""
        await self._relay.publish(self._topic, _encode(Signal(kind, about, by)))

    async def follow(self, hear: Hear) -> Following:
        """Hear what is told from now on."""

        def deliver(message: bytes) -> None:
            try:
                signal = _decode(message)
            except msgspec.DecodeError:
                return  # from a replica of a release that knows more kinds
            hear(signal)

        return await self._relay.follow(self._topic, deliver)

    async def leave(self, kind: Kind, about: str, value: bytes, *, ttl_s: float) -> None:
        """Leave a note for whichever process it is about."""
        await self._relay.put(f"{self._topic}/{kind}/{about}", value, ttl_s=ttl_s)

    async def collect(self, kind: Kind, about: str) -> bytes | None:
        """The note about this, which is gone then."""
        return await self._relay.take(f"{self._topic}/{kind}/{about}")

    def shelf(self, stream: str) -> "Shelf":
        """Where the events of one stream are kept."""
        return Shelf(self._relay, f"{self._topic}/stream/{stream}")


class Shelf(msgspec.Struct, frozen=True):
    """The kept events of one stream."""

    relay: TenantRelay
    name: str


async def revise(
    sessions: Sessions,
    relay: TenantRelay,
    session: Session,
    change: Edit,
) -> SessionRecord:
    """
    Change what a session remembers, durably, whoever else changes it at the same time.

    *change* is given the record as it is and may be called again. An ended session stays ended.
    Raises Refused when its owner changes sessions, or begins to keep some, faster than it may.
    """
    expires_at = session.issued_at + LIFETIME_S
    for _ in range(CHANGES_AT_ONCE):
        before = await sessions.get(session.key)
        after = change(before)
        if after == before or before.ended:
            return before
        await _spend(relay, session, is_new=not before.revision)
        if await sessions.replace(session.key, after, expires_at=expires_at):
            return after
    raise StoreUnavailable("a session changes faster than it can be written")


async def _spend(relay: TenantRelay, session: Session, *, is_new: bool) -> None:
    owner = session.owner.hex()
    # Without the relay nobody counts: no session is refused because it cannot be counted.
    with contextlib.suppress(StoreUnavailable):
        if await relay.spend(f"changes/{owner}", rate=CHANGES_PER_S, burst=CHANGES_IN_A_ROW) > 0:
            raise HASTY
        if is_new and await relay.spend(f"new/{owner}", rate=NEW_PER_S, burst=NEW_AT_ONCE) > 0:
            raise CROWDED
