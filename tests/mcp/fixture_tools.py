"""The tools and resources that the official suite and the real clients ask for."""

import asyncio
import json
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field

from gatepost import CallContext, Contents, Image, Message, Outcome, Pack, ToolFailure

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
    """A text that never changes."""
    return "This is the content of the static text resource."


@resource_pack.resource("test://static-binary", mime_type="image/png")
async def static_binary(ctx: CallContext) -> bytes:
    """A picture of one pixel."""
    return b64decode(PNG)


@resource_pack.resource("test://watched-resource", mime_type="text/plain")
async def watched_resource(ctx: CallContext) -> str:
    """A text that clients may watch."""
    return "Watch me."


@resource_pack.resource("test://template/{id}/data", mime_type="application/json")
async def template_data(ctx: CallContext, id: str) -> str:  # the suite's own name
    """Data of anything that has an id."""
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


change_pack = Pack("conformance_changes")


@change_pack.tool()
async def test_trigger_tool_change(ctx: CallContext) -> str:
    """Announce that the list of tools changed; afterwards it is as it was."""
    await ctx.changes.listed("tools")
    return "Announced."


@change_pack.tool()
async def test_trigger_prompt_change(ctx: CallContext) -> str:
    """Announce that the list of prompts changed; afterwards it is as it was."""
    await ctx.changes.listed("prompts")
    return "Announced."


client_pack = Pack("clients")


class Weather(BaseModel):
    """How it is outside."""

    city: str
    degrees: float


@client_pack.tool(read_only=True)
async def weather(ctx: CallContext, city: str) -> Weather:
    """Say how warm it is in a city."""
    return Weather(city=city, degrees=21.5)


@client_pack.tool()
async def link_account(ctx: CallContext) -> str:
    """Send the user to a page."""
    return (await ctx.ask_url("Link your account", "https://mcp.example.com/connect")).action


@client_pack.tool()
async def touch(ctx: CallContext) -> str:
    """Announce that the watched document changed."""
    await ctx.changes.updated("test://watched-resource")
    return "Announced."
