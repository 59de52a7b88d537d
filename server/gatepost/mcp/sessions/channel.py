"""The message channel of a session between processes, and the channels that are open here."""

import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import Literal

import msgspec

from gatepost.mcp.jsonrpc import RATE_LIMITED, JsonRpcError
from gatepost.mcp.sessions.session import LIFETIME_S, McpSession
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.records import Records
from gatepost.storage.sessions import SessionRecord, SessionStore
from gatepost.storage.shared_store import SharedStore, Subscription, TenantSharedStore

SignalKind = Literal["cancel", "end", "listen", "watch", "asked", "answer", "event", "resume"]

_encode = msgspec.msgpack.encode


class ChannelSignal(msgspec.Struct, frozen=True, array_like=True):
    """
    A message between the parts of a session, in any process.

    ``target_id`` is the id of a request, of a request to the client, or of a stream. ``by``
    distinguishes two connections that want the same stream.
    """

    kind: SignalKind
    target_id: str = ""
    by: str = ""


_decode = msgspec.msgpack.Decoder(ChannelSignal).decode

ReceiveSignal = Callable[[ChannelSignal], None]
EditSession = Callable[[SessionRecord], SessionRecord]
"""Returns the changed record; it may be called again with a newer one."""

NEW_PER_S, NEW_AT_ONCE = 0.2, 1000
"""Rate limit of new session records per caller. Clients need far fewer, and a flood is stopped."""
# A session id costs nothing, but a record is stored for a week.
TOO_MANY_SESSIONS = JsonRpcError(
    RATE_LIMITED,
    "Too many sessions were opened: use one for longer, or try again later",
    status=429,
    legacy_status=429,
    headers=((b"retry-after", b"%d" % (1 / NEW_PER_S)),),
)
CHANGES_PER_S, CHANGES_IN_A_ROW = 10, 500
"""Rate limit of changes to a caller's session records; each is a durable write."""
TOO_MANY_CHANGES = JsonRpcError(
    RATE_LIMITED,
    "Too many changes to sessions: try again later",
    status=429,
    legacy_status=429,
    headers=((b"retry-after", b"1"),),
)

CHANGES_AT_ONCE = 50
"""How often a change is tried again after a concurrent one; more conflicts are a fault."""


class MessageChannel:
    """
    One session as a request sees it: its record, and its messages to other processes.

    All its names at the shared store begin with the session's key, which no client can choose. Ids
    that a client sends are looked up below that key, so they cannot reach another session.
    """

    __slots__ = ("_sessions", "_shared_store", "_topic", "record", "session")

    def __init__(
        self,
        session: McpSession,
        record: SessionRecord,
        *,
        sessions: SessionStore,
        shared_store: TenantSharedStore,
    ) -> None:
        self.session = session
        self.record = record
        self._sessions = sessions
        self._shared_store = shared_store
        self._topic = f"session/{session.key.hex()}"

    async def revise(self, change: EditSession) -> SessionRecord:
        """Change the session's record durably; raises JsonRpcError above the rate limit."""
        self.record = await revise(
            self._sessions, self._shared_store, self.session, change, last_read=self.record
        )
        return self.record

    async def reload(self) -> SessionRecord:
        """Read the session's record from the store and return it."""
        self.record = await self._sessions.get(self.session.key)
        return self.record

    async def send(self, kind: SignalKind, target_id: str = "", by: str = "") -> None:
        """Send a message to all parts of the session, in any process."""
        await self._shared_store.publish(self._topic, _encode(ChannelSignal(kind, target_id, by)))

    async def follow(self, receive: ReceiveSignal) -> Subscription:
        """Subscribe to the session's messages from now on."""

        def deliver(message: bytes) -> None:
            try:
                signal = _decode(message)
            except msgspec.DecodeError:
                return  # sent by a replica of a newer release, with a kind unknown here
            receive(signal)

        return await self._shared_store.follow(self._topic, deliver)

    async def put_value(
        self, kind: SignalKind, target_id: str, value: bytes, *, ttl_s: float
    ) -> None:
        """Store a value for another process to take."""
        await self._shared_store.put(f"{self._topic}/{kind}/{target_id}", value, ttl_s=ttl_s)

    async def take_value(self, kind: SignalKind, target_id: str) -> bytes | None:
        """Remove and return a stored value."""
        return await self._shared_store.take(f"{self._topic}/{kind}/{target_id}")

    def stored_events(self, stream: str) -> "StreamEvents":
        """Return the place where the events of one stream are kept."""
        return StreamEvents(self._shared_store, f"{self._topic}/stream/{stream}")


class StreamEvents(msgspec.Struct, frozen=True):
    """The shared store and the name under which the events of one stream are kept."""

    shared_store: TenantSharedStore
    name: str


async def revise(
    sessions: SessionStore,
    shared_store: TenantSharedStore,
    session: McpSession,
    change: EditSession,
    *,
    last_read: SessionRecord | None = None,
) -> SessionRecord:
    """
    Change a session's record durably, even if others change it at the same time.

    *change* gets the current record and may be called again. An ended session stays ended.
    *last_read* is the record as it was read last: it is replaced without being read again, which
    fails if it has changed. Raises JsonRpcError if the owner changes or creates session records
    faster than the rate limit.
    """
    expires_at = session.issued_at + LIFETIME_S
    is_spent = False
    for _ in range(CHANGES_AT_ONCE):
        may_be_old = last_read is not None
        before, last_read = last_read or await sessions.get(session.key), None
        try:
            after = change(before)
        except JsonRpcError:
            if may_be_old:
                continue  # an old record may be full, but not the current one
            raise
        if after == before or before.ended:
            if may_be_old:
                continue
            return before
        if not is_spent:
            await _spend(shared_store, session, is_new=not before.revision)
            is_spent = True
        if await sessions.replace(session.key, after, expires_at=expires_at):
            return msgspec.structs.replace(after, revision=after.revision + 1)
    raise StoreUnavailable("a session changes faster than it can be written")


