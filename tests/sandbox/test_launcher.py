"""One launcher starts the programs of an event loop, and ends with what it started."""

import asyncio
import gc
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop

from gatepost.sandbox import child, fork_server_client, launch, launcher
from gatepost.sandbox.child import Confined, ProcessResult, run
from tests.sandbox.test_child import group_of, run_program, shell
from tests.support.measuring import eventually, is_alive
from tests.support.processes import python_environment

pytestmark = [
    pytest.mark.requirement("X2"),
    pytest.mark.skipif(
        not fork_server_client.can_fork(), reason="this system has no descriptors of processes"
    ),
]
OPEN_DESCRIPTORS = """
import os
for number in range(3, 256):
    try:
        print(number, os.readlink(f"/proc/self/fd/{number}").split(":")[0])
    except OSError:
        continue
"""


def python(folder: Path, script: str, handles: Sequence[tuple[int, int]] = ()) -> Confined:
    runs = ("/usr", "/bin", "/lib", "/lib64", sys.base_prefix, sys.prefix)
    return Confined(
        argv=(sys.executable, "-I", "-S", "-c", script),
        env={},
        root=str(folder),
        runs=runs,
        reads=("/proc",),
        handles=tuple(handles),
    )


async def launcher_pid(folder: Path) -> int:
    """Return the process that starts the programs of this loop."""
    return int((await run_program(shell(folder, "echo $PPID"))).out)


async def test_programs_of_a_loop_have_one_launcher(tmp_path: Path) -> None:
    """It is started with the first of them, and is none of the server's own processes."""
    first, second = await launcher_pid(tmp_path), await launcher_pid(tmp_path)

    assert first == second != os.getpid()
    assert await asyncio.to_thread(Path(f"/proc/{first}/environ").read_bytes) == b""


async def test_a_program_inherits_its_own_handles_alone(tmp_path: Path) -> None:
    """Not those of the launcher, of programs that run at the same time, or of the server."""
    listening = socket.create_server(("127.0.0.1", 0))
    listening.set_inheritable(True)
    own, other = os.pipe()
    try:
        with listening:
            waiting = [asyncio.create_task(run_program(shell(tmp_path, "sleep 5"))) for _ in "ab"]
            ended = await run_program(python(tmp_path, OPEN_DESCRIPTORS, [(own, 7)]))
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        os.close(own)
        os.close(other)

    assert ended == ProcessResult(0, b"7 pipe\n", b"", (False, False))


async def test_a_program_reads_its_input_and_cannot_change_it(tmp_path: Path) -> None:
    """The input is a file in memory, which counts against no limit of the program."""
    script = (
        "import os, sys\nprint(len(sys.stdin.buffer.read()))\n"
        "for change in (os.ftruncate, os.pwrite):\n"
        "    try:\n        change(0, *((9,) if change is os.ftruncate else (b'x', 0)))\n"
        "    except OSError as error:\n        print(error.strerror)\n"
    )
    ended = await run(
        python(tmp_path, script), timeout_s=20, max_bytes=1_000, input_data=b"x" * 300_000
    )

    assert ended.out.decode().split("\n")[:3] == ["300000", *["Operation not permitted"] * 2]


async def test_many_programs_run_at_the_same_time(tmp_path: Path) -> None:
    """Each has its own output and exit code."""
    ended = await asyncio.gather(
        *(run_program(shell(tmp_path, f"echo {at}; exit {at}")) for at in range(40))
    )

    assert [(each.code, each.out) for each in ended] == [(at, b"%d\n" % at) for at in range(40)]


async def test_a_program_of_very_many_arguments_is_started_by_the_server(tmp_path: Path) -> None:
    """A message to the launcher is limited."""
    script = f"echo $PPID; : {'x' * 100_000}"

    assert int((await run_program(shell(tmp_path, script))).out) == os.getpid()


async def test_a_name_that_is_not_utf_8_is_passed_on(tmp_path: Path) -> None:
    """Such a folder may be the workspace of an operator."""
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()

    ended = await run_program(shell(folder, "pwd"))

    assert ended.out == os.fsencode(folder) + b"\n"


