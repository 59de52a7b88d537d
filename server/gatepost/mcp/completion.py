"""Answer `completion/complete` with suggestions; the runner calls the completer."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET

from gatepost.mcp.jsonrpc import INVALID_PARAMS, JsonRpcError
from gatepost.mcp.request import decode_as
from gatepost.mcp.responses import completed, failed
from gatepost.mcp.server import McpRequest, McpServer, counted
from gatepost.tools.authoring.suggestions import CompletionRequest
from gatepost.tools.calls.registry import Unknown

WITHOUT_CONTEXT = "2025-03-26"

_encode = msgspec.json.encode


class CompletionReference(msgspec.Struct):
    """The prompt (by name) or resource template (by URI template) that has the argument."""

    type: Literal["ref/prompt", "ref/resource"]
    name: str = ""
    uri: str = ""


class PartialArgument(msgspec.Struct):
    """The argument's name and the part of its value typed so far."""

    name: str
    value: str


class CompletionContext(msgspec.Struct):
    """The other arguments (2025-06-18 and later)."""

    arguments: dict[str, str] = {}


@counted
async def complete(server: McpServer, ask: McpRequest) -> bytes:
    """Answer `completion/complete`."""
    reference: CompletionReference = _converted(CompletionReference, ask.params.ref, "ref")
    typed: PartialArgument = _converted(PartialArgument, ask.params.argument, "argument")
    context_arguments: dict[str, str] = {}
    if ask.params.context is not UNSET and ask.revision != WITHOUT_CONTEXT:
        context_arguments = decode_as(CompletionContext, bytes(ask.params.context)).arguments
    # A name has no colon and a URI has one, so neither can be mistaken for the other.
    key = reference.name if reference.type == "ref/prompt" else reference.uri
    if (":" in key) is (reference.type == "ref/prompt"):
        raise unknown_reference()
    arguments = _encode(CompletionRequest(typed.name, typed.value, context_arguments))
    try:
        outcome = await server.runner.run(ask.call("completion", key, arguments))
    except Unknown:
        raise unknown_reference().counted() from None
    if outcome.failure is not None:
        raise failed(outcome.failure)
    body = b'"completion":' + _encode(outcome.structured)
    return completed(body, ask.revision, server.meta)


def unknown_reference() -> JsonRpcError:
    """Return the refusal of a reference; it is the same if the reference is out of reach."""
    return JsonRpcError(INVALID_PARAMS, "Unknown reference")


def _converted(kind: type[Any], raw: msgspec.Raw | msgspec.UnsetType, member: str) -> Any:
    if raw is UNSET:
        raise JsonRpcError(INVALID_PARAMS, f"params.{member} is required")
    return decode_as(kind, bytes(raw))
