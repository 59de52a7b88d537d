"""The tools that the official suite's tasks scenarios call, written as a user would."""

import asyncio
from typing import Annotated

from pydantic import BaseModel, Field

from gatepost import CallContext, Elicitation, Pack, ToolFailure
from gatepost.tools.client import ProtocolError

pack = Pack("conformance_tasks")


class Confirmation(BaseModel):
    """A yes or a no."""

    confirm: bool


class Name(BaseModel):
    """How somebody is called."""

    name: str


@pack.tool(read_only=True)
async def greet(ctx: CallContext, name: str) -> str:
    """Greet somebody; never a task."""
    return f"Hello, {name}!"


@pack.tool(task_support="optional", read_only=True, timeout_s=120)
async def slow_compute(
    ctx: CallContext, seconds: Annotated[float, Field(ge=0, le=100)], label: str = ""
) -> str:
    """Take so many seconds."""
    await asyncio.sleep(seconds)
    return f"Computed {label or 'something'} in {seconds:g} seconds."


@pack.tool(task_support="required", read_only=True)
async def failing_job(ctx: CallContext) -> str:
    """Find out after a second that it cannot be done."""
    await asyncio.sleep(1)
    raise ToolFailure("upstream_unavailable", "The job failed.")


@pack.tool(task_support="optional", read_only=True)
async def protocol_error_job(ctx: CallContext) -> str:
    """End in an error of the protocol."""
    raise ProtocolError(-32603, "The job cannot be done at all.")


# Not marked destructive: the suite expects its own question first, not a person's approval.
@pack.tool(task_support="optional")
async def confirm_delete(ctx: CallContext, filename: str) -> str:
    """Delete a file, once somebody has said yes; asked while the task runs."""
    answer = await ctx.ask(f"Delete {filename}?", Confirmation)
    deleted = answer.content is not None and answer.content.confirm
    return f"{filename} was {'deleted' if deleted else 'kept'}."


@pack.tool(task_support="optional")
async def multi_input(ctx: CallContext) -> str:
    """Ask two things at once, to be answered in any order."""
    answers = await ctx.ask_together(
        {
            "first": Elicitation("What is your name?", Name),
            "second": Elicitation("And your other name?", Name),
        }
    )
    names = [answer.content.name for answer in answers.values() if answer.content is not None]
    return f"Hello, {' '.join(names)}!"


@pack.tool(task_support="required", detaches=True)
async def test_tool_with_task(ctx: CallContext) -> str:
    """Ask for a name first, and go on as a task with the answer."""
    answer = await ctx.ask("What is your name?", Name, key="user_name")
    await ctx.detach()
    await asyncio.sleep(0.2)
    return f"Hello, {answer.content.name if answer.content else 'stranger'}!"
