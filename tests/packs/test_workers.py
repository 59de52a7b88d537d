"""A worker answers each request in a process of its own, which is forked from one that is ready."""

import asyncio
import gc
import os
import signal
from pathlib import Path

import pytest

from gatepost.sandbox.fork_server_client import can_fork
from gatepost.sandbox.launch import landlock_version
from gatepost_packs.child.process import WorkerFailed, ask
from tests.support.measuring import each, eventually, is_alive

pytestmark = pytest.mark.requirement("X2")
forks_only = pytest.mark.skipif(not can_fork(), reason="this system has no fork servers")

WORKER = """
import _thread
import os
import resource
import signal
import socket
import subprocess
import time
from pathlib import Path

SAMPLE = {"call": "nothing"}
SEEN = []


def nothing(argument):
    return None


def remember(argument):
    SEEN.append(argument)
    return SEEN


def processes(argument):
    return [os.getpid(), os.getppid(), os.getpgid(0)]


def end(argument):
    os.kill(os.getpid(), argument)


def wait(argument):
    while "# go" + " on" not in Path(argument).read_text():
        time.sleep(0.02)
    return "waited"


def outlive(argument):
    if not os.fork():
        os.closerange(0, 256)
        time.sleep(600)
    return os.getpid()


def spin(argument):
    while True:
        pass


def many_values(argument):
    return [0] * argument


def harm(argument):
    harms = {
        "a sibling": lambda: os.kill(argument, 0),
        "its parent": lambda: os.kill(os.getppid(), 0),
        "the memory of its parent": lambda: open(f"/proc/{os.getppid()}/mem", "rb"),
        "a file": lambda: open("/tmp/written", "w"),
        "a file of Python's": lambda: open(os.__file__, "a"),
        "a secret": lambda: open("/etc/shadow"),
        "a program": lambda: subprocess.run(["/bin/true"]),
        "a process": lambda: os.fork() or os._exit(0),
        "a thread": lambda: _thread.start_new_thread(nothing, ()),
        "a connection": lambda: socket.create_connection(("127.0.0.1", 9), 1),
        "a datagram": lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"a", ("127.0.0.1", 9)),
        "more memory": lambda: bytearray(2_000_000_000),
        "a limit": lambda: resource.setrlimit(resource.RLIMIT_AS, (-1, -1)),
    }
    outcomes = {}
    for name, work in harms.items():
        try:
            work()
        except (OSError, MemoryError, ValueError, RuntimeError) as error:
            outcomes[name] = type(error).__name__
    return outcomes


def answer(request):
    return globals()[request["call"]](request.get("argument"))
"""


@pytest.fixture
def worker(tmp_path: Path) -> Path:
    path = tmp_path / "worker.py"
    path.write_text(WORKER, encoding="utf-8")
    return path


