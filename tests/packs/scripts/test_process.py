"""The process of a script always ends, and the server trusts nothing that it sends."""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gatepost_packs.scripts import worker
from gatepost_packs.scripts.errors import REASONS, failure_of
from gatepost_packs.scripts.process import (
    COMMAND,
    MAX_DEPTH,
    MAX_FRAME,
    SIGNAL_REASONS,
    Host,
    ScriptFailed,
    ScriptResult,
    ScriptWork,
    depth_of,
    end_of,
    perform,
)
from gatepost_packs.scripts.settings import ScriptsSettings
from tests.support.measuring import each, eventually


def children_of(parent: int) -> set[int]:
    """Return the children of a process, zombies included."""
    pids = [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    return {pid for pid in pids if int(_stat_of(pid)[1]) == parent}


def is_alive(pid: int) -> bool:
    """Return whether the process runs; a zombie does not."""
    return _stat_of(pid)[0] not in "XZ"


def _stat_of(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ["X", "0"]
    return text.rpartition(")")[2].split()


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


async def test_a_worker_has_no_environment_and_no_files_of_the_server() -> None:
    """It has only two pipes and /dev/null open, and its working folder is `/`."""
    program = (
        "import json,os,struct,sys\n"
        "n = struct.unpack('>I', os.read(0, 4))[0]; os.read(0, n)\n"
        "value = [dict(os.environ), os.getcwd(), sorted(os.listdir('/proc/self/fd'))]\n"
        "data = json.dumps({'type': 'done', 'value': value}).encode()\n"
        "os.write(1, struct.pack('>I', len(data)) + data)\n"
    )

    ran = await run("1", command=(*COMMAND[:-3], "-c", program))

    environment, folder, handles = ran.value
    assert set(environment) <= {"LC_CTYPE"}
    assert folder == "/"
    # The fourth handle is that of the folder that lists them.
    assert handles == ["0", "1", "2", "3"]


ESCAPE_ATTEMPTS = {
    "read a file": "open('/etc/hostname').read()",
    "read its own program": "open(worker.__file__).read()",
    "write a file": "open('/tmp/gatepost-worker', 'w').write('x')",
    "list a folder": "os.listdir('/')",
    "open a socket": "socket.socket()",
    "open a socket of the machine": "socket.socket(socket.AF_UNIX)",
    "make a pipe": "os.pipe()",
    "have more open files": "resource.setrlimit(resource.RLIMIT_NOFILE, (9, 9)); os.open('/', 0)",
    "signal the server": "os.kill(os.getppid(), 0)",
    "take memory": "bytearray(200_000_000)",
}


@each("attempt", ESCAPE_ATTEMPTS.values(), ids=ESCAPE_ATTEMPTS.keys())
async def test_a_worker_is_refused_every_resource(attempt: str) -> None:
    """This holds even if an attacker controls its interpreter."""
    program = (
        "import os, resource, signal, socket, sys\n"
        f"sys.path += {[str(Path(worker.__file__).parent), *COMMAND[-2:]]!r}\n"
        "import worker, starlark, launch\n"
        "work = worker.receive()\n"
        "worker.confine(work['limits'], launch)\n"
        "try:\n"
        f"  {attempt}\n"
        "  value = 'done'\n"
        "except (OSError, ValueError, MemoryError) as error:\n"
        "  value = 'refused'\n"
        "worker.send({'type': 'done', 'value': value})\n"
    )

    small = ScriptsSettings(timeout_s=10, cpu_s=1, memory_mb=64)
    ran = await run("1", settings=small, command=(*COMMAND[:-3], "-c", program))

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


async def test_a_killed_worker_is_reported() -> None:
    """The kernel kills it when memory runs out, for example; the next run has a new process."""
    tools, before = Tools(), children()
    running = asyncio.create_task(run("call('never')", tools=tools))
    await asyncio.wait_for(tools.called.wait(), 10)
    (pid,) = children() - before
    tools.never.set()
    os.kill(pid, signal.SIGKILL)

    with pytest.raises(ScriptFailed) as ended:
        await asyncio.wait_for(running, 10)

    assert ended.value.reason == "killed"
    assert (await run("2")).value == 2


async def test_a_cancelled_call_leaves_no_process() -> None:
    """The worker ends at once, in the middle of its work."""
    tools, before = Tools(), children()
    running = asyncio.create_task(run("call('never')", tools=tools))
    await asyncio.wait_for(tools.called.wait(), 10)

    running.cancel()
    await asyncio.wait([running], timeout=10)

    assert running.cancelled()
    assert children() == before


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


async def test_a_worker_ends_with_its_server() -> None:
    """It ends by its closed pipe, its timeout or the kernel."""
    code = (
        "import asyncio\n"
        "from gatepost_packs.scripts.process import *\n"
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
    (started,) = children_of(server.pid)

    server.kill()
    await asyncio.wait_for(server.wait(), 10)

    eventually(lambda: not is_alive(started), within=10)


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
