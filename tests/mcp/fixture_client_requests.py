"""The tools of the official suite that ask the client, let go of its connection, or are tasks."""

import asyncio
from typing import Annotated, Any

from pydantic import BaseModel, Field

from gatepost import CallContext, Elicitation, Pack, Roots, Sampling, ToolFailure
from gatepost.tools.client import ProtocolError

pack = Pack("questions")


class Name(BaseModel):
    name: str


class Color(BaseModel):
    color: str


class FixtureConfirmation(BaseModel):
    ok: bool


class Context(BaseModel):
    context: str


class User(BaseModel):
    username: Annotated[str, Field(description="Your user name")]
    email: Annotated[str, Field(description="Your e-mail address")]


DEFAULTS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {
            "type": "string",
            "enum": ["active", "inactive", "pending"],
            "default": "active",
        },
        "verified": {"type": "boolean", "default": True},
    },
}
TITLED = [{"const": f"value{n}", "title": f"Choice {n}"} for n in (1, 2, 3)]
PLAIN = ["option1", "option2", "option3"]
CHOICES: dict[str, Any] = {
    "type": "object",
    "properties": {
        "untitledSingle": {"type": "string", "enum": PLAIN},
        "titledSingle": {"type": "string", "oneOf": TITLED},
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["First", "Second", "Third"],
        },
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": PLAIN}},
        "titledMulti": {"type": "array", "items": {"anyOf": TITLED}},
    },
}


@pack.tool(read_only=True)
async def test_sampling(ctx: CallContext, prompt: str) -> str:
    """Let the client's model answer a prompt."""
    sampled = await ctx.sample(prompt, max_tokens=100)
    return f"The model says: {sampled.text}"


@pack.tool(read_only=True)
async def test_elicitation(ctx: CallContext, message: str) -> str:
    """Ask who is there."""
    answered = await ctx.ask(message, User)
    return f"{answered.action}: {answered.content}"


@pack.tool(read_only=True)
async def test_elicitation_sep1034_defaults(ctx: CallContext) -> str:
    """Ask with a form that is filled in already."""
    answered: Any = await ctx.ask("Is this you?", DEFAULTS)
    return f"{answered.action}: {answered.content}"


@pack.tool(read_only=True)
async def test_elicitation_sep1330_enums(ctx: CallContext) -> str:
    """Ask with each kind of choice."""
    answered: Any = await ctx.ask("Choose.", CHOICES)
    return f"{answered.action}: {answered.content}"


@pack.tool(read_only=True)
async def test_tool_with_logging(ctx: CallContext) -> str:
    """Say three things while working."""
    for step in ("started", "halfway there", "done"):
        await ctx.log("info", f"Work has {step}.", logger="conformance")
        await asyncio.sleep(0.05)
    return "Done."


@pack.tool(read_only=True)
async def test_logging_tool(ctx: CallContext) -> str:
    """Say something while working."""
    await ctx.log("info", "Working.")
    return "Done."


@pack.tool(read_only=True)
async def test_missing_capability(ctx: CallContext) -> str:
    """Need a client that lets its model be used."""
    return (await ctx.sample("Say something.", max_tokens=20)).text


@pack.tool(read_only=True)
async def test_streaming_elicitation(ctx: CallContext) -> str:
    """Report, then ask."""
    await ctx.progress(1, 2, "About to ask")
    answered = await ctx.ask("Go on?", FixtureConfirmation)
    return answered.action


@pack.tool(read_only=True)
async def test_input_required_result_elicitation(ctx: CallContext) -> str:
    """Ask for a name."""
    answered = await ctx.ask("What is your name?", Name, key="user_name")
    return f"Hello, {answered.content.name if answered.content else 'stranger'}!"


@pack.tool(read_only=True)
async def test_input_required_result_sampling(ctx: CallContext) -> str:
    """Ask the client's model."""
    question = "What is the capital of France?"
    return (await ctx.sample(question, max_tokens=100, key="capital_question")).text


@pack.tool(read_only=True)
async def test_input_required_result_list_roots(ctx: CallContext) -> str:
    """Ask which folders the client works in."""
    return ", ".join(root.uri for root in await ctx.roots(key="client_roots")) or "none"


@pack.tool(read_only=True)
async def test_input_required_result_request_state(ctx: CallContext) -> str:
    """Ask for a confirmation."""
    return (await ctx.ask("Go on?", FixtureConfirmation, key="confirm")).action


