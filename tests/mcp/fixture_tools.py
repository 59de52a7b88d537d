"""The tools, resources and prompts that the official suite and the real clients ask for."""

import asyncio
import json
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field

from gatepost import (
    CallContext,
    Contents,
    Elicitation,
    Image,
    Message,
    Outcome,
    Pack,
    Roots,
    Sampling,
    ToolFailure,
)

pack = Pack("conformance")

# The smallest PNG and WAV files there are: one pixel, and no samples.
PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
WAV = b64encode(
    b"RIFF\x24\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00\x40\x1f\x00\x00\x80\x3e\x00\x00"
    b"\x02\x00\x10\x00data\x00\x00\x00\x00"
).decode()
IMAGE = {"type": "image", "data": PNG, "mimeType": "image/png"}
RESOURCE = {
    "type": "resource",
    "resource": {
        "uri": "test://embedded-resource",
        "mimeType": "text/plain",
        "text": "Embedded in the answer.",
    },
}


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


@pack.tool(read_only=True)
async def answer_first(ctx: CallContext) -> str:
    """Be the first of the list: the suite calls that one without arguments."""
    return "Here."


@pack.tool(read_only=True)
async def test_simple_text(ctx: CallContext) -> str:
    """Answer one text."""
    return "This is a simple text response for testing."


@pack.tool(read_only=True)
async def test_image_content(ctx: CallContext) -> Outcome:
    """Answer one image."""
    assert b64decode(PNG, validate=True)
    return Outcome((IMAGE,))


@pack.tool(read_only=True)
async def test_audio_content(ctx: CallContext) -> Outcome:
    """Answer one sound."""
    return Outcome(({"type": "audio", "data": WAV, "mimeType": "audio/wav"},))


@pack.tool(read_only=True)
async def test_embedded_resource(ctx: CallContext) -> Outcome:
    """Answer one embedded resource."""
    return Outcome((RESOURCE,))


@pack.tool(read_only=True)
async def test_multiple_content_types(ctx: CallContext) -> Outcome:
    """Answer a text, an image and an embedded resource."""
    return Outcome((text("Several kinds of content:"), IMAGE, RESOURCE))


@pack.tool(read_only=True)
async def test_error_handling(ctx: CallContext) -> str:
    """Fail in a way that the model can read."""
    raise ToolFailure("not_found", "This tool fails on purpose.")


@pack.tool(read_only=True)
async def test_tool_with_progress(ctx: CallContext) -> str:
    """Report progress three times before answering."""
    for progress in (0, 50, 100):
        await ctx.progress(progress, 100)
        await asyncio.sleep(0.05)
    return "Done."


@pack.tool(read_only=True)
async def test_custom_headers(
    ctx: CallContext,
    message: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Message"})],
) -> str:
    """Answer an argument that the client repeats in a header."""
    return message


async def _listed_only(ctx: CallContext, arguments: Any) -> Outcome:
    return Outcome((text("Fine."),))


pack.add(
    "json_schema_2020_12_tool",
    description="Be listed with a schema that uses what JSON Schema 2020-12 brought.",
    input_schema={
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            }
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    },
    invoke=_listed_only,
    read_only=True,
)


resource_pack = Pack("conformance_resources")


resource_pack.skill(Path(__file__).with_name("skills") / "greet-visitor")


@resource_pack.resource("test://static-text", mime_type="text/plain")
async def static_text(ctx: CallContext) -> str:
    """Return a text that never changes."""
    return "This is the content of the static text resource."


@resource_pack.resource("test://static-binary", mime_type="image/png")
async def static_binary(ctx: CallContext) -> bytes:
    """Return a picture of one pixel."""
    return b64decode(PNG)


@resource_pack.resource("test://watched-resource", mime_type="text/plain")
async def watched_resource(ctx: CallContext) -> str:
    """Return a text that clients may watch."""
    return "Watch me."


@resource_pack.resource("test://template/{id}/data", mime_type="application/json")
async def template_data(ctx: CallContext, id: str) -> str:  # the suite's own name
    """Return data of anything that has an id."""
    return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


@resource_pack.prompt()
async def test_simple_prompt(ctx: CallContext) -> str:
    """Start from a text without arguments."""
    return "This is a simple prompt for testing."


