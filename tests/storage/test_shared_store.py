"""Messages, notes, logs and buckets, on every backend."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.connection import Connection
from redis.exceptions import RedisError

from gatepost.storage.backends import open_shared_store
from gatepost.storage.shared_store import (
    OTHERS_SWEPT,
    SWEEP_EVERY_S,
    LogEvent,
    MemorySharedStore,
    SharedStore,
    TenantSharedStore,
)
from gatepost.storage.valkey.shared_store import ValkeySharedStore
from tests.support.measuring import capture_logs

LONG_WAIT_S = 60.0


class Follower:
    """A follower that remembers what it heard, and can be waited for."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self._more = asyncio.Event()

    def __call__(self, message: bytes) -> None:
        self.heard.append(message)
        self._more.set()

    async def has(self, *messages: bytes) -> None:
        """Return once exactly these were heard, in this order."""
        await self._until(lambda: len(self.heard) >= len(messages))
        assert self.heard == [*messages]

    async def hears(self, message: bytes) -> None:
        """Return once this was heard, among whatever else."""
        await self._until(lambda: message in self.heard)

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self._more.clear()
                await self._more.wait()


async def test_a_subscriber_receives_published_messages(shared_store: SharedStore) -> None:
    """It gets all messages after `follow` returned, in order and unchanged."""
    acme, first, second = shared_store.for_tenant("acme"), Follower(), Follower()
    await acme.publish("t", b"before")
    await acme.follow("t", first)
    await acme.publish("t", b"1\x00\xff")
    # Until it has arrived, a later follower may hear it, too.
    await first.has(b"1\x00\xff")
    await acme.follow("t", second)
    await acme.publish("t", b"")
    await acme.publish("other", b"not this")
    await acme.publish("t", b"3")

    await first.has(b"1\x00\xff", b"", b"3")
    await second.has(b"", b"3")


async def test_a_subscriber_gets_no_messages_after_it_unsubscribed(
    shared_store: SharedStore,
) -> None:
    """Other subscribers still do; closing twice has no effect."""
    acme, gone, stays = shared_store.for_tenant("acme"), Follower(), Follower()
    following = await acme.follow("t", gone)
    await acme.follow("t", stays)
    following.end()
    following.end()
    await acme.publish("t", b"1")

    await stays.has(b"1")
    assert gone.heard == []


async def test_a_topic_can_be_followed_again(shared_store: SharedStore) -> None:
    """The last subscriber may leave and the next one come any number of times."""
    acme = shared_store.for_tenant("acme")
    for number in range(20):
        follower = Follower()
        following = await acme.follow("t", follower)
        await acme.publish("t", b"%d" % number)
        await follower.has(b"%d" % number)
        following.end()


async def test_many_subscriptions_can_begin_and_end_at_once(shared_store: SharedStore) -> None:
    """Each gets the message of its own topic."""
    acme = shared_store.for_tenant("acme")

    async def subscribe_once(number: int) -> None:
        follower = Follower()
        following = await acme.follow(f"t{number % 5}", follower)
        await acme.publish(f"t{number % 5}", b"x")
        await follower.hears(b"x")
        following.end()

    await asyncio.gather(*(subscribe_once(number) for number in range(50)))


async def test_valkey_sends_nothing_more_when_the_last_subscriber_has_left(valkey: str) -> None:
    """Otherwise a server would receive the messages of all sessions that it ever had."""
    shared_store = await open_shared_store(valkey)
    assert isinstance(shared_store, ValkeySharedStore)
    acme, client = shared_store.for_tenant("acme"), shared_store.client

    async def channels() -> list[bytes]:
        return [name for name in await client.pubsub_channels() if name.endswith(b"left-behind")]

    first, second = [await acme.follow("left-behind", Follower()) for _ in range(2)]
    first.end()
    await asyncio.sleep(0)
    assert len(await channels()) == 1
    second.end()
    async with asyncio.timeout(10):
        while await channels():
            pass
    await shared_store.aclose()


