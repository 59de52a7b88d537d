"""Run a worker for one request: confined, and ended with the call."""

import asyncio
import math
import os
import sys
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from gatepost.sandbox import SYSTEM, Confined, run

START_SCRIPT = str(Path(__file__).with_name("start.py"))
WORKERS_AT_ONCE = 8
"""Workers at once in one server process; further calls wait, within their time."""
MEMORY_BYTES = 1_000_000_000
MAX_ANSWER_BYTES = 20_000_000
INTERPRETER = str(Path(sys.executable).resolve().parent)

_workers: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


class WorkerFailed(Exception):
    """The worker ended without an answer: killed by its limits, or broken by its input."""


async def ask(
    worker: Path,
    request: Any,
    *,
    timeout_s: float,
    handles: tuple[tuple[int, int], ...] = (),
    reads: tuple[str, ...] = (),
) -> Any:
    """
    Return the result of `answer` in the file *worker* for *request*; both are JSON values.

    The worker reads Python's own files and *reads*, writes no file, opens no connection, and
    inherits only *handles*, each by its second number. Raises WorkerFailed, or TimeoutError after
    *timeout_s*.
    """
    workers = _workers.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(WORKERS_AT_ONCE))
    # Not the server's working directory: the key ring may be there.
    path = [entry for entry in sys.path if entry.startswith(os.sep) and entry != os.getcwd()]
    seconds = math.ceil(timeout_s) + 1
    program = Confined(
        argv=(sys.executable, "-I", "-X", "utf8", START_SCRIPT, str(worker), str(seconds)),
        env={"PATH": os.defpath, "LANG": "C.UTF-8"},
        root="/",
        reads=(*path, sys.prefix, sys.base_prefix, START_SCRIPT, str(worker), *reads),
        limits={"AS": MEMORY_BYTES, "CPU": seconds, "FSIZE": 0},
        handles=handles,
        runs=(*SYSTEM, INTERPRETER),
    )
    input_data = msgspec.json.encode({"path": path, "request": request})
    async with asyncio.timeout(timeout_s), workers:
        result = await run(
            program, timeout_s=timeout_s, max_bytes=MAX_ANSWER_BYTES, input_data=input_data
        )
    if result.code != 0 or result.cut[0]:
        raise WorkerFailed(f"exit code {result.code}")
    try:
        return msgspec.json.decode(result.out)
    except msgspec.DecodeError as error:
        raise WorkerFailed("no answer") from error