async def _spend(shared_store: TenantSharedStore, session: McpSession, *, is_new: bool) -> None:
    owner = session.owner.hex()
    # Without the shared store nothing is counted, so no session is refused for that reason.
    with contextlib.suppress(StoreUnavailable):
        if (
            await shared_store.spend(f"changes/{owner}", rate=CHANGES_PER_S, burst=CHANGES_IN_A_ROW)
            > 0
        ):
            raise TOO_MANY_CHANGES
        if (
            is_new
            and await shared_store.spend(f"new/{owner}", rate=NEW_PER_S, burst=NEW_AT_ONCE) > 0
        ):
            raise TOO_MANY_SESSIONS


MAX_REMEMBERED_SESSIONS = 5000
# How long an ended session or a new log level may go unnoticed if the message is lost.
CACHED_S = 10.0
IDLE_S = 60.0

SessionKey = tuple[str, bytes]


class RegisteredSession:
    """One session, whose record is valid until a message announces a change."""

    __slots__ = ("channel", "following", "is_stale", "until", "used")

    def __init__(self, channel: MessageChannel) -> None:
        self.channel = channel
        self.until = self.used = 0.0
        self.is_stale = True
        self.following: Subscription | None = None

    def receive(self, signal: ChannelSignal) -> None:
        """Handle a message from another part of the session."""
        if signal.kind in ("end", "watch"):
            self.is_stale = True

    def close(self) -> None:
        """End the subscription; a request that still holds the session reads its record itself."""
        following, self.following, self.is_stale = self.following, None, True
        if following is not None:
            following.end()


class SessionRegistry:
    """
    The records of the sessions in use, which are not read again for every request.

    Reading a record costs more than an ordinary call. A change is announced to all parts of the
    session, including the registry of every process. A session that is not used for a while is
    removed.
    """

    def __init__(
        self,
        records: Records,
        shared_store: SharedStore,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._records = records
        self._shared_store = shared_store
        self._clock = clock
        self._entries: OrderedDict[SessionKey, RegisteredSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    async def channel(self, tenant: str, session: McpSession) -> MessageChannel | None:
        """Return the message channel of a session; None if the session has ended."""
        session_key = (tenant, session.key)
        now = self._clock()
        entry = self._entries.get(session_key)
        if entry is None:
            entry = await self._enter(session_key, session)
        else:
            self._entries.move_to_end(session_key)
        entry.used = now
        channel = entry.channel
        if entry.is_stale or now >= entry.until:
            # The entry is invalid while its record is read; a message meanwhile makes it stale.
            entry.until, entry.is_stale = 0.0, entry.following is None
            await channel.reload()
            entry.until = now + CACHED_S
        if channel.record.ended:
            self._drop(session_key)
            return None
        return channel

    async def revise(
        self, tenant: str, session: McpSession, change: EditSession, *, is_repeated: bool = False
    ) -> None:
        """
        Change a session's record durably and tell all its parts.

        With *is_repeated*, they are told even if nothing changes, because the message about an
        earlier request may be lost.
        """
        channel = await self.channel(tenant, session)
        if channel is None:
            return
        before = channel.record
        if await channel.revise(change) != before or is_repeated:
            self.changed(tenant, session)
            # The session's stream may be at another process.
            await channel.send("watch")

    def changed(self, tenant: str, session: McpSession) -> None:
        """Mark the record as changed; the shared store tells the other processes."""
        entry = self._entries.get((tenant, session.key))
        if entry is not None:
            entry.is_stale = True

    def on_end(self, tenant: str, session: McpSession) -> None:
        """Remove a session that has ended in the store."""
        self._drop((tenant, session.key))

    def close(self) -> None:
        """Remove all sessions and end their subscriptions."""
        for session_key in tuple(self._entries):
            self._drop(session_key)

    async def _enter(self, session_key: SessionKey, session: McpSession) -> RegisteredSession:
        tenant, _ = session_key
        sessions, shared_store = (
            self._records.for_tenant(tenant).sessions,
            self._shared_store.for_tenant(tenant),
        )
        entry = RegisteredSession(
            MessageChannel(session, SessionRecord(), sessions=sessions, shared_store=shared_store)
        )
        entry.used = self._clock()
        try:
            entry.following = await entry.channel.follow(entry.receive)
        except StoreUnavailable:
            return entry  # changes are not announced, so every request reads the record
        if (known_entry := self._entries.get(session_key)) is not None:
            entry.close()
            return known_entry
        self._entries[session_key] = entry
        self._make_room()
        return entry

    def _make_room(self) -> None:
        quiet = self._clock() - IDLE_S
        for session_key in tuple(islice(self._entries, 2)):
            # Check two for each new session, so that idle ones are removed faster than they come.
            if (
                len(self._entries) > MAX_REMEMBERED_SESSIONS
                or self._entries[session_key].used < quiet
            ):
                self._drop(session_key)

    def _drop(self, session_key: SessionKey) -> None:
        entry = self._entries.pop(session_key, None)
        if entry is not None:
            entry.close()