async def test_a_failed_close_leaves_no_connection_open(
    valkey: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The errors are logged by their type, without their text, which may have a password."""
    watcher = await open_shared_store(valkey)
    assert isinstance(watcher, ValkeySharedStore)
    name = f"closes-{id(watcher)}"
    shared_store = await open_shared_store(f"{valkey}?client_name={name}")
    assert isinstance(shared_store, ValkeySharedStore)
    acme, send_command = shared_store.for_tenant("acme"), Connection.send_command

    async def connections() -> list[str]:
        clients = await watcher.client.client_list()
        return [client["name"] for client in clients if client["name"] == name]

    async def unable(connection: Connection, *arguments: Any, **options: Any) -> None:
        if arguments[0] == "UNSUBSCRIBE":
            await asyncio.sleep(0.01)
            raise LookupError(valkey)
        await send_command(connection, *arguments, **options)

    async def unable_to_close(client: object) -> None:
        raise RedisError(valkey)

    subscriptions = [await acme.follow(f"closes-{number}", Follower()) for number in range(3)]
    await acme.put("note", b"", ttl_s=60)
    assert len(await connections()) >= 2
    monkeypatch.setattr(Connection, "send_command", unable)
    monkeypatch.setattr(Redis, "aclose", unable_to_close)
    with capture_logs() as logs:
        for subscription in subscriptions:
            subscription.end()
        await asyncio.sleep(0)  # they have begun when the store closes
        await shared_store.aclose()
    monkeypatch.undo()

    async with asyncio.timeout(10):
        while await connections():
            pass
    assert [(event["event"], event["error"]) for event in logs] == [
        ("background_task_failed", "LookupError")
    ] * 3
    assert valkey not in str(logs)
    await watcher.aclose()


async def test_a_subscriber_that_raises_silences_no_other(valkey: str) -> None:
    """Other subscribers of the process still get the message."""
    failures: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: failures.append(str(context["exception"]))
    )
    shared_store = await open_shared_store(valkey)
    acme, follower = shared_store.for_tenant("acme"), Follower()

    def bad(_: bytes) -> None:
        raise ValueError("broken")

    await acme.follow("t", bad)
    await acme.follow("t", follower)
    for message in (b"1", b"2"):
        await acme.publish("t", message)
    await follower.has(b"1", b"2")
    await shared_store.aclose()

    assert failures == ["broken", "broken"]


async def test_a_flood_of_messages_does_not_starve_other_tasks(valkey: str) -> None:
    """Messages are delivered one by one, so none pile up and other tasks get their turn."""
    listening, speaking = await open_shared_store(valkey), await open_shared_store(valkey)
    turns: list[int] = []
    heard = 0

    def count(_: bytes) -> None:
        nonlocal heard
        heard += 1

    await listening.for_tenant("acme").follow("t", count)
    await asyncio.gather(
        *(speaking.for_tenant("acme").publish("t", b"x" * 100) for _ in range(1_000))
    )
    async with asyncio.timeout(20):
        while heard < 1_000:
            await asyncio.sleep(0)
            turns.append(heard)
    for shared_store in (listening, speaking):
        await shared_store.aclose()

    steps = [after - before for before, after in zip([0, *turns], turns, strict=False)]
    assert max(steps[1:], default=0) <= 1


async def test_a_note_is_taken_once(shared_store: SharedStore) -> None:
    """One of several takers gets it; a later note under the key is a new one."""
    acme = shared_store.for_tenant("acme")
    await acme.put("k", b"\x00old", ttl_s=LONG_WAIT_S)
    await acme.put("k", b"\x00new", ttl_s=LONG_WAIT_S)

    taken = await asyncio.gather(*(acme.take("k") for _ in range(10)))

    assert sorted(taken, key=bool) == [None] * 9 + [b"\x00new"]
    assert await acme.take("unknown") is None


async def test_an_empty_note_is_a_note(shared_store: SharedStore) -> None:
    """An empty note differs from a missing one."""
    acme = shared_store.for_tenant("acme")
    await acme.put("k", b"", ttl_s=LONG_WAIT_S)

    assert await acme.take("k") == b""


async def test_a_note_expires(shared_store: SharedStore) -> None:
    """A client that comes later finds none."""
    acme = shared_store.for_tenant("acme")
    await acme.put("k", b"v", ttl_s=0.001)
    await wait_a_moment()

    assert await acme.take("k") is None


async def wait_a_moment() -> None:
    """Wait longer than a millisecond."""
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(0.02, over.set)
    await over.wait()


async def test_a_log_numbers_from_one_without_gaps(shared_store: SharedStore) -> None:
    """This holds for concurrent writers, too."""
    acme = shared_store.for_tenant("acme")

    numbers = await asyncio.gather(
        *(acme.append("l", b"%d" % n, ttl_s=LONG_WAIT_S, max_events=100) for n in range(30))
    )

    assert sorted(numbers) == [*range(1, 31)]
    read = await acme.read("l", 0)
    assert read is not None
    assert [event.number for event in read] == [*range(1, 31)]
    assert {event.number: event.data for event in read} == {
        number: b"%d" % written for written, number in enumerate(numbers)
    }


async def fill_stream(acme: TenantSharedStore, *, entries: int, most: int) -> None:
    for number in range(1, entries + 1):
        assert await acme.append("l", b"%d" % number, ttl_s=LONG_WAIT_S, max_events=most) == number


@pytest.mark.parametrize(
    ("after", "log_events"),
    [
        (5, []),
        (4, [LogEvent(5, b"5")]),
        (2, [LogEvent(3, b"3"), LogEvent(4, b"4"), LogEvent(5, b"5")]),
        (1, None),
        (0, None),
        (6, None),
        (-1, None),
        (2**63, None),
        (2**200, None),
    ],
)
async def test_a_log_keeps_the_newest_and_says_when_some_are_missing(
    shared_store: SharedStore, after: int, log_events: list[LogEvent] | None
) -> None:
    """A client that resumes gets everything since, or learns that it cannot."""
    acme = shared_store.for_tenant("acme")
    await fill_stream(acme, entries=5, most=3)

    assert await acme.read("l", after) == log_events


async def test_an_unknown_or_deleted_log_reads_as_none(shared_store: SharedStore) -> None:
    """The next append begins at 1."""
    acme = shared_store.for_tenant("acme")
    assert await acme.read("l", 0) is None
    await fill_stream(acme, entries=2, most=3)
    await acme.forget("l")
    await acme.forget("l")

    assert await acme.read("l", 0) is None
    assert await acme.read("l", 2) is None
    assert await acme.append("l", b"", ttl_s=LONG_WAIT_S, max_events=3) == 1
    assert await acme.read("l", 0) == [LogEvent(1, b"")]


async def test_a_log_expires(shared_store: SharedStore) -> None:
    """Every entry extends it."""
    acme = shared_store.for_tenant("acme")
    await acme.append("l", b"1", ttl_s=LONG_WAIT_S, max_events=3)
    await acme.append("l", b"2", ttl_s=0.001, max_events=3)
    await wait_a_moment()

    assert await acme.read("l", 0) is None


async def test_a_bucket_holds_its_burst_and_refills(shared_store: SharedStore) -> None:
    """All its tokens can be spent at once; then each call gets its wait."""
    acme = shared_store.for_tenant("acme")
    rate = 0.01
    for _ in range(5):
        assert await acme.spend("b", rate=rate, burst=5) == 0

    wait = await acme.spend("b", rate=rate, burst=5)
    assert 90 < wait <= 100
    assert await acme.spend("b", rate=rate, burst=5) <= wait
    assert await acme.spend("other", rate=rate, burst=5) == 0


async def test_concurrent_spends_take_no_more_than_the_bucket_has(
    shared_store: SharedStore,
) -> None:
    """Looking and taking are one step."""
    acme = shared_store.for_tenant("acme")

    waits = await asyncio.gather(*(acme.spend("b", rate=0.01, burst=7) for _ in range(20)))

    assert waits.count(0) == 7


async def test_an_empty_bucket_refills_over_time(shared_store: SharedStore) -> None:
    """At a thousand tokens a second the next one is there at once."""
    acme = shared_store.for_tenant("acme")
    for _ in range(20):
        if await acme.spend("b", rate=1_000, burst=1) > 0:
            await wait_a_moment()
            assert await acme.spend("b", rate=1_000, burst=1) == 0


class CountedValue(bytes):
    """A value whose end is counted."""

    ended = 0

    def __del__(self) -> None:
        CountedValue.ended += 1


async def test_the_memory_store_drops_expired_data_of_inactive_tenants() -> None:
    """An active tenant has the others swept in turn, however many there are."""
    now = [0.0]
    shared_store = MemorySharedStore(clock=lambda: now[0])
    for number in range(3 * OTHERS_SWEPT):
        await shared_store.for_tenant(f"t{number}").put("note", CountedValue(b"note"), ttl_s=10)
        await shared_store.for_tenant(f"t{number}").append(
            "log", CountedValue(b"event"), ttl_s=10, max_events=5
        )
    active = shared_store.for_tenant("active")
    for _ in range(4):
        now[0] += SWEEP_EVERY_S
        await active.put("note", b"", ttl_s=1)
    assert CountedValue.ended == 0  # it is not over yet
    now[0] += 10
    for _ in range(4):
        now[0] += SWEEP_EVERY_S
        await active.put("note", b"", ttl_s=1)
    assert CountedValue.ended == 6 * OTHERS_SWEPT
