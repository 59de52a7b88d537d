"""
Two processes at one database: the database decides, and it keeps what it took.

`python -m tests.storage.test_processes` is such a process, driven line by line. Each line it reads
is a JSON array of a database's URL, an operation's name and its arguments. Each line it prints is
the operation's answer. A database is opened by the first operation that names it.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gatepost.storage.backends import open_records
from gatepost.storage.records import Records
from gatepost.telemetry.logs import configure
from tests.conftest import idempotency_record, outbox_message, task
from tests.storage.test_approvals import approval
from tests.support.processes import Process, python_environment

FOREVER_S = 1e9


async def begin_records(records: Records, holder: str, keys: list[str]) -> list[str]:
    """Claim every key, all at once; return those that this process claimed."""
    idempotency = records.for_tenant("acme").idempotency

    async def one(key: str) -> str | None:
        met = await idempotency.begin(idempotency_record(key=key.encode(), holder=holder), now=0.0)
        return key if met is None else None

    return [key for key in await asyncio.gather(*map(one, keys)) if key is not None]


async def subscribe(records: Records, names: list[str]) -> int:
    """Add every name to one session, all at once, each by its own reading; how many tries."""
    sessions, tries = records.for_tenant("acme").sessions, 0

    async def one(name: str) -> None:
        nonlocal tries
        while True:
            tries += 1
            read = await sessions.get(b"s")
            more = msgspec.structs.replace(read, subscriptions=(*read.subscriptions, name))
            if await sessions.replace(b"s", more, expires_at=FOREVER_S):
                return

    await asyncio.gather(*map(one, names))
    return tries


async def take_over(records: Records, holder: str, keys: list[str]) -> list[str]:
    """Take over every record of the holder `gone`; return those that this process took over."""
    idempotency = records.for_tenant("acme").idempotency

    async def one(key: str) -> str | None:
        was = idempotency_record(key=key.encode(), holder="gone")
        mine = await idempotency.take_over(
            idempotency_record(key=key.encode(), holder=holder), expected=was
        )
        return key if mine else None

    return [key for key in await asyncio.gather(*map(one, keys)) if key is not None]


async def put_entries(records: Records, holder: str, keys: list[str]) -> list[str]:
    """Put every entry that was read at its first revision; those that this process put."""
    entries = records.for_tenant("acme").entries("race")

    async def one(key: str) -> str | None:
        return key if await entries.put(key, holder.encode(), now=0.0, revision=1) else None

    return [key for key in await asyncio.gather(*map(one, keys)) if key is not None]


async def write_always(records: Records) -> None:
    """Keep task after task, and say of each that it is kept, until killed."""
    tasks, idempotency = records.for_tenant("acme").tasks, records.for_tenant("acme").idempotency
    entries = records.for_tenant("acme").entries("kept")
    number = 0
    while True:
        number += 1
        await tasks.create(task(id=f"t{number}", call=b"x" * 500))
        await idempotency.begin(idempotency_record(key=b"k%d" % number), now=0.0)
        await idempotency.finish(b"k%d" % number, "h1", b"done %d" % number, FOREVER_S)
        await entries.put("latest", b"%d" % number, now=0.0)
        print(number, flush=True)  # noqa: T201  # this is how it talks


async def ask_always(records: Records) -> None:
    """Open request after request, each with its message, and say so, until killed."""
    approvals = records.for_tenant("acme").approvals
    number = 0
    while True:
        number += 1
        name = f"a{number}"
        stored = approval(id=name, binding=name.encode())
        await approvals.open(stored, outbox_message(id=f"m{number}", ordering_key=name))
        print(number, flush=True)  # noqa: T201  # this is how it talks


OPERATIONS: dict[str, Callable[..., Awaitable[Any]]] = {
    operation.__name__: operation
    for operation in (begin_records, subscribe, take_over, put_entries, write_always, ask_always)
}


async def main() -> None:
    """Do what is asked until the input ends."""
    # Its standard output is for answers alone.
    configure(level="info", form="json")
    opened: dict[str, Records] = {}
    while line := await asyncio.to_thread(sys.stdin.readline):
        url, name, *arguments = json.loads(line)
        if url not in opened:
            opened[url] = await open_records(url)
        print(json.dumps(await OPERATIONS[name](opened[url], *arguments)), flush=True)  # noqa: T201
    for records in opened.values():
        await records.aclose()


KEYS = [f"k{number}" for number in range(60)]


class Peer(Process):
    """Another process with connections of its own."""

    def begin(self, url: str, operation: str, *arguments: Any) -> None:
        """Start an operation at a database; `answer` waits for its end."""
        self.write_line(json.dumps([url, operation, *arguments]))

    def answer(self) -> Any:
        """Return the answer of the operation."""
        return json.loads(self.next_line())


@contextlib.contextmanager
def running_peers(number: int) -> Iterator[list[Peer]]:
    """Run that number of processes."""
    command = [sys.executable, "-m", "tests.storage.test_processes"]
    with contextlib.ExitStack() as stack:
        peers = [Peer(command, env=python_environment()) for _ in range(number)]
        for peer in peers:
            stack.callback(peer.kill)
        yield peers


@pytest.fixture(scope="module")
def peers() -> Iterator[list[Peer]]:
    """Yield three processes for all tests of this file: each takes a second to start."""
    with running_peers(3) as peers:
        yield peers


@pytest.fixture
def peers_at(peers: list[Peer], sql_url: str) -> list[Peer]:
    """Return the same processes, each with this test's database open."""
    for peer in peers:
        peer.begin(sql_url, "begin_records", "nobody", [])
    assert [peer.answer() for peer in peers] == [[]] * len(peers)
    return peers


