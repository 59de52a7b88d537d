"""The process of a script always ends, and the server trusts nothing that it sends."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gatepost.sandbox import child
from gatepost_packs.scripts.errors import REASONS, failure_of
from gatepost_packs.scripts.process import (
    FOLDERS,
    MAX_DEPTH,
    MAX_FRAME,
    PYTHON,
    SIGNAL_REASONS,
    WORKER,
    Host,
    ScriptFailed,
    ScriptResult,
    ScriptWork,
    depth_of,
    end_of,
    perform,
    program_of,
)
from gatepost_packs.scripts.settings import ScriptsSettings
from tests.support.measuring import each, eventually, is_alive


def children_of(parent: int) -> set[int]:
    """Return the children of a process, zombies included."""
    return {pid for pid, its_parent in _parents().items() if its_parent == parent}


def descendants_of(ancestor: int) -> set[int]:
    """Return the children of a process, and their children in turn."""
    parents, found, added = _parents(), set[int](), {ancestor}
    while added:
        added = {pid for pid, parent in parents.items() if parent in added}
        found |= added
    return found


def _parents() -> dict[int, int]:
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
            parents[int(folder.name)] = int(text.rpartition(")")[2].split()[1])
    return parents


def workers() -> set[int]:
    """Return the processes of this server that run scripts, or fork those that do."""
    found = set()
    for pid in descendants_of(os.getpid()):
        with contextlib.suppress(OSError):
            if WORKER.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                found.add(pid)
    return found


pytestmark = pytest.mark.requirement("P10")

SETTINGS = ScriptsSettings(timeout_s=10, cpu_s=1, max_output_bytes=2_000)


class Tools:
    """Answers calls of a script, and keeps them."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Mapping[str, Any]]] = []
        self.called = asyncio.Event()
        self.never = asyncio.Event()

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        self.calls.append((tool, arguments))
        self.called.set()
        if tool == "never":
            await self.never.wait()
        return {"error": "it is broken", "kind": "internal"} if tool == "bad" else {"ok": arguments}

    async def tell(self, seconds: float, so_far: str) -> None:
        self.calls.append((so_far, {}))


async def run(
    code: str, *args: Any, settings: ScriptsSettings = SETTINGS, **more: Any
) -> ScriptResult:
    tools = more.pop("tools", None) or Tools()
    work = ScriptWork(file="x.star", code=code, function="main" if args else None, args=list(args))
    return await perform(work, Host(tools.call, tools.tell), settings, **more)


def children() -> set[int]:
    return children_of(os.getpid())


