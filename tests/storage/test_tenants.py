"""Tenants share nothing in a store, whatever the names of the tenants and their data."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gatepost.storage.records import Records
from gatepost.storage.sessions import SessionRecord
from gatepost.storage.shared_store import SharedStore
from tests.conftest import idempotency_record, task

# The pieces that could run into each other when names are joined, and what databases trip over.
KEY_PIECES = [
    ":",
    "::",
    "1",
    "2:",
    "a",
    "b",
    "%",
    "\\",
    "\x00",
    "\ud800",
    "*",
    "?",
    "é",
    "{",
    "}",
    " ",
]
names = st.lists(st.sampled_from(KEY_PIECES), max_size=4).map("".join) | st.text(max_size=8)
pairs = st.tuples(names, names)

shared_store = settings(
    max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
_runs = count()


@shared_store
@given(first=pairs, second=pairs)
async def test_records_are_isolated_by_tenant(
    records: Records, first: tuple[str, str], second: tuple[str, str]
) -> None:
    """Each tenant reads back what it wrote, even under the same names."""
    # One database for all examples: each has names that no other example used.
    run = f"{next(_runs)}/"
    keys: dict[tuple[str, str], bytes] = {}
    for number, (tenant, name) in enumerate((first, second)):
        keys[(run + tenant, name)] = b"%d" % number
    for (tenant, name), value in keys.items():
        ours, key = records.for_tenant(tenant), name.encode("utf-8", "surrogatepass")
        await ours.tasks.create(task(id=name, call=value, owner=key))
        assert (
            await ours.idempotency.begin(idempotency_record(key=key, digest=value), now=0.0) is None
        )
        record = SessionRecord(listener=value.decode(), log_level=name)
        assert await ours.sessions.replace(key, record, expires_at=1e9)
        assert await ours.entries("one").put(name, value, now=0.0, revision=0)

    for (tenant, name), value in keys.items():
        ours, key = records.for_tenant(tenant), name.encode("utf-8", "surrogatepass")
        own_task, own_record = await ours.tasks.get(name), await ours.idempotency.get(key)
        assert own_task is not None
        assert own_task.call == value
        assert await ours.tasks.count(key) == 1
        assert own_record is not None
        assert own_record.digest == value
        session = await ours.sessions.get(key)
        assert (session.listener, session.log_level) == (value.decode(), name)
        own_entries = [(entry.key, entry.value) for entry in await ours.entries("one").all()]
        assert (name, value) in own_entries
        assert await ours.entries("other").all() == []
    await assert_changes_stay_in_tenant(records, keys)


async def assert_changes_stay_in_tenant(
    records: Records, stored_keys: dict[tuple[str, str], bytes]
) -> None:
    """Assert that what the first tenant changes, ends and releases stays there for the second."""
    (first, name), *others = stored_keys
    key = name.encode("utf-8", "surrogatepass")
    read = await records.for_tenant(first).tasks.get(name)
    assert read is not None
    await records.for_tenant(first).tasks.replace(msgspec.structs.replace(read, status="cancelled"))
    await records.for_tenant(first).idempotency.release(key, "h1")
    await records.for_tenant(first).sessions.replace(
        key, SessionRecord(ended=True, revision=1), expires_at=1e9
    )
    assert await records.for_tenant(first).entries("one").delete(name)
    for tenant, other in others:
        theirs = records.for_tenant(tenant)
        key = other.encode("utf-8", "surrogatepass")
        their_task, their_record = await theirs.tasks.get(other), await theirs.idempotency.get(key)
        assert their_task is not None
        assert (their_task.status, their_task.revision) == ("working", 0)
        assert their_record is not None
        assert not (await theirs.sessions.get(key)).ended
        entry = await theirs.entries("one").get(other)
        assert entry is not None
        assert entry.revision == 1


@shared_store
@given(first=pairs, second=pairs)
async def test_data_of_the_shared_store_is_isolated_by_tenant(
    shared_store: SharedStore, first: tuple[str, str], second: tuple[str, str]
) -> None:
    """Topics, notes, logs and buckets of the same name differ for each tenant."""
    run = f"{next(_runs)}/"
    places = list(dict.fromkeys((run + tenant, name) for tenant, name in (first, second)))
    heard: dict[tuple[str, str], list[bytes]] = {channel: [] for channel in places}
    values = {channel: b"%d" % number for number, channel in enumerate(places)}
    followings = []
    for tenant, name in places:
        ours = shared_store.for_tenant(tenant)
        followings.append(await ours.follow(name, heard[(tenant, name)].append))
    for (tenant, name), value in values.items():
        ours = shared_store.for_tenant(tenant)
        await ours.put(name, value, ttl_s=60)
        assert await ours.append(name, value, ttl_s=60, max_events=3) == 1
        assert await ours.spend(name, rate=0.001, burst=1) == 0
        await ours.publish(name, value)
    for (tenant, name), value in values.items():
        ours = shared_store.for_tenant(tenant)
        assert await ours.take(name) == value
        events = await ours.read(name, 0)
        assert events is not None
        assert [event.data for event in events] == [value]
    await eventually(lambda: heard == {channel: [value] for channel, value in values.items()})
    for following in followings:
        following.end()


async def eventually(condition: Callable[[], Any]) -> None:
    """Let the loop run until it is so, for ten seconds at most."""

    async def turn() -> None:
        while not condition():
            await asyncio.to_thread(int)

    await _within(turn())


async def _within(work: Awaitable[None]) -> None:
    async with asyncio.timeout(10):
        await work
