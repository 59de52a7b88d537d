"""A confined program has only the access that it is given, and no child outlives it."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from gatepost.sandbox import child
from gatepost.sandbox.child import ANSWERS, SYSTEM, Confined, ProcessResult, confines, run
from gatepost.sandbox.launch import ARCHITECTURES, handled, landlock_version
from tests.support.measuring import eventually, is_alive
from tests.support.processes import python_environment

pytestmark = [
    pytest.mark.requirement("X2"),
    pytest.mark.skipif(sys.platform != "linux", reason="Landlock is Linux's"),
]

PATH = {"PATH": "/usr/bin:/bin"}


@pytest.fixture(autouse=True, params=["forked", "started"])
def way_to_start(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start programs by the launcher, or without it, as where the system cannot fork so."""
    if request.param == "started":
        monkeypatch.setattr("gatepost.sandbox.child.can_fork", lambda: False)


def shell(folder: Path, script: str, /, **more: Any) -> Confined:
    """Return a shell script in a folder that it may write to."""
    usual: dict[str, Any] = {"writes": (str(folder),), "env": PATH}
    return Confined(argv=("/bin/sh", "-c", script), root=str(folder), **(usual | more))


async def run_program(program: Confined, timeout_s: float = 20) -> ProcessResult:
    return await run(program, timeout_s=timeout_s, max_bytes=10_000)


async def test_a_confined_program_uses_what_it_is_allowed(tmp_path: Path) -> None:
    """It runs the system's programs, writes to its own folder and has an exit code."""
    ended = await run_program(shell(tmp_path, "echo out; echo err >&2; echo x > a; cat a; exit 3"))

    assert ended == ProcessResult(3, b"out\nx\n", b"err\n", (False, False))
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600


FORBIDDEN_COMMANDS = [
    ("cat ../secret", "Permission denied"),
    ("ls ..", "Permission denied"),
    ("cat /etc/shadow", "Permission denied"),
    ("cat /proc/1/environ", "Permission denied"),
    ("ls /root /home /tmp /var", "Permission denied"),
    ("echo x > ../made", "ermission denied"),
    ("echo x > /usr/made", "ermission denied"),
    ("rm ../secret", "Permission denied"),
    ("ln -s /etc/passwd link", "Permission denied"),
    ("ln ../secret hard", "cross-device"),
    ("mkfifo pipe", "Permission denied"),
    ("printf '#!/bin/sh\\necho ran' > x; chmod +x x; ./x", "Permission denied"),
    ("cp /bin/echo x && chmod +x x && ./x ran", "Permission denied"),
]


@pytest.mark.skipif(not confines(), reason="this kernel confines nothing")
@pytest.mark.parametrize(
    ("script", "expected_text"),
    FORBIDDEN_COMMANDS,
    ids=[case[0][:30] for case in FORBIDDEN_COMMANDS],
)
async def test_the_kernel_denies_everything_else(
    tmp_path: Path, script: str, expected_text: str
) -> None:
    """Other folders, the server's own process, links, and programs that it wrote itself."""
    (tmp_path / "secret").write_text("the secret")
    folder = tmp_path / "own"
    folder.mkdir()

    ended = await run_program(shell(folder, script))

    assert expected_text in ended.err.decode()
    assert b"the secret" not in ended.out
    assert b"ran" not in ended.out
    assert (tmp_path / "secret").exists()
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("keys", ["/etc/ssl/private", "/etc/pki/tls/private", "/etc/shadow"])
def test_confined_programs_cannot_read_the_keys_of_the_machine(keys: str) -> None:
    """A server that runs as root could read them, and so could its child processes."""
    open_ones = [Path(path) for path in (*ANSWERS, *SYSTEM)]

    assert not [path for path in open_ones if Path(keys).is_relative_to(path)]


@pytest.mark.skipif(landlock_version() < 4, reason="this kernel does not confine connections")
async def test_a_confined_program_connects_only_to_named_ports(tmp_path: Path) -> None:
    """A program without ports gets no connection at all."""
    connects = "import socket; socket.create_connection(('127.0.0.1', {}))"
    script = f'{sys.executable} -I -S -c "{connects}"'
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        runs = {"runs": ("/usr", "/bin", "/lib", "/lib64", sys.base_prefix, sys.prefix)}
        without = await run_program(shell(tmp_path, script.format(port), **runs))
        other = await run_program(shell(tmp_path, script.format(port), ports=(port + 1,), **runs))
        allowed = await run_program(shell(tmp_path, script.format(port), ports=(port,), **runs))

    assert b"PermissionError" in without.err
    assert b"PermissionError" in other.err
    assert (allowed.code, allowed.err) == (0, b"")


@pytest.mark.skipif(
    os.uname().machine not in ARCHITECTURES, reason="the calls of this machine are not known"
)
@pytest.mark.parametrize(
    ("makes", "error"),
    [
        ("socket.socket(socket.AF_INET, socket.SOCK_STREAM)", "PermissionError"),
        ("socket.socket(socket.AF_INET, socket.SOCK_DGRAM)", "PermissionError"),
        ("socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)", "PermissionError"),
        ("socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)", "PermissionError"),
        # io_uring_setup, which would make a socket past the rule for sockets.
        ("os.stat(str(libc.syscall(425, 8, None)) + str(ctypes.get_errno()))", "'-138'"),
        ("socket.socketpair()", ""),
    ],
)
async def test_a_program_without_network_cannot_open_network_sockets(
    tmp_path: Path, makes: str, error: str
) -> None:
    """Landlock leaves UDP; pipes and sockets between its own processes it needs."""
    start = "import ctypes, os, socket; libc = ctypes.CDLL(None, use_errno=True)"
    script = f'{sys.executable} -I -S -c "{start}; {makes}"'
    runs = ("/usr", "/bin", "/lib", "/lib64", sys.base_prefix, sys.prefix)

    ended = await run_program(shell(tmp_path, script, offline=True, runs=runs))

    assert error in ended.err.decode()
    assert bool(ended.err) == bool(error)


