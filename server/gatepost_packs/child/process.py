"""Run a worker for one request: confined, in a process of its own, and ended with the call."""

import asyncio
import math
import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from pydantic import TypeAdapter, ValidationError

from gatepost import decoded_within
from gatepost.sandbox import (
    LAUNCHER,
    SYSTEM,
    Confined,
    ForkingProgram,
    NotForked,
    ProcessResult,
    run,
)

START_SCRIPT = str(Path(__file__).with_name("start.py"))
WORKERS_AT_ONCE = 8
"""Workers at once in one server process; further calls wait, within their time."""
MEMORY_BYTES = 1_000_000_000
MAX_ANSWER_BYTES = 20_000_000
MAX_VALUES = 1_000
"""The usual maximum number of values in an answer: all calls wait while they are decoded."""
CHANNEL = 3
"""The descriptor on which a fork server gets its requests."""
LAUNCH_FOLDER = str(Path(LAUNCHER).parent)
INTERPRETER = str(Path(sys.executable).resolve().parent)

ANY_RESULT: TypeAdapter[Any] = TypeAdapter(Any)

_workers: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


class WorkerFailed(Exception):
    """The worker ended without an answer: killed by its limits, or broken by its input."""


async def ask(  # noqa: PLR0913  # what a worker may do, each by name
    worker: Path,
    request: Any,
    *,
    timeout_s: float,
    handles: tuple[tuple[int, int], ...] = (),
    reads: tuple[str, ...] = (),
    max_values: int = MAX_VALUES,
    result_type: TypeAdapter[Any] = ANY_RESULT,
) -> Any:
    """
    Return the result of `answer` in the file *worker* for *request*; both are JSON values.

    The worker reads Python's own files and *reads*, writes no file, opens no connection, and
    inherits only *handles*, each by its second number. Without either, a process that has imported
    the worker is forked, which takes a tenth of starting one. Raises WorkerFailed, also for a
    result of more than *max_values* values or of another type than *result_type*, or TimeoutError
    after *timeout_s*.
    """
    workers = _workers.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(WORKERS_AT_ONCE))
    seconds = math.ceil(timeout_s) + 1
    async with asyncio.timeout(timeout_s), workers:
        try:
            if handles or reads:
                raise NotForked
            result = await _ask_forked(worker, request, seconds)
        except NotForked:
            result = await _ask_started(worker, request, seconds, handles, reads)
    if result.code != 0 or result.cut[0]:
        raise WorkerFailed(f"exit code {result.code}")
    try:
        return result_type.validate_python(decoded_within(result.out, max_values), strict=True)
    except ValidationError:
        # Without it as the cause, because it quotes the result.
        raise WorkerFailed("an answer of another type") from None
    except (ValueError, RecursionError) as error:
        raise WorkerFailed("no answer") from error


async def _ask_forked(worker: Path, request: Any, seconds: int) -> ProcessResult:
    """Have a process forked that answers; raises NotForked."""
    return await _forking_program(worker).run(
        {"seconds": seconds},
        timeout_s=seconds,
        max_bytes=MAX_ANSWER_BYTES,
        input_data=msgspec.json.encode({"request": request}),
    )


@cache
def _forking_program(worker: Path) -> ForkingProgram:
    words = ("--serve", str(worker), str(CHANNEL), LAUNCH_FOLDER)
    return ForkingProgram(
        _program(words, (), (LAUNCH_FOLDER, str(worker))),
        channel=CHANNEL,
        input_data=msgspec.json.encode({"path": _import_path()}),
    )


async def _ask_started(
    worker: Path,
    request: Any,
    seconds: int,
    handles: tuple[tuple[int, int], ...],
    reads: tuple[str, ...],
) -> ProcessResult:
    """Start Python for one request."""
    program = _program(
        (str(worker), str(seconds)), handles, (str(worker), *reads), limits={"CPU": seconds}
    )
    input_data = msgspec.json.encode({"path": _import_path(), "request": request})
    return await run(program, timeout_s=seconds, max_bytes=MAX_ANSWER_BYTES, input_data=input_data)


def _program(
    words: tuple[str, ...],
    handles: tuple[tuple[int, int], ...],
    reads: tuple[str, ...],
    limits: Mapping[str, int] = MappingProxyType({}),
) -> Confined:
    return Confined(
        argv=(sys.executable, "-I", "-X", "utf8", START_SCRIPT, *words),
        env={"PATH": os.defpath, "LANG": "C.UTF-8"},
        root="/",
        reads=(*_import_path(), sys.prefix, sys.base_prefix, START_SCRIPT, *reads),
        # Landlock knows no datagrams, and before Linux 6.7 no connections. A library that is handed
        # connections makes a socket before each.
        offline=not handles,
        limits={"AS": MEMORY_BYTES, "FSIZE": 0, **limits},
        handles=handles,
        runs=(*SYSTEM, INTERPRETER),
    )


def _import_path() -> list[str]:
    # Not the server's working directory: the key ring may be there.
    return [entry for entry in sys.path if entry.startswith(os.sep) and entry != os.getcwd()]
