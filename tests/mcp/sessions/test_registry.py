"""
The session registry of a process reads a record once, learns of changes and drops old entries.
"""

import asyncio
from typing import Any

import msgspec
import pytest

from gatepost.mcp.sessions import channel
from gatepost.mcp.sessions.channel import CACHED_S, IDLE_S, MessageChannel, SessionRegistry
from gatepost.mcp.sessions.session import McpSession, McpSessions
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.memory.records import MemoryRecords
from gatepost.storage.sessions import SessionRecord
from gatepost.storage.shared_store import MemorySharedStore
from tests.support.endpoint import a_caller
from tests.support.measuring import ManualClock


def a_session() -> McpSession:
    return McpSessions(KeyRing.ephemeral()).start(b'{"protocolVersion":"2025-11-25"}', a_caller())[
        0
    ]


class RegistryPair:
    """Two processes' registers over the same stores; counts what is read of the database."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock()
        self.records, self.shared_store = MemoryRecords(), MemorySharedStore()
        self.here = SessionRegistry(self.records, self.shared_store, clock=self.clock)
        self.there = SessionRegistry(self.records, self.shared_store, clock=self.clock)
        self.sessions = self.records.for_tenant("acme").sessions
        self.reads = 0
        self.gate: asyncio.Event | None = None
        get = self.sessions.get

        async def counted(key: bytes) -> SessionRecord:
            self.reads += 1
            record = await get(key)
            if self.gate is not None:
                await self.gate.wait()
            return record

        monkeypatch.setattr(self.sessions, "get", counted)

    async def level(self, at: SessionRegistry, session: McpSession) -> str | None:
        room = await at.channel("acme", session)
        assert room is not None
        return room.record.log_level

    async def change(self, session: McpSession, tell: bool = True, **changes: Any) -> None:
        """Change the record as a third process."""
        shared_store = self.shared_store.for_tenant("acme")
        room = MessageChannel(
            session, SessionRecord(), sessions=self.sessions, shared_store=shared_store
        )
        await room.revise(lambda record: msgspec.structs.replace(record, **changes))
        if tell:
            await room.send("end" if changes.get("ended") else "watch")


@pytest.fixture
def two_registries(monkeypatch: pytest.MonkeyPatch) -> RegistryPair:
    return RegistryPair(monkeypatch)


async def test_a_record_is_read_once_and_not_for_every_request(
    two_registries: RegistryPair,
) -> None:
    """A read for each request would cost more than the request."""
    session = a_session()
    for _ in range(100):
        assert await two_registries.level(two_registries.here, session) is None

    assert two_registries.reads == 1


async def test_a_change_at_another_process_applies_to_the_next_request(
    two_registries: RegistryPair,
) -> None:
    """Both processes apply a new log level and the end of the session."""
    session = a_session()
    for registry in (two_registries.here, two_registries.there):
        await two_registries.level(registry, session)
    await two_registries.change(session, log_level="error")

    assert (
        await two_registries.level(two_registries.here, session)
        == await two_registries.level(two_registries.there, session)
        == "error"
    )

    await two_registries.change(session, ended=True)
    assert await two_registries.here.channel("acme", session) is None
    assert await two_registries.there.channel("acme", session) is None
    assert len(two_registries.here) == len(two_registries.there) == 0


async def test_after_a_lost_notification_the_record_is_read_again_soon(
    two_registries: RegistryPair,
) -> None:
    """A replica that missed the notification reads the record again within seconds."""
    session = a_session()
    await two_registries.level(two_registries.here, session)
    await two_registries.change(session, tell=False, ended=True)
    assert await two_registries.here.channel("acme", session) is not None

    two_registries.clock.now += CACHED_S

    assert await two_registries.here.channel("acme", session) is None


async def test_a_change_while_the_record_is_read_is_not_missed(
    two_registries: RegistryPair,
) -> None:
    """Neither the first reader nor a concurrent request gets the old record."""
    session = a_session()
    await two_registries.level(two_registries.here, session)
    await two_registries.change(session, log_level="debug")
    two_registries.gate = asyncio.Event()
    reading = asyncio.create_task(two_registries.here.channel("acme", session))
    await asyncio.sleep(0)
    gate, two_registries.gate = two_registries.gate, None
    await two_registries.change(session, ended=True)
    meanwhile = await two_registries.here.channel("acme", session)
    gate.set()
    await asyncio.wait_for(reading, 20)

    assert meanwhile is None
    assert await two_registries.here.channel("acme", session) is None


async def test_without_a_shared_store_every_request_reads(
    two_registries: RegistryPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No notification could arrive, so no record is cached."""

    async def fails(*_: object) -> None:
        raise StoreUnavailable

    monkeypatch.setattr(two_registries.shared_store.for_tenant("acme"), "follow", fails)
    session = a_session()
    await two_registries.level(two_registries.here, session)
    await two_registries.change(session, tell=False, log_level="error")

    assert await two_registries.level(two_registries.here, session) == "error"
    assert len(two_registries.here) == 0


async def test_the_number_of_remembered_sessions_is_bounded(
    two_registries: RegistryPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest unused sessions are dropped, with their subscriptions."""
    monkeypatch.setattr(channel, "MAX_REMEMBERED_SESSIONS", 10)
    sessions = [a_session() for _ in range(30)]
    for session in sessions:
        await two_registries.level(two_registries.here, sessions[0])
        await two_registries.level(two_registries.here, session)
    reads = two_registries.reads
    await two_registries.level(two_registries.here, sessions[0])
    assert two_registries.reads == reads
    assert len(two_registries.here) == 10
    two_registries.clock.now += IDLE_S + 1
    for _ in range(10):
        await two_registries.level(two_registries.here, a_session())
    await asyncio.sleep(0)

    assert len(two_registries.here) == 10
    followers = vars(two_registries.shared_store.for_tenant("acme"))["_followers"]
    assert len(followers) == 10
    two_registries.here.close()
    assert followers == {}


async def test_two_concurrent_first_requests_keep_one_subscription(
    two_registries: RegistryPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second follow of the topic is closed again."""
    shared_store = two_registries.shared_store.for_tenant("acme")
    follow = shared_store.follow

    async def slowly(topic: str, deliver: Any) -> Any:
        await asyncio.sleep(0)
        return await follow(topic, deliver)

    monkeypatch.setattr(shared_store, "follow", slowly)
    session = a_session()

    await asyncio.gather(*(two_registries.level(two_registries.here, session) for _ in range(5)))
    await asyncio.sleep(0)

    (registered,) = vars(shared_store)["_followers"].values()
    assert len(registered) == len(two_registries.here) == 1