async def test_a_folder_that_became_a_link_is_not_entered(tmp_path: Path) -> None:
    """An attacker may have swapped the folder between the check and the start."""
    (tmp_path / "inside").mkdir()
    (tmp_path / "link").symlink_to("/")

    entered = await run_program(shell(tmp_path, "pwd", folder=("inside",)))
    refused = await run_program(shell(tmp_path, "pwd", folder=("link",)))

    assert entered.out.decode().strip() == f"{tmp_path}/inside"
    assert refused == ProcessResult(126, b"", b"cannot start: Not a directory\n", (False, False))


async def test_resource_limits_apply_to_a_confined_program(tmp_path: Path) -> None:
    """A file grows no further; none of the server's variables or files come along."""
    os.environ["LEFT_OVER"] = "x"
    try:
        script = "head -c 5000 /dev/zero > a; wc -c < a; env | grep LEFT; ls /proc/self/fd | wc -l"
        ended = await run_program(shell(tmp_path, script, limits={"FSIZE": 1000}))
    finally:
        del os.environ["LEFT_OVER"]

    assert (tmp_path / "a").stat().st_size == 1000
    assert b"LEFT" not in ended.out


async def test_a_closed_output_ends_a_program(tmp_path: Path) -> None:
    """SIGPIPE ends it as on a terminal, although Python itself ignores that signal."""
    ended = await run_program(shell(tmp_path, "(cat /dev/zero; echo $? >&2) | head -c 1; exit 5"))

    assert (ended.code, ended.out, ended.err) == (5, b"\0", b"141\n")


async def test_a_flood_of_output_is_cut_and_not_waited_for(tmp_path: Path) -> None:
    """Output beyond the limit is dropped as it arrives."""
    ended = await run_program(shell(tmp_path, "head -c 3000000 /dev/zero; echo x >&2"))

    assert (len(ended.out), ended.err, ended.cut) == (10_000, b"x\n", (True, False))


STUBBORN_PROGRAM = (
    "trap '' TERM; (trap '' TERM; echo $$ > b; sleep 60; sleep 60) & echo $$ > a; sleep 60; wait"
)


def group_of(folder: Path) -> list[int]:
    """Return the processes whose working directory is *folder*."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "cwd") == str(folder):
                found.append(int(process.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("ends", ["timeout", "cancelled", "cancelled twice"])
async def test_a_process_that_ignores_the_signal_is_killed_with_its_children(
    tmp_path: Path, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes first; the program and its child ignore it, and both are gone afterwards."""
    monkeypatch.setattr("gatepost.sandbox.child.GRACE_S", 0.2)
    work = asyncio.create_task(
        run_program(shell(tmp_path, STUBBORN_PROGRAM), 1 if ends == "timeout" else 60)
    )
    await asyncio.to_thread(eventually, lambda: len(group_of(tmp_path)) >= 3, within=20)
    started = group_of(tmp_path)
    if ends != "timeout":
        work.cancel()
    if ends == "cancelled twice":
        await asyncio.sleep(0)
        work.cancel()
    with pytest.raises((TimeoutError, asyncio.CancelledError)):
        await work

    eventually(lambda: not any(is_alive(pid) for pid in started), within=20)


async def test_a_child_that_outlives_its_parent_is_killed(tmp_path: Path) -> None:
    """A child that its parent left behind is killed soon."""
    ended = await run_program(shell(tmp_path, "sleep 60 > /dev/null 2>&1 & echo $!"))

    eventually(lambda: not is_alive(int(ended.out)), within=20)


async def test_a_call_that_is_cancelled_while_it_starts_leaves_no_process(tmp_path: Path) -> None:
    """The program may have started others before the busy server learns of its start."""
    async with asyncio.timeout(30):
        for moment in range(6):
            task = asyncio.create_task(run_program(shell(tmp_path, "sleep 61; true"), 120))
            for _ in range(moment):
                await asyncio.sleep(0)
            Event().wait(0.3)  # other work holds the loop up
            task.cancel()
            await asyncio.wait([task])

        await asyncio.to_thread(eventually, lambda: not group_of(tmp_path), within=20)
        await asyncio.to_thread(eventually, lambda: not child._endings, within=20)


def test_a_confined_program_ends_with_the_server(tmp_path: Path) -> None:
    """This holds even if the server is killed."""
    script = (
        "import asyncio; from gatepost.sandbox.child import *; "
        "from gatepost.sandbox import child; "
        f"child.can_fork = lambda: {child.can_fork()}; "
        "program = Confined(argv=('/bin/sh', '-c', 'exec sleep 60'), env={}, "
        f"root={str(tmp_path)!r}); asyncio.run(run(program, timeout_s=60, max_bytes=9))"
    )
    server = subprocess.Popen([sys.executable, "-c", script], env=python_environment())
    try:
        eventually(lambda: b"sleep" in b"".join(map(command_of, group_of(tmp_path))), within=20)
        (started,) = group_of(tmp_path)
    finally:
        server.kill()
        server.wait(60)

    eventually(lambda: not is_alive(started), within=20)


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_each_landlock_version_gets_only_its_own_rules() -> None:
    """An older kernel refuses rules of a newer one altogether."""
    assert handled(1) == ((1 << 13) - 1, 0, 0)
    assert handled(3) == ((1 << 15) - 1, 0, 0)
    assert handled(4)[1:] == (3, 0)
    assert handled(6)[1:] == (3, 3)
