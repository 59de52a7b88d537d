"""Convert outcomes and refusals into status and body of the REST protocol."""

import math
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from gatepost.tools.authoring.results import BEFORE_RESULT, RESULT, text_of
from gatepost.tools.calls.runner import UNRECORDED
from gatepost.tools.context.client import MissingCapability, ProtocolError
from gatepost.tools.offers.offer import Failure, FailureKind, Outcome
from gatepost_authz.headers import HeaderField

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
"""
The status and error code of each kind of failure, except the error of another server's tool, which
is a result.
"""

UNREACHABLE = 502
"""The status if an MCP server cannot be reached; only the routes of administrators answer it."""

RETRY_AFTER_S: Mapping[FailureKind, float] = {
    "rate_limit": 1,
    "upstream_unavailable": 30,
    "approval_pending": 5,
}
"""The default `Retry-After` of a kind; other kinds have one only if the failure names it."""

STORE_RETRY_AFTER_S = 5

# JSON-RPC 2.0 section 5.1: the two reserved codes that a tool may answer with.
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603

_encode = msgspec.json.encode


class RestRefusal(Exception):
    """Ends a request without a result; ``code`` is the error code, ``third`` has more members."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        headers: tuple[HeaderField, ...] = (),
        third: Mapping[str, object] = {},
    ) -> None:
        super().__init__(code)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers
        self.third = third


class RestResponse(msgspec.Struct, frozen=True):
    """An answer; its body is always JSON."""

    status: int
    body: bytes
    headers: tuple[HeaderField, ...] = ()


def refused(refusal: RestRefusal) -> RestResponse:
    """Return the answer to a request that reaches no tool."""
    body = {"error": refusal.code, "message": refusal.message, **refusal.third}
    return RestResponse(refusal.status, _encode(body), refusal.headers)


def failed(failure: Failure) -> RestResponse:
    """Return the answer to a failed call; its ``message`` reaches the agent."""
    if failure.kind == "tool_error":
        # Another server's tool has run, and this is its own error.
        return RestResponse(200, _encode({RESULT: {"error": failure.message}}))
    status, code = TABLE[failure.kind]
    body: dict[str, Any] = {"error": code, "message": failure.message}
    if failure.kind == "validation" and failure.field is not None:
        body["field"] = failure.field
    wait = failure.retry_after
    if wait is None or not math.isfinite(wait):
        wait = RETRY_AFTER_S.get(failure.kind)
    if wait is None:
        return RestResponse(status, _encode(body))
    return _later(status, body, max(1, math.ceil(wait)))


def succeeded(outcome: Outcome) -> RestResponse:
    """
    Return the answer to a successful call: the structured value, if it is an object.

    Any other result becomes an object: ``result`` has its text (or a structured value that is not
    an object), ``images`` its images, and ``content`` its other blocks in MCP's form.
    """
    if outcome.structured is not UNSET:
        encoded = _encode(outcome.structured)
        return RestResponse(200, encoded if encoded[:1] == b"{" else BEFORE_RESULT + encoded + b"}")
    images, other_blocks = [], []
    for block in outcome.content:
        kind = block.get("type")
        if kind == "image":
            images.append({"mime_type": block.get("mimeType"), "data": block.get("data")})
        elif kind != "text":
            other_blocks.append(block)
    body: dict[str, Any] = {RESULT: text_of(outcome.content)}
    if images:
        body["images"] = images
    if other_blocks:
        body["content"] = other_blocks
    return RestResponse(200, _encode(body))


def unable(missing: MissingCapability) -> RestRefusal:
    """Return the refusal of a tool that needs input, which this protocol cannot ask for."""
    return RestRefusal(
        403,
        "denied",
        "This tool needs input from the user or the client, which this protocol cannot ask for "
        f"(it needs: {', '.join(missing.required)}). Use it over MCP.",
    )


def rate_limited(failure: Failure) -> RestRefusal:
    """Return the refusal of a request, other than a call, that exceeds the rate limit."""
    reply = failed(failure)
    body = msgspec.json.decode(reply.body)
    error, message = body.pop("error"), body.pop("message")
    return RestRefusal(reply.status, error, message, reply.headers, body)


def protocol_error(error: ProtocolError) -> RestRefusal:
    """Convert a tool's JSON-RPC error, for which this protocol has no form."""
    if error.code == INVALID_PARAMS:
        return RestRefusal(422, "validation_error", error.message)
    if error.code == INTERNAL_ERROR:
        return RestRefusal(500, "internal_error", error.message)
    return RestRefusal(400, "protocol_error", error.message, third={"code": error.code})


def store_unavailable() -> RestRefusal:
    """Return the refusal for an unavailable store, without naming the store."""
    return RestRefusal(
        503,
        "unavailable",
        "The server cannot reach its storage at the moment. "
        f"Try again in {STORE_RETRY_AFTER_S} seconds.",
        (_retry_after(STORE_RETRY_AFTER_S),),
        {"retry_after": STORE_RETRY_AFTER_S},
    )


def _later(status: int, body: dict[str, Any], seconds: int) -> RestResponse:
    # Agents get only the message, and some tools already name the time in it.
    if str(seconds) not in body["message"]:
        body["message"] += f" Try again in {seconds} second{'' if seconds == 1 else 's'}."
    body["retry_after"] = seconds
    return RestResponse(status, _encode(body), (_retry_after(seconds),))


def _retry_after(seconds: int) -> HeaderField:
    return b"retry-after", b"%d" % seconds


def unrecorded(request_id: str | None) -> RestRefusal:
    """Return the answer to a call that was carried out but not recorded."""
    return RestRefusal(500, "internal_error", UNRECORDED, third={"request_id": request_id})
