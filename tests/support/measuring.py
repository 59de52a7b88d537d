"""Waits with a bound, what code costs, what holds the event loop up, and what is logged."""

import asyncio
import gc
import inspect
import json
import logging
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from threading import Event
from types import FrameType
from typing import Any

import msgspec

from gatepost import CallContext, Outcome, Pack
from gatepost.telemetry.logs import details
from gatepost.tools.api import Tool
from tests.support.client import modern
from tests.support.endpoint import JSON, EndpointClient, Response, a_caller


def eventually(condition: Callable[[], object], *, within: float, every: float = 0.05) -> None:
    """Return once *condition* holds; fail when it does not within so many seconds."""
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, f"not within {within} seconds"
        Event().wait(every)


class _Events(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        level = record.levelname.lower()
        self.events.append({"event": record.getMessage(), "log_level": level, **details(record)})


@contextmanager
def capture_logs() -> Iterator[list[dict[str, Any]]]:
    """The events that Gatepost logs in a block, at every level, with their members."""
    handler, logger = _Events(), logging.getLogger("gatepost")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield handler.events
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)


def steps(work: Callable[[], object]) -> int:
    """How many lines of Python *work* runs through, those of everything it calls included."""
    taken = 0

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal taken
        taken += event == "line"
        return count

    _trace(count, work)
    return taken


def calls(work: Callable[[], object]) -> list[str]:
    """The functions of Python that *work* calls, in order; a coroutine's each time it goes on."""
    made: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            made.append(frame.f_code.co_qualname)

    _trace(note, work)
    return made


def _trace(tracer: Callable[[FrameType, str, Any], Any], work: Callable[[], object]) -> None:
    before, collects = sys.gettrace(), gc.isenabled()
    # Garbage that is collected meanwhile finalizes what tests before have left: their steps.
    gc.disable()
    sys.settrace(tracer)
    try:
        work()
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()


REFERENCE_S = 0.14
"""What `slowness` reads its list in on the machine that limits in seconds are meant for."""
_LARGE_LIST = b"[" + b"1," * 1_999_998 + b"1]"


def slowness() -> float:
    """How many times as long as the reference this machine takes now; 1 where it is faster."""
    began = time.thread_time()
    json.loads(_LARGE_LIST)
    return max((time.thread_time() - began) / REFERENCE_S, 1.0)


async def longest_turn(work: Coroutine[Any, Any, object]) -> float:
    """
    The most processor time, in seconds, that passes between two turns of the loop during *work*.

    That of the whole process: another thread that does not let go of the interpreter holds the
    loop up just as well. What other processes do meanwhile does not count.
    """
    running, longest = asyncio.ensure_future(work), 0.0
    before = time.process_time()
    while not running.done():
        await asyncio.sleep(0)
        now = time.process_time()
        longest, before = max(longest, now - before), now
    running.result()
    return longest


async def shortest_hold(
    work: Callable[[], Coroutine[Any, Any, object]], limit_s: float, tries: int = 3
) -> tuple[float, float]:
    """
    The smallest `longest_turn` of some tries, and the limit as this machine would have it.

    One below *limit_s* is enough. Others are held against what the machine does at that moment.
    """
    best, limit = (await longest_turn(work())), limit_s
    while best >= limit and (tries := tries - 1):
        limit = limit_s * slowness()
        best = min(best, await longest_turn(work()))
    return best, limit


@contextmanager
def collected() -> Iterator[None]:
    """The collector of garbage as a server has it: nothing that was there before is walked."""
    gc.collect()
    gc.freeze()
    before = gc.get_threshold()
    gc.set_threshold(20_000, 10, 10)
    try:
        yield
    finally:
        gc.set_threshold(*before)


HOLD_S = 0.050
DEEP = b"nested deeper than"


async def taken(ctx: CallContext, arguments: Any) -> Outcome:
    return Outcome(({"type": "text", "text": "taken"},))


def endpoint_of(tools: list[Tool]) -> EndpointClient:
    """An endpoint with these tools, that do nothing once their arguments are found to be right."""
    client = EndpointClient([msgspec.structs.replace(tool, invoke=taken) for tool in tools])
    client.caller = a_caller(scopes=frozenset[str]().union(*(tool.scopes for tool in tools)))
    return client


async def delays_no_other_call(client: EndpointClient, tool: str, arguments: bytes) -> None:
    fields, body = modern("tools/call", {"name": tool, "arguments": "HERE"})
    body = body.replace(b'"HERE"', arguments)
    answers: list[Response] = []

    async def ask() -> None:
        answers.append(await client.send(body, [JSON, *fields]))

    held, limit = await shortest_hold(ask, HOLD_S)
    # Nothing else is wrong with the request, so that the arguments were come to.
    assert all(one.status == 413 or DEEP in one.body or "result" in one.json for one in answers)
    assert held < limit, (f"{held * 1000:.1f} ms", f"of {limit * 1000:.1f}", arguments[:200])


def list_of(item: bytes, size: int) -> bytes:
    """A list that is so large, in bytes."""
    return b"[" + b",".join([item] * max(size // (len(item) + 1), 1)) + b"]"


def object_of(item: bytes, members: int) -> bytes:
    """An object of so many members."""
    return b"{" + b",".join(b'"k%d":' % n + item for n in range(members)) + b"}"


def taking(hint: Any) -> Tool:
    """A tool that takes one of that type."""

    async def tool(ctx: CallContext, value: Any) -> None:
        """Take it."""

    tool.__annotations__ = {"ctx": CallContext, "value": hint, "return": None}
    ctx, value = inspect.signature(tool).parameters.values()
    own = inspect.Signature([ctx, value.replace(annotation=hint)])
    tool.__signature__ = own  # type: ignore[attr-defined]
    pack = Pack("generated")
    pack.tool()(tool)
    return pack.tools["tool"]


def bringing(schema: Mapping[str, Any]) -> Tool:
    """A tool that brings that schema of its only argument."""
    root = {"type": "object", "properties": {"value": schema}, "additionalProperties": False}
    pack = Pack("generated")
    pack.add(name="tool", description="Take it.", input_schema=root, invoke=taken)
    return pack.tools["tool"]
