"""Two processes at one database: the database decides, whoever asks; what it took it keeps."""

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from gatepost.stores.backends import open_records
from tests.contract.samples import claim
from tests.support.process import Process, python_environment

KEYS = [f"k{number}" for number in range(60)]


class Peer(Process):
    """Another process with connections of its own."""

    def begin(self, job: str, *arguments: Any) -> None:
        """Have it do something; `answer` waits for the end."""
        self.write_line(json.dumps([job, *arguments]))

    def answer(self) -> Any:
        """What came of it."""
        return json.loads(self.next_line())


@contextlib.contextmanager
def peers(url: str, number: int) -> Iterator[list[Peer]]:
    """So many processes that have opened the database."""
    command = [sys.executable, "-m", "tests.contract.peer", url]
    with contextlib.ExitStack() as stack:
        started = []
        for _ in range(number):
            peer = Peer(command, env=python_environment())
            stack.callback(peer.kill)
            started.append(peer)
        for peer in started:
            peer.begin("begin", "nobody", [])
        assert [peer.answer() for peer in started] == [[]] * number
        yield started


def test_a_key_is_claimed_by_one_process(sql_url: str) -> None:
    """Both want all keys at the same time: each key is exactly one's."""
    with peers(sql_url, 2) as (first, second):
        first.begin("begin", "first", KEYS)
        second.begin("begin", "second", KEYS)
        ours, theirs = first.answer(), second.answer()

    assert sorted([*ours, *theirs]) == sorted(KEYS)


def test_a_holder_that_is_gone_is_replaced_by_one_process(sql_url: str) -> None:
    """The call is looked after by one of those who notice."""
    with peers(sql_url, 3) as (gone, first, second):
        gone.begin("begin", "gone", KEYS)
        assert gone.answer() == KEYS
        first.begin("take_over", "first", KEYS)
        second.begin("take_over", "second", KEYS)
        ours, theirs = first.answer(), second.answer()

    assert sorted([*ours, *theirs]) == sorted(KEYS)


async def test_two_processes_lose_nothing_of_a_session(sql_url: str) -> None:
    """Read, add, replace, on both sides: what either added is there."""
    names = [[f"{side}{number}" for number in range(8)] for side in "ab"]
    with peers(sql_url, 2) as both:
        for peer, wanted in zip(both, names, strict=True):
            peer.begin("subscribe", wanted)
        assert all(peer.answer() >= 8 for peer in both)
    records = await open_records(sql_url)
    session = await records.of("acme").sessions.get(b"s")
    await records.aclose()

    assert sorted(session.subscriptions) == sorted(names[0] + names[1])
    assert session.revision == 16


async def test_what_was_acknowledged_outlives_a_kill(sql_url: str) -> None:
    """SIGKILL in the middle of writing: nothing that was said to be kept is missing or half."""
    with peers(sql_url, 1) as (writer,):
        writer.begin("write_always")
        for _ in range(40):
            writer.next_line()
        writer.kill()
        # Read only now: what it printed before it died counts too.
        acknowledged = int(writer.stdout.split()[-1])
    records = await open_records(sql_url)
    acme = records.of("acme")
    kept = [await acme.tasks.get(f"t{number}") for number in range(1, acknowledged + 1)]
    ended = [await acme.claims.get(b"k%d" % number) for number in range(1, acknowledged + 1)]
    await records.aclose()

    assert acknowledged >= 40
    assert all(one is not None and one.call == b"x" * 500 for one in kept)
    assert ended == [
        claim(key=b"k%d" % number, outcome=b"done %d" % number, expires_at=1e9)
        for number in range(1, acknowledged + 1)
    ]


@pytest.mark.parametrize("number", [3])
def test_a_new_file_may_be_opened_by_several_at_once(tmp_path_factory: Any, number: int) -> None:
    """Whoever comes first makes the tables; nobody fails, and nobody makes them twice."""
    for attempt in range(2):
        folder = tmp_path_factory.mktemp(f"fresh{attempt}")
        with peers(f"sqlite:///{folder}/new.db", number) as together:
            for at, peer in enumerate(together):
                peer.begin("begin", f"h{at}", KEYS)
            claimed = [key for peer in together for key in peer.answer()]

        assert sorted(claimed) == sorted(KEYS)
