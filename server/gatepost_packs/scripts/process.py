"""Run scripts in worker processes, and always end the processes."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import starlark

from gatepost import decoded_within
from gatepost.sandbox import LAUNCHER, SYSTEM, Confined, ConnectedProcess, ForkingProgram, NotForked
from gatepost_packs.scripts import worker
from gatepost_packs.scripts.settings import MAX_OUTPUT, ScriptsSettings

PYTHON = (sys.executable, "-I", "-S", "-B", "-X", "utf8")
"""No site module, environment or working directory."""
WORKER = str(Path(worker.__file__).resolve())
FOLDERS = (
    str(Path(starlark.__file__).resolve().parents[1]),
    str(Path(LAUNCHER).resolve().parent),
)
"""Where a worker finds its interpreter of scripts, and what confines it."""
COMMAND = (*PYTHON, WORKER, *FOLDERS)
CHANNEL = 3
"""The descriptor on which a process that forks gets its requests."""

# JSON writes one character as six at most; a worker that sends more is compromised.
MAX_FRAME = 6 * MAX_OUTPUT + 65_536
MAX_DEPTH = 64
"""The nesting limit of requests, so that any value of a script can be sent on."""
MAX_ARGUMENT_VALUES, MAX_VALUES = 40_000, 100_000
"""
The maximum number of values in the arguments of a call, as in a request, and in a result. All calls
of the server wait while they are decoded.
"""
PROGRESS_S = 1.0
MEGABYTE = 1 << 20

_encode = msgspec.json.encode


def program_of(worker_path: str, *reads: str) -> ForkingProgram:
    """
    Return a program that imports the interpreter once, and forks a process for each script.

    *reads*: what it reads besides the interpreters.
    """
    return ForkingProgram(
        Confined(
            argv=(*PYTHON, worker_path, "--serve", str(CHANNEL), *FOLDERS),
            env={},
            root="/",
            reads=(sys.prefix, sys.base_prefix, worker_path, *FOLDERS, "/proc/self", *reads),
            offline=True,
            limits={"FSIZE": 0},
            runs=(*SYSTEM, str(Path(sys.executable).resolve().parent)),
        ),
        channel=CHANNEL,
    )


FORKING_PROGRAM = program_of(WORKER)


class PrintedText(msgspec.Struct, frozen=True, tag_field="type", tag="print"):
    """A script printed something."""

    text: str


class ToolRequested(msgspec.Struct, frozen=True, tag_field="type", tag="call"):
    """A script calls a tool."""

    tool: str
    arguments: msgspec.Raw


class ScriptValue(msgspec.Struct, frozen=True, tag_field="type", tag="done"):
    """A script has ended with its value."""

    value: msgspec.Raw


class FailureReport(msgspec.Struct, frozen=True, tag_field="type", tag="failed"):
    """A script failed; ``reason`` is a key of `errors.REASONS`."""

    reason: str
    message: str = ""


WorkerMessage = PrintedText | ToolRequested | ScriptValue | FailureReport
_frames: msgspec.json.Decoder[WorkerMessage] = msgspec.json.Decoder(WorkerMessage)


class ScriptWork(msgspec.Struct, frozen=True, kw_only=True):
    """The request that a worker gets."""

    file: str
    code: str
    function: str | None
    args: list[Any]


class ScriptFailed(Exception):
    """The script has no value; `FailureReport` has the reasons."""

    def __init__(self, reason: str, message: str = "", printed: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.message = message
        self.printed = printed


class ScriptResult(msgspec.Struct, frozen=True):
    """The result of a script."""

    value: Any
    printed: str


class Host(msgspec.Struct, frozen=True):
    """The parts of the server that a script reaches."""

    call: Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
    """Calls a tool; returns {"ok": …} or {"error": …}."""
    report_progress: Callable[[float, str], Awaitable[None]]
    """Called with the seconds so far, and what the script has done."""


class ScriptProcess:
    """One worker process and its messages; `run` drives it."""

    def __init__(self, process: ConnectedProcess, host: Host, settings: ScriptsSettings) -> None:
        self._process = process
        self._host = host
        self._settings = settings
        self._printed: list[str] = []
        self._printed_bytes = 0
        self._calls = 0

    async def run(self, work: ScriptWork) -> ScriptResult:
        """Send the work and serve the script until it has its value; raise ScriptFailed."""
        reporting = asyncio.create_task(self._tell_always())
        clock = asyncio.timeout(self._settings.timeout_s)
        try:
            async with clock:
                value = await self._serve(work)
        except TimeoutError:
            if not clock.expired():
                raise
            raise ScriptFailed("wall", printed=self.printed) from None
        except ScriptFailed as failed:
            raise ScriptFailed(failed.reason, failed.message, self.printed) from None
        finally:
            reporting.cancel()
        return ScriptResult(value, self.printed)

    @property
    def printed(self) -> str:
        """Return the printed text."""
        return "".join(self._printed)

    async def _serve(self, work: ScriptWork) -> Any:
        await self._send({**msgspec.structs.asdict(work), "limits": limits_of(self._settings)})
        while True:
            frame = await self._frame()
            if isinstance(frame, ScriptValue):
                data = bytes(frame.value)
                if len(data) > self._settings.max_output_bytes:
                    raise ScriptFailed("output")
                return value_of(data, MAX_VALUES)
            if isinstance(frame, FailureReport):
                raise ScriptFailed(frame.reason, frame.message[: 2 * worker.MAX_MESSAGE])
            if isinstance(frame, PrintedText):
                self._print(frame.text)
                # Data that has arrived is read without waiting, which would delay others.
                await asyncio.sleep(0)
            else:
                await self._call(frame)

    def _print(self, text: str) -> None:
        if not text:
            raise ScriptFailed("crash")  # a flood of these would count against no limit
        self._printed_bytes += len(text.encode())
        if self._printed_bytes > self._settings.max_output_bytes:
            raise ScriptFailed("output")
        self._printed.append(text)

    async def _call(self, request: ToolRequested) -> None:
        self._calls += 1
        if self._calls > self._settings.max_calls:
            raise ScriptFailed("calls")
        arguments = value_of(bytes(request.arguments), MAX_ARGUMENT_VALUES)
        if not isinstance(arguments, dict):
            raise ScriptFailed("crash")
        await self._send(await self._host.call(request.tool, arguments))

    async def _send(self, frame: Mapping[str, Any]) -> None:
        data = _encode(frame)
        # Reading shows when a worker has died.
        with contextlib.suppress(ConnectionError):
            self._process.writer.write(len(data).to_bytes(4, "big") + data)
            await self._process.writer.drain()

    async def _frame(self) -> WorkerMessage:
        try:
            size = int.from_bytes(await self._process.reader.readexactly(4), "big")
            if size > MAX_FRAME:
                raise ScriptFailed("output")
            data = await self._process.reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise ScriptFailed(end_of(await self._process.wait())) from None
        try:
            return _frames.decode(data)
        except RecursionError:
            raise ScriptFailed("depth") from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise ScriptFailed("crash") from None

    async def _tell_always(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            await asyncio.sleep(PROGRESS_S)
            summary = f"{self._calls} calls of tools, {self._printed_bytes} bytes printed"
            await self._host.report_progress(loop.time() - began, summary)


async def perform(
    work: ScriptWork,
    host: Host,
    settings: ScriptsSettings,
    *,
    command: Sequence[str] = (),
    program: ForkingProgram = FORKING_PROGRAM,
) -> ScriptResult:
    """
    Run a script in a process of its own; raise ScriptFailed if it has no value.

    The process has ended when this returns or raises. *program* forks it, unless there is a
    *command* to start it.
    """
    if not command:
        with contextlib.suppress(NotForked):
            async with program.connected({}) as process:
                return await ScriptProcess(process, host, settings).run(work)
    async with _started(command or COMMAND) as process:
        return await ScriptProcess(process, host, settings).run(work)


@contextlib.asynccontextmanager
async def _started(command: Sequence[str]) -> AsyncIterator[ConnectedProcess]:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={},
        cwd="/",
        start_new_session=True,
    )
    reader, writer = process.stdout, process.stdin
    assert reader is not None  # noqa: S101 - both are pipes
    assert writer is not None  # noqa: S101
    try:
        yield ConnectedProcess(reader, writer, process.wait)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def limits_of(settings: ScriptsSettings) -> dict[str, Any]:
    """Return the limits that a worker enforces itself."""
    return {
        "wall_s": settings.timeout_s,
        "cpu_s": settings.cpu_s,
        "memory": settings.memory_mb * MEGABYTE,
        "steps": settings.max_steps,
        "output": settings.max_output_bytes,
    }


SIGNAL_REASONS = {
    -signal.SIGXCPU: "cpu",
    -signal.SIGALRM: "wall",
    -signal.SIGABRT: "memory",
    -signal.SIGSEGV: "stack",
    -signal.SIGBUS: "stack",
    -signal.SIGKILL: "killed",
    -signal.SIGTERM: "killed",
}


def end_of(code: int) -> str:
    """Return why a process ended without a message, by its exit code."""
    return SIGNAL_REASONS.get(code, "crash")


def value_of(data: bytes, max_values: int) -> Any:
    """Return a JSON value that a worker sent; raises ScriptFailed if it is too much."""
    try:
        value = decoded_within(data, max_values)
    except RecursionError:
        raise ScriptFailed("depth") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ScriptFailed("crash") from None
    except ValueError:
        raise ScriptFailed("values", f"{max_values}") from None
    if depth_of(value) > MAX_DEPTH:
        raise ScriptFailed("depth")
    return value


def depth_of(value: Any) -> int:
    """Return the nesting depth of a JSON value, without recursion."""
    depth, level = 0, [value]
    while holders := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [
            i
            for holder in holders
            for i in (holder.values() if isinstance(holder, dict) else holder)
        ]
    return depth