def test_each_key_has_one_holder_among_processes(peers_at: list[Peer], sql_url: str) -> None:
    """All processes ask for all keys at the same time."""
    for at, peer in enumerate(peers_at):
        peer.begin(sql_url, "begin_records", f"holder{at}", KEYS)
    claimed = [key for peer in peers_at for key in peer.answer()]

    assert sorted(claimed) == sorted(KEYS)


def test_one_process_takes_over_the_key_of_a_gone_holder(
    peers_at: list[Peer], sql_url: str
) -> None:
    """Exactly one of the processes that ask takes over the call."""
    gone, *others = peers_at
    gone.begin(sql_url, "begin_records", "gone", KEYS)
    assert gone.answer() == KEYS
    for at, peer in enumerate(others):
        peer.begin(sql_url, "take_over", f"holder{at}", KEYS)
    taken = [key for peer in others for key in peer.answer()]

    assert sorted(taken) == sorted(KEYS)


async def test_one_of_several_processes_changes_each_entry(
    peers_at: list[Peer], sql_url: str
) -> None:
    """All have read the same revision of each entry."""
    records = await open_records(sql_url)
    entries = records.for_tenant("acme").entries("race")
    for key in KEYS:
        assert await entries.put(key, b"", now=0.0, revision=0)
    for at, peer in enumerate(peers_at):
        peer.begin(sql_url, "put_entries", f"holder{at}", KEYS)
    won = {key: b"holder%d" % at for at, peer in enumerate(peers_at) for key in peer.answer()}
    stored = await entries.all()
    await records.aclose()

    assert {entry.key: entry.value for entry in stored} == won
    assert {entry.revision for entry in stored} == {2}


async def test_two_processes_keep_each_others_changes_of_a_session(
    peers_at: list[Peer], sql_url: str
) -> None:
    """Read, add, replace, on both sides: what either added is there."""
    names = [[f"{side}{number}" for number in range(8)] for side in "ab"]
    for peer, expected in zip(peers_at, names, strict=False):
        peer.begin(sql_url, "subscribe", expected)
    assert all(peer.answer() >= 8 for peer in peers_at[:2])
    records = await open_records(sql_url)
    session = await records.for_tenant("acme").sessions.get(b"s")
    await records.aclose()

    assert sorted(session.subscriptions) == sorted(names[0] + names[1])
    assert session.revision == 16


async def test_acknowledged_writes_survive_a_kill(sql_url: str) -> None:
    """After SIGKILL in the middle of writing, every acknowledged write is complete."""
    with running_peers(1) as (writer,):
        writer.begin(sql_url, "write_always")
        for _ in range(40):
            writer.next_line()
        writer.kill()
        # Read only now: what it printed before it died counts too.
        acknowledged = int(writer.stdout.split()[-1])
    records = await open_records(sql_url)
    acme = records.for_tenant("acme")
    tasks = [await acme.tasks.get(f"t{number}") for number in range(1, acknowledged + 1)]
    latest = await acme.entries("kept").get("latest")
    ended = [await acme.idempotency.get(b"k%d" % number) for number in range(1, acknowledged + 1)]
    await records.aclose()

    assert acknowledged >= 40
    assert all(task is not None and task.call == b"x" * 500 for task in tasks)
    assert latest is not None
    assert int(latest.value) == latest.revision >= acknowledged
    assert ended == [
        idempotency_record(key=b"k%d" % number, outcome=b"done %d" % number, expires_at=1e9)
        for number in range(1, acknowledged + 1)
    ]


async def test_a_kill_keeps_a_request_and_its_webhook_message_together(sql_url: str) -> None:
    """SIGKILL in the middle of both: either is there with the other, or neither is."""
    with running_peers(1) as (writer,):
        writer.begin(sql_url, "ask_always")
        for _ in range(40):
            writer.next_line()
        writer.kill()
        acknowledged = int(writer.stdout.split()[-1])
    records = await open_records(sql_url)
    requests: set[str] = set()
    answered_ids: set[str] = set()
    async with asyncio.timeout(20):
        # What it had sent last may be carried out by PostgreSQL between two looks at it.
        while len(requests) < acknowledged or answered_ids != requests:
            requests = {
                request.id for request in await records.for_tenant("acme").approvals.waiting(10_000)
            }
            leased = await records.lease_messages(2_000.0, 2_030.0, "h", 10_000)
            answered_ids |= {message.ordering_key for _, message in leased}
    await records.aclose()

    assert len(answered_ids) >= acknowledged >= 40


def test_several_processes_can_open_a_new_file_at_once(peers: list[Peer], tmp_path: Path) -> None:
    """The first process makes the tables; no process fails, and none makes them again."""
    for attempt in range(4):
        url = f"sqlite:///{tmp_path}/new{attempt}.db"
        for at, peer in enumerate(peers):
            peer.begin(url, "begin_records", f"h{at}", KEYS)
        claimed = [key for peer in peers for key in peer.answer()]

        assert sorted(claimed) == sorted(KEYS)


if __name__ == "__main__":
    # What is logged is none of its answers.
    configure(level="info", form="console")
    asyncio.run(main())
