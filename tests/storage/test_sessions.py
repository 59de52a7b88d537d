"""The state of sessions of older revisions, on every backend."""

import asyncio

import msgspec

from gatepost.storage.records import Records
from gatepost.storage.sessions import SessionRecord

FULL_SESSION = SessionRecord(
    ended=True,
    log_level="debug",
    subscriptions=("file:///a", "note:\N{SNOWMAN}\x00", ""),
    listener="pod-1/7",
)


async def test_a_session_without_a_record_is_fresh(records: Records) -> None:
    """Most sessions need no record, as their signed id is enough."""
    assert await records.for_tenant("acme").sessions.get(b"s1") == SessionRecord()


async def test_a_session_is_read_as_it_was_written(records: Records) -> None:
    """Each write has the next revision."""
    sessions = records.for_tenant("acme").sessions

    assert await sessions.replace(b"s1", FULL_SESSION, expires_at=100.0)
    assert await sessions.get(b"s1") == msgspec.structs.replace(FULL_SESSION, revision=1)

    assert await sessions.replace(b"s1", SessionRecord(revision=1), expires_at=100.0)
    assert await sessions.get(b"s1") == SessionRecord(revision=2)


async def test_a_session_is_replaced_only_with_the_current_revision(records: Records) -> None:
    """An ended session must not come back when another process writes an older reading."""
    sessions = records.for_tenant("acme").sessions
    await sessions.replace(b"s1", SessionRecord(ended=True), expires_at=100.0)

    assert not await sessions.replace(b"s1", SessionRecord(log_level="info"), expires_at=100.0)
    assert not await sessions.replace(b"s1", SessionRecord(revision=2), expires_at=100.0)
    assert not await sessions.replace(b"s2", SessionRecord(revision=1), expires_at=100.0)

    assert (await sessions.get(b"s1")).ended
    assert await sessions.get(b"s2") == SessionRecord()


async def test_one_of_many_first_writers_of_a_session_succeeds(records: Records) -> None:
    """The others read again and add their changes."""
    sessions = records.for_tenant("acme").sessions
    session_records = [SessionRecord(listener=str(number)) for number in range(20)]

    won = await asyncio.gather(
        *(
            sessions.replace(b"s", session_record, expires_at=9.0)
            for session_record in session_records
        )
    )

    assert won.count(True) == 1
    assert (await sessions.get(b"s")).listener == session_records[won.index(True)].listener


async def test_every_writer_that_retries_succeeds(records: Records) -> None:
    """Each reads, adds and replaces until it succeeds, and no change is lost."""
    sessions = records.for_tenant("acme").sessions

    async def add(uri: str) -> None:
        while True:
            read = await sessions.get(b"s")
            more = msgspec.structs.replace(read, subscriptions=(*read.subscriptions, uri))
            if await sessions.replace(b"s", more, expires_at=9.0):
                return

    await asyncio.gather(*(add(str(number)) for number in range(8)))

    session = await sessions.get(b"s")
    assert sorted(session.subscriptions) == [str(number) for number in range(8)]
    assert session.revision == 8


async def test_a_sweep_removes_expired_sessions(records: Records) -> None:
    """An id that has expired is refused anyway."""
    sessions = records.for_tenant("acme").sessions
    await sessions.replace(b"s1", FULL_SESSION, expires_at=100.0)
    await sessions.replace(b"s2", FULL_SESSION, expires_at=100.5)

    assert await records.sweep(100.0) == 1
    assert await sessions.get(b"s1") == SessionRecord()
    assert (await sessions.get(b"s2")).ended
