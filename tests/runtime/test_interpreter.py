"""How a server process shares the interpreter between its threads."""

import json
from pathlib import Path

from tests.runtime.test_serve import call
from tests.support.commands import dev, token

PACK = '''
import asyncio
import threading
import time

from gatepost import CallContext, Pack

TURNS = 40

pack = Pack("computing")


@pack.tool(read_only=True)
async def turns(ctx: CallContext) -> float:
    """Return the CPU seconds that a computing thread takes before each turn of the event loop."""
    used, over, begun = [], threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def compute() -> None:
        loop.call_soon_threadsafe(begun.set)
        began = time.thread_time()
        while not over.is_set():
            sum(number * number for number in range(100))
        used.append(time.thread_time() - began)

    thread = threading.Thread(target=compute)
    thread.start()
    await begun.wait()
    for _ in range(TURNS):
        await asyncio.sleep(0.001)  # the other thread runs meanwhile, and as long as it may then
    over.set()
    await asyncio.to_thread(thread.join)
    return used[0] / TURNS
'''
MAX_S = 0.004
"""The pause, and three more milliseconds: Python's own interval alone is five."""


def test_a_tool_that_computes_delays_other_calls_only_for_short_turns(tmp_path: Path) -> None:
    """A call needs several turns of the event loop, and each waits for the computing thread."""
    tools = tmp_path / "computing.py"
    tools.write_text(PACK)
    with dev(tmp_path, "--tools", str(tools)) as gatepost:
        bearer = token(tmp_path, "--tenant", "acme", "--subject", "alice")
        answers = [call(gatepost.url, bearer, "turns", {}) for _ in range(3)]

    assert [status for status, _ in answers] == [200, 200, 200]
    seconds = [json.loads(answer["result"]["content"][0]["text"]) for _, answer in answers]
    assert min(seconds) < MAX_S
