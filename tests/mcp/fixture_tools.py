"""The tools that the official conformance suite calls, written as a user of Gatepost would."""

import asyncio
from base64 import b64decode, b64encode
from typing import Annotated, Any

from pydantic import Field

from gatepost import CallContext, Outcome, Pack, ToolFailure

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