@pytest.fixture(params=["forked", "started"])
def way_to_start(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Fork a process for each script, or start one, as where the system cannot fork so."""
    if request.param == "started":
        monkeypatch.setattr("gatepost.sandbox.child.can_fork", lambda: False)
    return str(request.param)


async def run_instead(does: str, folder: Path, **more: Any) -> ScriptResult:
    """Run a worker whose interpreter an attacker controls: `value` is what it answers."""
    script = folder / "controlled.py"
    script.write_text(
        "import os, resource, signal, socket, sys\n"
        f"sys.path.append({str(Path(WORKER).parent)!r})\n"
        "import worker\n"
        "def run(self):\n"
        f"{does}\n"
        "    return value\n"
        "confine = worker.confine\n"
        "def confine_first(*arguments):\n"
        "    confine(*arguments)\n"
        "    worker.Worker.run = run\n"
        "worker.confine = confine_first\n"
        "worker.main()\n",
        encoding="utf-8",
    )
    program = program_of(str(script), str(Path(WORKER).parent))
    if not child.can_fork():
        more["command"] = (*PYTHON, str(script), *FOLDERS)
    return await run("1", program=program, **more)


@pytest.mark.usefixtures("way_to_start")
async def test_a_worker_has_no_environment_and_no_files_of_the_server(tmp_path: Path) -> None:
    """It has only its streams open, and its working folder is `/`."""
    handles = (
        "    def is_open(number):\n"
        "        try: return bool(os.fstat(number))\n"
        "        except OSError: return False\n"
        "    value = [dict(os.environ), os.getcwd(), [n for n in range(256) if is_open(n)]]"
    )

    ran = await run_instead(handles, tmp_path)

    environment, folder, handles = ran.value
    assert set(environment) <= {"LC_CTYPE"}
    assert folder == "/"
    assert handles == [0, 1, 2]


ESCAPE_ATTEMPTS = {
    "read a file": "open('/etc/hostname').read()",
    "read its own program": "open(worker.__file__).read()",
    "write a file": "open('/tmp/gatepost-worker', 'w').write('x')",
    "list a folder": "os.listdir('/')",
    "open a socket": "socket.socket()",
    "open a socket of the machine": "socket.socket(socket.AF_UNIX)",
    "make a pipe": "os.pipe()",
    "start a process": "os.fork() or os._exit(0)",
    "start a thread": "__import__('_thread').start_new_thread(print, ())",
    "have more open files": "resource.setrlimit(resource.RLIMIT_NOFILE, (9, 9)); os.open('/', 0)",
    "signal the server": "os.kill(os.getppid(), 0)",
    "take memory": "bytearray(200_000_000)",
}


@pytest.mark.usefixtures("way_to_start")
@each("attempt", ESCAPE_ATTEMPTS.values(), ids=ESCAPE_ATTEMPTS.keys())
async def test_a_worker_is_refused_every_resource(attempt: str, tmp_path: Path) -> None:
    """This holds even if an attacker controls its interpreter."""
    does = (
        "    try:\n"
        f"        {attempt}\n"
        "        value = 'done'\n"
        "    except (OSError, ValueError, MemoryError, RuntimeError) as error:\n"
        "        value = 'refused'"
    )

    small = ScriptsSettings(timeout_s=10, cpu_s=1, memory_mb=64)
    ran = await run_instead(does, tmp_path, settings=small)

    assert ran.value == "refused"


WORKER_PROLOGUE = """
import json, os, struct, sys, time

def w(data):
    while data:
        data = data[os.write(1, data):]

def f(data):
    w(struct.pack(">I", len(data)) + data)

def t(kind, **members):
    f(json.dumps({"type": kind, **members}).encode())

def nested(kind, member, depth):
    data = b'{"a":' * depth + b"1" + b"}" * depth
    f(b'{"type":"%s","tool":"x","%s":' % (kind, member) + data + b"}")

"""
MALFORMED_REPLIES = {
    "nothing": "",
    "a length and no frame": "w(bytes([0, 0, 0, 5]))",
    "half a length": "w(bytes([0]))",
    "no JSON": "f(b'{')",
    "no UTF-8": """f(b'{"type":"print","text":"' + bytes([255]) + b'"}')""",
    "another type": "t('exec', text='x')",
    "no type": "f(b'{}')",
    "a list": "f(b'[]')",
    "a number for a text": "t('print', text=1)",
    "arguments that are no object": "t('call', tool='x', arguments=[])",
    "a frame of four gigabytes": "w(bytes([255] * 100))",
    "a frame a little too large": f"w(({MAX_FRAME + 1}).to_bytes(4, 'big'))",
    "deep data": "nested(b'done', b'value', 100_000)",
    "a little too deep": "nested(b'done', b'value', 65)",
    "deep arguments": "nested(b'call', b'arguments', 65)",
    "a reason of its own": "t('failed', reason='{it}', message='{0}')",
    "more text than may be": "for _ in range(9): t('print', text='x' * 900)",
    "calls without end": "for _ in range(999): t('call', tool='x', arguments={})",
    "empty texts without end": "while True: t('print', text='')",
    "an exit": "os._exit(3)",
    "a signal": "os.kill(os.getpid(), 9)",
    "a stack that is over": "os.kill(os.getpid(), 11)",
}


@each("malformed_reply", MALFORMED_REPLIES.values(), ids=MALFORMED_REPLIES.keys())
async def test_any_output_of_a_worker_ends_in_a_failure_with_a_sentence(
    malformed_reply: str,
) -> None:
    """An attacker may control its interpreter."""
    before = children()

    with pytest.raises(ScriptFailed) as ended:
        await run(
            "1", command=(sys.executable, "-I", "-S", "-c", WORKER_PROLOGUE + malformed_reply)
        )

    failure = failure_of(ended.value, "x.star", SETTINGS).failure
    assert failure.message.startswith("Script 'x.star' ")
    assert children() == before


HANGING_WORKERS = {
    "without a word": "while True: time.sleep(9)",
    "with its pipe closed": "os.close(1)\nwhile True: time.sleep(9)",
    "deaf to signals": "import signal\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\n"
    "while True: time.sleep(9)",
    "with a child": "os.fork()\nwhile True: time.sleep(9)",
}


@pytest.mark.parametrize("does", HANGING_WORKERS.values(), ids=HANGING_WORKERS.keys())
async def test_a_worker_that_does_not_end_is_killed(does: str) -> None:
    """Its timeout ends it with all its child processes."""
    before = children()
    short = ScriptsSettings(timeout_s=0.3)

    with pytest.raises(ScriptFailed) as ended:
        await run(
            "1", settings=short, command=(sys.executable, "-I", "-S", "-c", WORKER_PROLOGUE + does)
        )

    assert ended.value.reason == "wall"
    assert children() == before


@pytest.mark.usefixtures("way_to_start")
async def test_a_killed_worker_is_reported() -> None:
    """The kernel kills it when memory runs out, for example; the next run has a new process."""
    assert (await run("1")).value == 1
    tools, before = Tools(), workers()
    running = asyncio.create_task(run("call('never')", tools=tools))
    await asyncio.wait_for(tools.called.wait(), 10)
    (pid,) = workers() - before
    tools.never.set()
    os.kill(pid, signal.SIGKILL)

    with pytest.raises(ScriptFailed) as ended:
        await asyncio.wait_for(running, 10)

    assert ended.value.reason == "killed"
    assert (await run("2")).value == 2


@pytest.mark.usefixtures("way_to_start")
async def test_a_cancelled_call_leaves_no_process() -> None:
    """The worker ends at once, in the middle of its work."""
    assert (await run("1")).value == 1
    tools, before = Tools(), workers()
    running = asyncio.create_task(run("call('never')", tools=tools))
    await asyncio.wait_for(tools.called.wait(), 10)

    running.cancel()
    await asyncio.wait([running], timeout=10)

    assert running.cancelled()
    assert workers() == before


async def test_a_tool_failure_ends_call_and_is_returned_by_try_call() -> None:
    """`call` raises the failure, and `try_call` returns it."""
    looked = await run("def main(a):\n  return [try_call('bad'), try_call('ok', a = a)]", [1])
    with pytest.raises(ScriptFailed) as ended:
        await run("call('bad')")

    assert looked.value == [{"error": "it is broken", "kind": "internal"}, {"ok": {"a": [1]}}]
    assert "CallFailed: bad: it is broken" in ended.value.message


async def test_processor_time_is_bounded() -> None:
    """The kernel ends the worker, even within one multiplication."""
    with pytest.raises(ScriptFailed) as ended:
        await run("def f():\n  x = 3\n  for i in range(60): x = x * x\nf()")

    assert ended.value.reason == "cpu"


@pytest.mark.usefixtures("way_to_start")
async def test_a_worker_ends_with_its_server() -> None:
    """It ends by its closed pipe, its timeout or the kernel."""
    code = (
        "import asyncio\n"
        "from gatepost_packs.scripts.process import *\n"
        "from gatepost.sandbox import child\n"
        f"child.can_fork = lambda: {child.can_fork()}\n"
        "async def tell(*_): pass\n"
        "async def call(*_): print('ready', flush=True); await asyncio.sleep(99)\n"
        "work = ScriptWork(file='x.star', code=\"call('never')\", function=None, args=[])\n"
        "asyncio.run(perform(work, Host(call, tell), ScriptsSettings(timeout_s=60)))\n"
    )
    server = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        code,
        stdout=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert server.stdout is not None
    assert await asyncio.wait_for(server.stdout.readline(), 60) == b"ready\n"
    started = descendants_of(server.pid)
    assert started

    server.kill()
    await asyncio.wait_for(server.wait(), 10)

    eventually(lambda: not any(map(is_alive, started)), within=10)


def test_every_exit_code_and_signal_has_a_reason() -> None:
    """Each reason has a sentence."""
    assert {*SIGNAL_REASONS.values(), end_of(0), end_of(1)} <= REASONS.keys()


@pytest.mark.parametrize(
    ("value", "depth"), [(1, 0), ("[[", 0), ([], 1), ([1], 1), ({"a": [1]}, 2), ([[], {"b": 1}], 2)]
)
def test_the_nesting_depth_of_a_value_is_counted(value: Any, depth: int) -> None:
    """The depth is the number of lists and objects inside each other."""
    assert depth_of(value) == depth
    assert depth <= MAX_DEPTH