async def test_programs_of_a_killed_launcher_end_and_others_get_a_new_one(tmp_path: Path) -> None:
    """The kernel may kill it when the machine has no memory left."""
    first = await launcher_pid(tmp_path)
    running = asyncio.create_task(run_program(shell(tmp_path, "exec sleep 100"), 120))
    await asyncio.to_thread(eventually, lambda: group_of(tmp_path), within=20)
    (started,) = group_of(tmp_path)
    os.kill(first, signal.SIGKILL)

    assert (await running).code == -signal.SIGKILL
    await asyncio.to_thread(eventually, lambda: not is_alive(started), within=20)
    assert await launcher_pid(tmp_path) != first


LEAVING_CHILDREN = "setsid sleep 100 & sleep 100 & exec sleep 100"


async def test_all_that_programs_started_ends_with_a_killed_launcher(tmp_path: Path) -> None:
    """A child may have left the group of its program; its output does not keep the call."""
    first = await launcher_pid(tmp_path)
    running = asyncio.create_task(run_program(shell(tmp_path, LEAVING_CHILDREN), 120))
    await asyncio.to_thread(eventually, lambda: len(group_of(tmp_path)) == 3, within=20)
    started = group_of(tmp_path)
    os.kill(first, signal.SIGKILL)

    assert (await running).code == -signal.SIGKILL
    await asyncio.to_thread(eventually, lambda: not any(map(is_alive, started)), within=20)


def test_all_that_programs_started_ends_with_a_killed_server(tmp_path: Path) -> None:
    """The launcher sees its end."""
    code = (
        "import asyncio; from gatepost.sandbox import *; "
        f"program = Confined(argv=('/bin/sh', '-c', {LEAVING_CHILDREN!r}), "
        f"env={{'PATH': '/usr/bin:/bin'}}, root={str(tmp_path)!r}); "
        "asyncio.run(run(program, timeout_s=60, max_bytes=9))"
    )
    server = subprocess.Popen([sys.executable, "-c", code], env=python_environment())
    try:
        eventually(lambda: len(group_of(tmp_path)) == 3, within=20)
        started = group_of(tmp_path)
    finally:
        server.kill()
        server.wait(60)

    eventually(lambda: not any(map(is_alive, started)), within=20)


async def test_a_service_manager_ends_programs_but_not_the_launcher(tmp_path: Path) -> None:
    """It may signal all processes of a service; the server then decides how programs end."""
    first = await launcher_pid(tmp_path)
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(first, number)

    ended = [await run_program(shell(tmp_path, f"kill -{name} $$")) for name in ("TERM", "INT")]

    assert [each.code for each in ended] == [-signal.SIGTERM, -signal.SIGINT]
    assert await launcher_pid(tmp_path) == first


async def test_an_idle_launcher_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes memory; the next program starts another one."""
    monkeypatch.setattr(fork_server_client, "IDLE_S", 0.2)
    monkeypatch.setattr(launcher, "COLLECT_S", 0.2)
    first = await launcher_pid(tmp_path)

    await asyncio.to_thread(eventually, lambda: not Path(f"/proc/{first}").exists(), within=20)
    assert await launcher_pid(tmp_path) != first


def test_a_launcher_ends_with_its_loop(tmp_path: Path) -> None:
    """A loop of a test, or of a command, leaves no process behind."""
    first = asyncio.run(launcher_pid(tmp_path))
    gc.collect()

    eventually(lambda: not is_alive(first), within=20)
    asyncio.run(launcher_pid(tmp_path))
    assert first not in [process.pid for process in launcher._processes]


@pytest.mark.parametrize("run_loop", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_call_may_be_cancelled_at_each_moment_of_its_start(
    tmp_path: Path, run_loop: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    """It ends as a cancelled call, and closes no descriptor twice, which may be another's."""

    async def cancel() -> None:
        for moment in range(12):
            task = asyncio.create_task(run_program(shell(tmp_path, "exec sleep 60")))
            for _ in range(moment):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    run_loop(cancel())
    eventually(lambda: not group_of(tmp_path), within=20)