@resource_pack.prompt()
async def test_prompt_with_arguments(ctx: CallContext, arg1: str, arg2: str) -> str:
    """Start from a text that repeats two arguments."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@test_prompt_with_arguments.complete("arg1")
async def arg1_values(ctx: CallContext, value: str, given: dict[str, str]) -> list[str]:
    """Suggest what begins like what is typed."""
    return [known for known in ("test", "testValue1", "other") if known.startswith(value)]


@resource_pack.prompt()
async def test_prompt_with_embedded_resource(
    ctx: CallContext,
    resourceUri: str,  # the suite's own name
) -> list[Message]:
    """Start from a resource and a question about it."""
    embedded = Contents("Embedded resource content for testing.", "text/plain", uri=resourceUri)
    question = "Please process the embedded resource above."
    return [Message("user", embedded), Message("user", question)]


@resource_pack.prompt()
async def test_prompt_with_image(ctx: CallContext) -> list[Message]:
    """Start from a picture and a question about it."""
    return [
        Message("user", Image(b64decode(PNG))),
        Message("user", "Please analyze the image above."),
    ]


question_pack = Pack("questions")


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


TITLED_CHOICES = [{"const": f"value{n}", "title": f"Choice {n}"} for n in (1, 2, 3)]


PLAIN_CHOICES = ["option1", "option2", "option3"]


CHOICES: dict[str, Any] = {
    "type": "object",
    "properties": {
        "untitledSingle": {"type": "string", "enum": PLAIN_CHOICES},
        "titledSingle": {"type": "string", "oneOf": TITLED_CHOICES},
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["First", "Second", "Third"],
        },
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": PLAIN_CHOICES}},
        "titledMulti": {"type": "array", "items": {"anyOf": TITLED_CHOICES}},
    },
}


@question_pack.tool(read_only=True)
async def test_sampling(ctx: CallContext, prompt: str) -> str:
    """Let the client's model answer a prompt."""
    sampled = await ctx.sample(prompt, max_tokens=100)
    return f"The model says: {sampled.text}"


@question_pack.tool(read_only=True)
async def test_elicitation(ctx: CallContext, message: str) -> str:
    """Ask who is there."""
    answered = await ctx.ask(message, User)
    return f"{answered.action}: {answered.content}"


@question_pack.tool(read_only=True)
async def test_elicitation_sep1034_defaults(ctx: CallContext) -> str:
    """Ask with a form that is filled in already."""
    answered: Any = await ctx.ask("Is this you?", DEFAULTS)
    return f"{answered.action}: {answered.content}"


@question_pack.tool(read_only=True)
async def test_elicitation_sep1330_enums(ctx: CallContext) -> str:
    """Ask with each kind of choice."""
    answered: Any = await ctx.ask("Choose.", CHOICES)
    return f"{answered.action}: {answered.content}"


@question_pack.tool(read_only=True)
async def test_tool_with_logging(ctx: CallContext) -> str:
    """Say three things while working."""
    for step in ("started", "halfway there", "done"):
        await ctx.log("info", f"Work has {step}.", logger="conformance")
        await asyncio.sleep(0.05)
    return "Done."


@question_pack.tool(read_only=True)
async def test_logging_tool(ctx: CallContext) -> str:
    """Say something while working."""
    await ctx.log("info", "Working.")
    return "Done."


@question_pack.tool(read_only=True)
async def test_missing_capability(ctx: CallContext) -> str:
    """Need a client that lets its model be used."""
    return (await ctx.sample("Say something.", max_tokens=20)).text


@question_pack.tool(read_only=True)
async def test_streaming_elicitation(ctx: CallContext) -> str:
    """Report, then ask."""
    await ctx.progress(1, 2, "About to ask")
    answered = await ctx.ask("Go on?", FixtureConfirmation)
    return answered.action


@question_pack.tool(read_only=True)
async def test_input_required_result_elicitation(ctx: CallContext) -> str:
    """Ask for a name."""
    answered = await ctx.ask("What is your name?", Name, key="user_name")
    return f"Hello, {answered.content.name if answered.content else 'stranger'}!"


@question_pack.tool(read_only=True)
async def test_input_required_result_sampling(ctx: CallContext) -> str:
    """Ask the client's model."""
    question = "What is the capital of France?"
    return (await ctx.sample(question, max_tokens=100, key="capital_question")).text


@question_pack.tool(read_only=True)
async def test_input_required_result_list_roots(ctx: CallContext) -> str:
    """Ask which folders the client works in."""
    return ", ".join(root.uri for root in await ctx.roots(key="client_roots")) or "none"


@question_pack.tool(read_only=True)
async def test_input_required_result_request_state(ctx: CallContext) -> str:
    """Ask for a confirmation."""
    return (await ctx.ask("Go on?", FixtureConfirmation, key="confirm")).action


@question_pack.tool(read_only=True)
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


@question_pack.tool(read_only=True)
async def test_input_required_result_multi_round(ctx: CallContext) -> str:
    """Ask one thing after another."""
    name = await ctx.ask("What is your name?", Name, key="step1")
    color = await ctx.ask("What is your favourite color?", Color, key="step2")
    return f"{name.content} likes {color.content}"


@question_pack.tool(read_only=True)
async def test_input_required_result_tampered_state(ctx: CallContext) -> str:
    """Ask for a confirmation, with a state that must come back as it was."""
    return (await ctx.ask("Go on?", FixtureConfirmation, key="confirm")).action


@question_pack.tool(read_only=True)
async def test_input_required_result_capabilities(ctx: CallContext) -> str:
    """Ask a client that can be asked."""
    if ctx.can("elicitation"):
        return (await ctx.ask("Go on?", FixtureConfirmation, key="confirm")).action
    return (await ctx.sample("Shall we go on?", max_tokens=20, key="opinion")).text


@question_pack.prompt()
async def test_input_required_result_prompt(ctx: CallContext) -> str:
    """Ask what the prompt is about."""
    answered = await ctx.ask("What is it about?", Context, key="user_context")
    return f"Help me with {answered.content.context if answered.content else 'this'}."
