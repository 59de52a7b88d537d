"""`completion/complete`: suggestions, through the runner like everything else."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET

from gatepost.mcp.jsonrpc import INVALID_PARAMS, Refused
from gatepost.mcp.params import decode_as
from gatepost.mcp.project import completed, failed
from gatepost.mcp.server import Ask, Server
from gatepost.tools.api import Call
from gatepost.tools.completion import Question
from gatepost.tools.registry import Unknown

WITHOUT_CONTEXT = "2025-03-26"

_encode = msgspec.json.encode


class Reference(msgspec.Struct):
    """What has the argument: a prompt by its name, or a template by its text."""

    type: Literal["ref/prompt", "ref/resource"]
    name: str = ""
    uri: str = ""


class Typed(msgspec.Struct):
    """The argument, as far as it is typed."""

    name: str
    value: str


class Context(msgspec.Struct):
    """The other arguments (2025-06-18 and later)."""

    arguments: dict[str, str] = {}


async def complete(server: Server, ask: Ask) -> bytes:
    """`completion/complete`."""
    reference: Reference = _part(Reference, ask.params.ref, "ref")
    typed: Typed = _part(Typed, ask.params.argument, "argument")
    given: dict[str, str] = {}
    if ask.params.context is not UNSET and ask.revision != WITHOUT_CONTEXT:
        given = decode_as(Context, bytes(ask.params.context)).arguments
    # A name has no colon and a URI has one, so that neither is taken for the other.
    key = reference.name if reference.type == "ref/prompt" else reference.uri
    if (":" in key) is (reference.type == "ref/prompt"):
        raise unknown_reference()
    call = Call(
        caller=ask.caller,
        name=key,
        arguments=_encode(Question(typed.name, typed.value, given)),
        request_id=ask.request_id,
        kind="completion",
        peer=ask.peer,
    )
    try:
        outcome = await server.runner.run(call)
    except Unknown:
        raise unknown_reference() from None
    if outcome.failure is not None:
        raise failed(outcome.failure)
    body = b'"completion":' + _encode(outcome.structured)
    return completed(body, ask.revision, server.tail)


def unknown_reference() -> Refused:
    """The same words for what is not there and what this caller cannot reach."""
    return Refused(INVALID_PARAMS, "Unknown reference")


def _part(kind: type[Any], raw: msgspec.Raw | msgspec.UnsetType, member: str) -> Any:
    if raw is UNSET:
        raise Refused(INVALID_PARAMS, f"params.{member} is required")
    return decode_as(kind, bytes(raw))