async def test_a_program_that_is_cancelled_at_once_is_asked_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal may come before the process has left what the launcher does with signals."""
    monkeypatch.setattr(child, "GRACE_S", 60.0)
    async with asyncio.timeout(20):
        for moment in range(40):
            task = asyncio.create_task(run_program(shell(tmp_path, "exec sleep 100"), 120))
            for _ in range(moment % 12):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])


async def test_a_launcher_without_descriptors_goes_on(tmp_path: Path) -> None:
    """Programs that cannot be started then do not end those that run."""
    first = await launcher_pid(tmp_path)
    running = asyncio.create_task(run_program(shell(tmp_path, "exec sleep 100"), 120))
    await asyncio.to_thread(eventually, lambda: group_of(tmp_path), within=20)
    limit = resource.prlimit(first, resource.RLIMIT_NOFILE)
    for free in range(1, 6):
        descriptors = len(os.listdir(f"/proc/{first}/fd"))
        resource.prlimit(first, resource.RLIMIT_NOFILE, (descriptors + free, limit[1]))
        assert (await run_program(shell(tmp_path, "true"))).code == launch.NOT_STARTED
    resource.prlimit(first, resource.RLIMIT_NOFILE, limit)

    assert await launcher_pid(tmp_path) == first
    assert not running.done()
    running.cancel()
    await asyncio.wait([running])


async def test_a_launcher_that_does_not_react_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call must not wait for it forever."""
    monkeypatch.setattr(fork_server_client, "STALLED_S", 0.2)
    monkeypatch.setattr(child, "GRACE_S", 0.2)
    first = await launcher_pid(tmp_path)
    running = asyncio.create_task(run_program(shell(tmp_path, "exec sleep 100"), 120))
    await asyncio.to_thread(eventually, lambda: group_of(tmp_path), within=20)
    os.kill(first, signal.SIGSTOP)

    with pytest.raises(TimeoutError):
        await run_program(shell(tmp_path, "true"), 0.2)
    assert (await running).code == -signal.SIGKILL
    await asyncio.to_thread(eventually, lambda: not group_of(tmp_path), within=20)
    assert await launcher_pid(tmp_path) != first


def is_started(folder: Path, count: int) -> bool:
    """Return whether more than *count* processes are in a folder."""
    return len(group_of(folder)) > count


async def test_very_many_cancelled_calls_end_no_other_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signals may be more than the launcher's socket holds."""
    monkeypatch.setattr(child, "GRACE_S", 0.2)
    first = await launcher_pid(tmp_path)
    other = asyncio.create_task(run_program(shell(tmp_path, "sleep 100"), 120))
    calls: list[asyncio.Task[ProcessResult]] = []
    while len(calls) < 160:  # not more at once than the launcher takes
        program = shell(tmp_path, "exec sleep 60")
        calls += [asyncio.create_task(run_program(program, 60)) for _ in range(20)]
        await asyncio.to_thread(eventually, partial(is_started, tmp_path, len(calls)), within=20)
    os.kill(first, signal.SIGSTOP)
    for call in calls:
        call.cancel()
    await asyncio.wait(calls, timeout=1)
    os.kill(first, signal.SIGCONT)
    await asyncio.wait(calls)

    assert await launcher_pid(tmp_path) == first
    assert not other.done()
    other.cancel()
    await asyncio.wait([other])


async def test_input_cannot_be_executed(tmp_path: Path) -> None:
    """It is a file in memory, which Landlock does not restrict."""
    script = (
        "import os\ntry:\n    os.execve(0, ['true'], {})\n"
        "except OSError as error:\n    print(error.strerror)\n"
    )
    ended = await run(
        python(tmp_path, script),
        timeout_s=20,
        max_bytes=1_000,
        input_data=await asyncio.to_thread(Path("/bin/true").read_bytes),
    )

    assert ended == ProcessResult(0, b"Permission denied\n", b"", (False, False))
