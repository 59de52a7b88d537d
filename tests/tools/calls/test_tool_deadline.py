"""A tool's clock stands still while a person decides."""

import asyncio
import contextlib

import pytest

from gatepost.execution.interruption import DeadlinePassed, TokenExpired
from gatepost.tools.calls.tool_deadline import ToolDeadline

LIMIT_S = 0.05


async def outlast_limit() -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 3 * LIMIT_S)


async def run(tool_waits_after: bool, *, allowed_s: float = 60, is_held: bool = True) -> str:
    """Run a tool that asks its client, is answered late, and then may work for too long."""
    patient: list[ToolDeadline[str]] = []

    async def work() -> str:
        if is_held:
            with patient[0].paused(), patient[0].paused():
                await outlast_limit()
        if tool_waits_after:
            await asyncio.Event().wait()
        return "answered"

    patient.append(ToolDeadline(LIMIT_S, allowed_s, work()))
    return await asyncio.wait_for(asyncio.ensure_future(_await(patient[0])), 10)


async def _await(tool: ToolDeadline[str]) -> str:
    return await tool


async def test_the_timeout_pauses_while_a_person_answers() -> None:
    """An answer that comes later than the tool's whole time is in time."""
    assert await run(tool_waits_after=False) == "answered"


async def test_the_timeout_continues_after_the_answer() -> None:
    """What the tool does with the answer counts again."""
    with pytest.raises(DeadlinePassed) as raised:
        await run(tool_waits_after=True)
    assert raised.type is DeadlinePassed


@pytest.mark.parametrize("is_held", [True, False])
async def test_the_token_expires_also_while_a_person_decides(is_held: bool) -> None:
    """A caller's token runs out also while a person decides."""
    with pytest.raises(TokenExpired):
        await run(tool_waits_after=True, allowed_s=LIMIT_S / 2, is_held=is_held)
