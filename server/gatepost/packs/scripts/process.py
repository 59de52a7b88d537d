"""Runs a script in a worker process, from its start to its certain end."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import starlark

from gatepost.packs.scripts import worker
from gatepost.packs.scripts.settings import MOST_OUTPUT, ScriptsSettings
from gatepost.sandbox import launch

COMMAND = (
    sys.executable,
    *("-I", "-S", "-B", "-X", "utf8"),
    str(Path(worker.__file__).resolve()),
    str(Path(starlark.__file__).resolve().parents[1]),
    str(Path(launch.__file__).resolve().parent),
)
"""No site, no environment, no folder of the caller: the interpreter's own files and two modules."""

# JSON writes one character as six at most; a worker that sends more is no longer ours.
MOST_FRAME = 6 * MOST_OUTPUT + 65_536
MOST_DEPTH = 64
"""As deep as requests may be, so that whatever a script answers can be sent on."""
PROGRESS_S = 1.0
MEGABYTE = 1 << 20

_encode = msgspec.json.encode


class Printed(msgspec.Struct, frozen=True, tag_field="type", tag="print"):
    """A script printed something."""

    text: str


class Asked(msgspec.Struct, frozen=True, tag_field="type", tag="call"):
    """A script calls a tool."""

    tool: str
    arguments: dict[str, Any]


class Done(msgspec.Struct, frozen=True, tag_field="type", tag="done"):
    """A script has its value."""

    value: Any


class Failed(msgspec.Struct, frozen=True, tag_field="type", tag="failed"):
    """A script has none; ``reason`` is a key of `words.REASONS`."""

    reason: str
    message: str = ""


Frame = Printed | Asked | Done | Failed
_frames: msgspec.json.Decoder[Frame] = msgspec.json.Decoder(Frame)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is asked to do."""

    file: str
    code: str
    function: str | None
    args: list[Any]


class Ended(Exception):
    """There is no value; see `Failed`."""

    def __init__(self, reason: str, message: str = "", printed: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.message = message
        self.printed = printed


class Ran(msgspec.Struct, frozen=True):
    """What came of a script."""

    value: Any
    printed: str


class Host(msgspec.Struct, frozen=True):
    """What a script reaches of the server."""

    call: Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
    """Calls a tool; answers {"ok": …} or {"error": …}."""
    tell: Callable[[float, str], Awaitable[None]]
    """Hears after how many seconds what the script has done so far."""


class Process:
    """One worker process and the talk with it; see `run`."""

    def __init__(
        self, process: asyncio.subprocess.Process, host: Host, settings: ScriptsSettings
    ) -> None:
        self._process = process
        self._out = cast(asyncio.StreamWriter, process.stdin)
        self._in = cast(asyncio.StreamReader, process.stdout)
        self._host = host
        self._settings = settings
        self._printed: list[str] = []
        self._printed_bytes = 0
        self._calls = 0

    async def run(self, job: Job) -> Ran:
        """Hand over the job and serve the script until it has its value; raises Ended."""
        telling = asyncio.create_task(self._tell_always())
        clock = asyncio.timeout(self._settings.timeout_s)
        try:
            async with clock:
                value = await self._serve(job)
        except TimeoutError:
            if not clock.expired():
                raise
            raise Ended("wall", printed=self.printed) from None
        except Ended as ended:
            ended.printed = self.printed
            raise
        finally:
            telling.cancel()
        return Ran(value, self.printed)

    @property
    def printed(self) -> str:
        """All that was printed."""
        return "".join(self._printed)

    async def _serve(self, job: Job) -> Any:
        await self._send({**msgspec.structs.asdict(job), "limits": limits_of(self._settings)})
        while True:
            frame = await self._frame()
            if isinstance(frame, Done):
                if depth_of(frame.value) > MOST_DEPTH:
                    raise Ended("depth")
                return frame.value
            if isinstance(frame, Failed):
                raise Ended(frame.reason, frame.message[: 2 * worker.MOST_MESSAGE])
            if isinstance(frame, Printed):
                self._print(frame.text)
                # What is there already is read without waiting: others would have to.
                await asyncio.sleep(0)
            else:
                await self._call(frame)

    def _print(self, text: str) -> None:
        self._printed_bytes += len(text.encode())
        if self._printed_bytes > self._settings.max_output_bytes:
            raise Ended("output")
        self._printed.append(text)

    async def _call(self, asked: Asked) -> None:
        self._calls += 1
        if self._calls > self._settings.max_calls:
            raise Ended("calls")
        if depth_of(asked.arguments) > MOST_DEPTH:
            raise Ended("depth")
        await self._send(await self._host.call(asked.tool, asked.arguments))

    async def _send(self, frame: Mapping[str, Any]) -> None:
        data = _encode(frame)
        # A worker that is gone says so where it is read from.
        with contextlib.suppress(ConnectionError):
            self._out.write(len(data).to_bytes(4, "big") + data)
            await self._out.drain()

    async def _frame(self) -> Frame:
        try:
            size = int.from_bytes(await self._in.readexactly(4), "big")
            if size > MOST_FRAME:
                raise Ended("output")
            data = await self._in.readexactly(size)
        except asyncio.IncompleteReadError:
            raise Ended(end_of(await self._process.wait())) from None
        try:
            return _frames.decode(data)
        except RecursionError:
            raise Ended("depth") from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise Ended("crash") from None

    async def _tell_always(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            await asyncio.sleep(PROGRESS_S)
            so_far = f"{self._calls} calls of tools, {self._printed_bytes} bytes printed"
            await self._host.tell(loop.time() - began, so_far)


async def perform(
    job: Job, host: Host, settings: ScriptsSettings, *, command: Sequence[str] = COMMAND
) -> Ran:
    """
    Run a script in a process of its own; raises Ended when there is no value.

    The process is gone when this is over, however it ends.
    """
    async with _worker(command) as process:
        return await Process(process, host, settings).run(job)


@contextlib.asynccontextmanager
async def _worker(command: Sequence[str]) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={},
        cwd="/",
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def limits_of(settings: ScriptsSettings) -> dict[str, Any]:
    """The limits that a worker keeps itself."""
    return {
        "wall_s": settings.timeout_s,
        "cpu_s": settings.cpu_s,
        "memory": settings.memory_mb * MEGABYTE,
        "steps": settings.max_steps,
        "output": settings.max_output_bytes,
    }


ENDS = {
    -signal.SIGXCPU: "cpu",
    -signal.SIGALRM: "wall",
    -signal.SIGABRT: "memory",
    -signal.SIGSEGV: "stack",
    -signal.SIGBUS: "stack",
    -signal.SIGKILL: "killed",
    -signal.SIGTERM: "killed",
}


def end_of(code: int) -> str:
    """Why a process ended that said nothing, by its exit code."""
    return ENDS.get(code, "crash")


def depth_of(value: Any) -> int:
    """How many lists and objects of a JSON value lie within one another, without going deep."""
    depth, level = 0, [value]
    while holders := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        level = [i for one in holders for i in (one.values() if isinstance(one, dict) else one)]
    return depth
