"""Tools that do what no tool should."""

import asyncio
import contextlib
import threading

from gatepost import CallContext, Pack

go_on, over, undone = threading.Event(), threading.Event(), threading.Event()
WITHIN_S = 20

pack = Pack("stubborn")


@pack.tool()
async def echoes(ctx: CallContext) -> str:
    """Answer at once."""
    return "here"


@pack.tool()
async def blocks(ctx: CallContext) -> str:
    """Wait on the event loop as if it were a thread."""
    go_on.wait(WITHIN_S)
    return "over"


@pack.tool()
async def blocks_apart(ctx: CallContext) -> str:
    """The same in a task of its own."""

    async def block() -> None:
        go_on.wait(WITHIN_S)

    await asyncio.create_task(block())
    return "over"


@pack.tool()
def waits_in_a_thread(ctx: CallContext) -> str:
    """Wait in a thread."""
    go_on.wait(WITHIN_S)
    return "over"


@pack.tool(timeout_s=0.1)
async def refuses(ctx: CallContext) -> str:
    """Take every cancellation for an error to be tried again."""
    while True:
        with contextlib.suppress(BaseException):
            await asyncio.Event().wait()


async def refuse() -> None:
    """Go on until the tests are over."""
    while not over.is_set():
        with contextlib.suppress(BaseException):
            await asyncio.Event().wait()


@pack.tool(timeout_s=0.1)
async def refuses_apart(ctx: CallContext) -> str:
    """The same in a task of its own."""
    await asyncio.create_task(refuse())
    return "over"


@pack.tool(timeout_s=0.1)
async def refuses_together(ctx: CallContext) -> str:
    """The same in several tasks."""
    await asyncio.gather(refuse(), refuse())
    return "over"


@pack.tool(timeout_s=0.1)
async def refuses_both(ctx: CallContext) -> str:
    """The same in a task of its own and then here."""
    while True:
        with contextlib.suppress(BaseException):
            await asyncio.create_task(refuse())


@pack.tool(timeout_s=0.1)
async def undoes_apart(ctx: CallContext) -> str:
    """Undo in a task of its own what it has begun, as a tool should."""

    async def undo() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            undone.set()

    await asyncio.create_task(undo())
    return "over"


@pack.tool(timeout_s=5)
async def awaits(ctx: CallContext) -> list[str]:
    """Await what ends, fails and is cancelled, in tasks of their own."""

    async def fail() -> str:
        await asyncio.sleep(0)
        raise KeyError

    found = [await asyncio.create_task(asyncio.sleep(0, "task"))]
    found += await asyncio.gather(asyncio.sleep(0, "one"), asyncio.sleep(0, "two"))
    cancelled = asyncio.create_task(asyncio.sleep(60))
    asyncio.get_running_loop().call_soon(cancelled.cancel)
    for work in (asyncio.create_task(fail()), cancelled):
        try:
            await work
        except (KeyError, asyncio.CancelledError) as error:
            found.append(type(error).__name__)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.01):
            await asyncio.create_task(asyncio.sleep(60))
        found.append("never")
    return found


@pack.tool()
async def raises_at_once(ctx: CallContext) -> str:
    """Raise what Python throws coroutines away with."""
    raise GeneratorExit


@pack.tool()
async def raises_later(ctx: CallContext) -> str:
    """The same after a wait."""
    await asyncio.sleep(0)
    raise GeneratorExit


@pack.tool()
def raises_in_a_thread(ctx: CallContext) -> str:
    """The same in a thread."""
    raise GeneratorExit