@pack.tool(read_only=True)
async def test_input_required_result_multiple_inputs(ctx: CallContext) -> str:
    """Ask a person, a model and the client at once."""
    answers = await ctx.ask_together(
        {
            "user_name": Elicitation("What is your name?", Name),
            "greeting": Sampling("Write a greeting.", max_tokens=50),
            "client_roots": Roots(),
        }
    )
    return f"{answers['greeting'].text} ({len(answers['client_roots'])} folders)"


@pack.tool(read_only=True)
async def test_input_required_result_multi_round(ctx: CallContext) -> str:
    """Ask one thing after another."""
    name = await ctx.ask("What is your name?", Name, key="step1")
    color = await ctx.ask("What is your favourite color?", Color, key="step2")
    return f"{name.content} likes {color.content}"


@pack.tool(read_only=True)
async def test_input_required_result_tampered_state(ctx: CallContext) -> str:
    """Ask for a confirmation, with a state that must come back as it was."""
    return (await ctx.ask("Go on?", FixtureConfirmation, key="confirm")).action


@pack.tool(read_only=True)
async def test_input_required_result_capabilities(ctx: CallContext) -> str:
    """Ask a client that can be asked."""
    if ctx.can("elicitation"):
        return (await ctx.ask("Go on?", FixtureConfirmation, key="confirm")).action
    return (await ctx.sample("Shall we go on?", max_tokens=20, key="opinion")).text


@pack.prompt()
async def test_input_required_result_prompt(ctx: CallContext) -> str:
    """Ask what the prompt is about."""
    answered = await ctx.ask("What is it about?", Context, key="user_context")
    return f"Help me with {answered.content.context if answered.content else 'this'}."


session_pack = Pack("conformance_sessions")


@session_pack.tool(read_only=True)
async def test_reconnection(ctx: CallContext) -> str:
    """Close the stream before the answer, for the client to come back to."""
    await ctx.client.pause(0.1)
    await asyncio.sleep(0.2)
    return "Reconnected."


task_pack = Pack("conformance_tasks")


class TaskConfirmation(BaseModel):
    """A yes or a no."""

    confirm: bool


class TaskName(BaseModel):
    """A person's name."""

    name: str


@task_pack.tool(read_only=True)
async def greet(ctx: CallContext, name: str) -> str:
    """Greet a person; never a task."""
    return f"Hello, {name}!"


@task_pack.tool(task_support="optional", read_only=True, timeout_s=120)
async def slow_compute(
    ctx: CallContext, seconds: Annotated[float, Field(ge=0, le=100)], label: str = ""
) -> str:
    """Take so many seconds."""
    await asyncio.sleep(seconds)
    return f"Computed {label or 'something'} in {seconds:g} seconds."


# The official suite and its clients call the next two tools by these names.
@task_pack.tool(name="failing_job", task_support="required", read_only=True)
async def failing_task(ctx: CallContext) -> str:
    """Fail after a second."""
    await asyncio.sleep(1)
    raise ToolFailure("upstream_unavailable", "The job failed.")


@task_pack.tool(name="protocol_error_job", task_support="optional", read_only=True)
async def task_with_protocol_error(ctx: CallContext) -> str:
    """End with a protocol error."""
    raise ProtocolError(-32603, "The job cannot be done at all.")


# Not marked destructive: the suite expects its own question first, not a person's approval.
@task_pack.tool(task_support="optional")
async def confirm_delete(ctx: CallContext, filename: str) -> str:
    """Delete a file, once a person has said yes; asked while the task runs."""
    answer = await ctx.ask(f"Delete {filename}?", TaskConfirmation)
    deleted = answer.content is not None and answer.content.confirm
    return f"{filename} was {'deleted' if deleted else 'kept'}."


@task_pack.tool(task_support="optional")
async def multi_input(ctx: CallContext) -> str:
    """Ask two things at once, to be answered in any order."""
    answers = await ctx.ask_together(
        {
            "first": Elicitation("What is your name?", TaskName),
            "second": Elicitation("And your other name?", TaskName),
        }
    )
    names = [answer.content.name for answer in answers.values() if answer.content is not None]
    return f"Hello, {' '.join(names)}!"


@task_pack.tool(task_support="required", detaches=True)
async def test_tool_with_task(ctx: CallContext) -> str:
    """Ask for a name first, and go on as a task with the answer."""
    answer = await ctx.ask("What is your name?", TaskName, key="user_name")
    await ctx.detach()
    await asyncio.sleep(0.2)
    return f"Hello, {answer.content.name if answer.content else 'stranger'}!"
