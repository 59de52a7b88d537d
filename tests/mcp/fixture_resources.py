"""The resources, prompts and skills that the official conformance suite asks for."""

import json
from base64 import b64decode
from pathlib import Path

from gatepost import CallContext, Contents, Image, Message, Pack

pack = Pack("conformance_resources")

PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

pack.skill(Path(__file__).with_name("skills") / "greet-visitor")


@pack.resource("test://static-text", mime_type="text/plain")
async def static_text(ctx: CallContext) -> str:
    """A text that never changes."""
    return "This is the content of the static text resource."


@pack.resource("test://static-binary", mime_type="image/png")
async def static_binary(ctx: CallContext) -> bytes:
    """A picture of one pixel."""
    return b64decode(PNG)


@pack.resource("test://watched-resource", mime_type="text/plain")
async def watched_resource(ctx: CallContext) -> str:
    """A text that clients may watch."""
    return "Watch me."


@pack.resource("test://template/{id}/data", mime_type="application/json")
async def template_data(ctx: CallContext, id: str) -> str:  # the suite's own name
    """Data of anything that has an id."""
    return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


@pack.prompt()
async def test_simple_prompt(ctx: CallContext) -> str:
    """Start from a text without arguments."""
    return "This is a simple prompt for testing."


@pack.prompt()
async def test_prompt_with_arguments(ctx: CallContext, arg1: str, arg2: str) -> str:
    """Start from a text that repeats two arguments."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@test_prompt_with_arguments.complete("arg1")
async def arg1_values(ctx: CallContext, value: str, given: dict[str, str]) -> list[str]:
    """Suggest what begins like what is typed."""
    return [known for known in ("test", "testValue1", "other") if known.startswith(value)]


@pack.prompt()
async def test_prompt_with_embedded_resource(
    ctx: CallContext,
    resourceUri: str,  # the suite's own name
) -> list[Message]:
    """Start from a resource and a question about it."""
    embedded = Contents("Embedded resource content for testing.", "text/plain", uri=resourceUri)
    question = "Please process the embedded resource above."
    return [Message("user", embedded), Message("user", question)]


@pack.prompt()
async def test_prompt_with_image(ctx: CallContext) -> list[Message]:
    """Start from a picture and a question about it."""
    return [
        Message("user", Image(b64decode(PNG))),
        Message("user", "Please analyze the image above."),
    ]