@pytest.fixture(params=["forked", "started"])
def way_to_start(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer requests by a fork server, or without it, as where the system has none."""
    if request.param == "started":
        monkeypatch.setattr("gatepost.sandbox.child.can_fork", lambda: False)


@pytest.mark.usefixtures("way_to_start")
async def test_nothing_of_a_request_is_left_for_the_next_one(worker: Path) -> None:
    """A hostile page or calendar of one tenant changes nothing of another's."""
    for text in ("first", "second"):
        request = {"call": "remember", "argument": text}
        assert await ask(worker, request, timeout_s=20) == [text]


@pytest.mark.usefixtures("way_to_start")
@each("number", [signal.SIGSEGV, signal.SIGKILL], ids=lambda number: number.name)
async def test_a_worker_that_crashes_fails_its_own_request(
    worker: Path, number: signal.Signals
) -> None:
    """The input may break a library."""
    with pytest.raises(WorkerFailed):
        await ask(worker, {"call": "end", "argument": number}, timeout_s=20)

    assert await ask(worker, {"call": "nothing"}, timeout_s=20) is None


@pytest.mark.usefixtures("way_to_start")
async def test_an_answer_of_very_many_values_is_none(worker: Path) -> None:
    """All other calls wait while values are decoded, and a library may have been broken."""
    answer = await ask(worker, {"call": "many_values", "argument": 900}, timeout_s=20)
    with pytest.raises(WorkerFailed):
        await ask(worker, {"call": "many_values", "argument": 2_000}, timeout_s=20)

    assert answer == [0] * 900


@pytest.mark.usefixtures("way_to_start")
async def test_a_worker_that_takes_too_long_is_ended(worker: Path) -> None:
    """The input may keep it busy forever."""
    with pytest.raises(TimeoutError):
        await ask(worker, {"call": "spin"}, timeout_s=0.5)

    assert await ask(worker, {"call": "nothing"}, timeout_s=20) is None


async def test_processes_that_a_worker_leaves_behind_are_killed(
    worker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that was broken may start some; a worker that is forked can start none."""
    monkeypatch.setattr("gatepost.sandbox.child.can_fork", lambda: False)
    pid = await ask(worker, {"call": "outlive"}, timeout_s=20)

    await asyncio.to_thread(eventually, lambda: not group_members(pid), within=20)


def group_members(group: int) -> list[int]:
    """Return the living processes of a group."""
    members = []
    for path in Path("/proc").glob("[0-9]*"):
        pid = int(path.name)
        try:
            if os.getpgid(pid) == group and is_alive(pid):
                members.append(pid)
        except ProcessLookupError:
            continue
    return members


@forks_only
async def test_requests_are_forked_from_one_process(worker: Path) -> None:
    """It has imported the worker; each request has a process group of its own."""
    found = await asyncio.gather(
        *(ask(worker, {"call": "processes"}, timeout_s=20) for _ in range(20))
    )

    assert len({parent for _, parent, _ in found}) == 1
    assert len({pid for pid, _, _ in found}) == 20
    assert all(pid == group for pid, _, group in found)


@forks_only
async def test_a_crash_replaces_the_process_but_fails_no_other_request(worker: Path) -> None:
    """Forked processes have the same addresses, which repeated crashes could find out."""
    _, before, _ = await ask(worker, {"call": "processes"}, timeout_s=20)
    waiting = asyncio.create_task(
        ask(worker, {"call": "wait", "argument": str(worker)}, timeout_s=20)
    )
    with pytest.raises(WorkerFailed):
        await ask(worker, {"call": "end", "argument": signal.SIGSEGV}, timeout_s=20)

    _, after, _ = await ask(worker, {"call": "processes"}, timeout_s=20)
    assert after != before
    await asyncio.to_thread(worker.write_text, WORKER + "# go on\n", "utf-8")
    assert await waiting == "waited"
    await asyncio.to_thread(eventually, lambda: not is_alive(before), within=20)


@forks_only
@pytest.mark.skipif(landlock_version() < 6, reason="this kernel does not confine signals")
async def test_a_request_reaches_nothing_of_the_others(worker: Path) -> None:
    """A page that takes over its process cannot read the next tenant's page."""
    sibling = asyncio.create_task(ask(worker, {"call": "spin"}, timeout_s=60))
    pid, parent, _ = await ask(worker, {"call": "processes"}, timeout_s=20)
    others: list[int] = []

    def has_sibling() -> bool:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text("ascii").split()
        others[:] = [int(child) for child in children if int(child) != pid]
        return bool(others)

    await asyncio.to_thread(eventually, has_sibling, within=20)

    outcomes = await ask(worker, {"call": "harm", "argument": others[0]}, timeout_s=20)

    sibling.cancel()
    await asyncio.wait([sibling])
    assert outcomes == {
        "a sibling": "PermissionError",
        "its parent": "PermissionError",
        "the memory of its parent": "PermissionError",
        "a file": "PermissionError",
        "a file of Python's": "PermissionError",
        "a secret": "PermissionError",
        "a program": "PermissionError",
        "a process": "PermissionError",
        "a thread": "RuntimeError",
        "a connection": "PermissionError",
        "a datagram": "PermissionError",
        "more memory": "MemoryError",
        "a limit": "ValueError",
    }


@forks_only
async def test_processes_that_do_not_react_are_replaced(
    worker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker can stop all of them where the kernel does not confine signals."""
    monkeypatch.setattr("gatepost.sandbox.fork_server_client.STALLED_S", 0.2)
    monkeypatch.setattr("gatepost.sandbox.child.GRACE_S", 0.2)
    _, ready, _ = await ask(worker, {"call": "processes"}, timeout_s=20)
    stopped = (parent_of(ready), ready)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        await ask(worker, {"call": "nothing"}, timeout_s=0.2)

    assert await ask(worker, {"call": "nothing"}, timeout_s=20) is None
    await asyncio.to_thread(eventually, lambda: not any(map(is_alive, stopped)), within=20)


def parent_of(pid: int) -> int:
    """Return the parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[1])


@forks_only
async def test_a_worker_that_cannot_be_imported_fails(tmp_path: Path) -> None:
    """A file of an installation may be damaged."""
    path = tmp_path / "worker.py"
    path.write_text("raise ImportError", encoding="utf-8")

    with pytest.raises(WorkerFailed):
        await ask(path, {}, timeout_s=20)

    path.write_text(WORKER, encoding="utf-8")
    assert await ask(path, {"call": "nothing"}, timeout_s=20) is None


@forks_only
def test_the_process_that_is_ready_ends_with_its_loop(worker: Path) -> None:
    """A loop of a test, or of a command, leaves no process behind."""
    _, parent, _ = asyncio.run(ask(worker, {"call": "processes"}, timeout_s=20))
    gc.collect()

    eventually(lambda: not is_alive(parent), within=20)
