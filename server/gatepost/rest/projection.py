"""One Outcome, or the reason why there is none → status and body of the REST protocol."""

import math
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from gatepost.pledge import Instead
from gatepost.tools.api import Failure, FailureKind, Outcome
from gatepost.tools.client import MissingCapability, ProtocolError
from gatepost.tools.runner import UNRECORDED

Header = tuple[bytes, bytes]

TABLE: Mapping[FailureKind, tuple[int, str]] = {
    "validation": (422, "validation_error"),
    "not_found": (404, "not_found"),
    "denied": (403, "denied"),
    "conflict": (409, "conflict"),
    "rate_limit": (429, "rate_limited"),
    "upstream_unavailable": (503, "upstream_unavailable"),
    "approval_pending": (503, "approval_pending"),
    "timeout": (504, "timeout"),
    "internal": (500, "internal_error"),
}
"""The failure table of the design: what a tool or its arguments got wrong, as status and word."""

RETRY_AFTER_S: Mapping[FailureKind, float] = {
    "rate_limit": 1,
    "upstream_unavailable": 30,
    "approval_pending": 5,
}
"""When to come back, where the failure does not say; other kinds have it when they do."""

STORE_RETRY_AFTER_S = 5

# JSON-RPC 2.0 section 5.1: the two reserved codes that a tool may answer with.
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603

_encode = msgspec.json.encode


class Refusal(Exception):
    """A request that ends before a result: ``code`` is the stable word, ``third`` more members."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        headers: tuple[Header, ...] = (),
        third: Mapping[str, object] = {},
    ) -> None:
        super().__init__(code)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers
        self.third = third


class Reply(msgspec.Struct, frozen=True):
    """An answer before it is sent; its body is always JSON."""

    status: int
    body: bytes
    headers: tuple[Header, ...] = ()


def refused(refusal: Refusal) -> Reply:
    """The answer to a request that reaches no tool."""
    shown = {"error": refusal.code, "message": refusal.message, **refusal.third}
    return Reply(refusal.status, _encode(shown), refusal.headers)


def failed(failure: Failure) -> Reply:
    """The answer to a call that failed; what is in ``message`` reaches the model."""
    status, word = TABLE[failure.kind]
    shown: dict[str, Any] = {"error": word, "message": failure.message}
    if failure.kind == "validation" and failure.field is not None:
        shown["field"] = failure.field
    wait = failure.retry_after
    if wait is None or not math.isfinite(wait):
        wait = RETRY_AFTER_S.get(failure.kind)
    if wait is None:
        return Reply(status, _encode(shown))
    return _later(status, shown, max(1, math.ceil(wait)))


def succeeded(outcome: Outcome) -> Reply:
    """
    The bare result: the structured value where it is an object.

    Any other answer becomes an object: ``result`` holds its text (or a structured value that is
    no object), ``images`` its pictures, ``content`` its other blocks as MCP writes them.
    """
    if outcome.structured is not UNSET:
        encoded = _encode(outcome.structured)
        return Reply(200, encoded if encoded[:1] == b"{" else b'{"result":' + encoded + b"}")
    texts, images, others = [], [], []
    for block in outcome.content:
        kind = block.get("type")
        if kind == "text":
            texts.append(str(block.get("text", "")))
        elif kind == "image":
            images.append({"mime_type": block.get("mimeType"), "data": block.get("data")})
        else:
            others.append(block)
    # Empty blocks say nothing, and between others they would only add space.
    shown: dict[str, Any] = {"result": "\n\n".join(filter(None, texts))}
    if images:
        shown["images"] = images
    if others:
        shown["content"] = others
    return Reply(200, _encode(shown))


def unable(missing: MissingCapability) -> Refusal:
    """The tool has to ask somebody, and callers of this protocol cannot be asked."""
    return Refusal(
        403,
        "denied",
        "This tool has to ask its user or their client something, which this protocol cannot do "
        f"(it needs: {', '.join(missing.required)}). Use it over MCP.",
    )


def protocol_error(error: ProtocolError) -> Refusal:
    """A JSON-RPC error that a tool answers with, which this protocol has no place for."""
    if error.code == INVALID_PARAMS:
        return Refusal(422, "validation_error", error.message)
    if error.code == INTERNAL_ERROR:
        return Refusal(500, "internal_error", error.message)
    return Refusal(400, "protocol_error", error.message, third={"code": error.code})


def store_unavailable() -> Refusal:
    """Our own outage: nothing is said of what is out."""
    return Refusal(
        503,
        "unavailable",
        "The server cannot reach its storage at the moment. "
        f"Try again in {STORE_RETRY_AFTER_S} seconds.",
        (_retry_after(STORE_RETRY_AFTER_S),),
        {"retry_after": STORE_RETRY_AFTER_S},
    )


def _later(status: int, shown: dict[str, Any], seconds: int) -> Reply:
    # Agents are handed the message alone, and some tools say it themselves.
    if str(seconds) not in shown["message"]:
        shown["message"] += f" Try again in {seconds} second{'' if seconds == 1 else 's'}."
    shown["retry_after"] = seconds
    return Reply(status, _encode(shown), (_retry_after(seconds),))


def _retry_after(seconds: int) -> Header:
    return b"retry-after", b"%d" % seconds


def unrecorded(request_id: str | None) -> Instead:
    """What is said instead of an answer whose record could not be written."""
    shown = {"error": "internal_error", "message": UNRECORDED, "request_id": request_id}
    return Instead(500, ((b"content-type", b"application/json"),), _encode(shown))
