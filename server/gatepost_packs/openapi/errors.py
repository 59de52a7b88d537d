"""Turn an API's error responses into failures that a model can act on."""

from collections.abc import Mapping
from typing import Any

import msgspec

from gatepost import FailureKind, OutboundReply, ToolFailure, decoded
from gatepost_packs.retry_after import retry_after

FAILURE_KINDS: Mapping[int, FailureKind] = {
    401: "denied",
    403: "denied",
    404: "not_found",
    410: "not_found",
    409: "conflict",
    412: "conflict",
    423: "conflict",
    408: "timeout",
    429: "rate_limit",
}
SHOWN_CHARACTERS = 600
LONGEST_BYTES = 65_536
"""The size from which a body is read as text."""
WORDS = ("message", "detail", "error_description", "error", "title", "errors", "reason", "msg")
"""Members that hold an API's message (RFC 9457 has `detail` and `title`), the best first."""


def refusal_of(reply: OutboundReply, subject: str) -> ToolFailure:
    """Return the failure for a response other than 2xx; *subject* names the operation."""
    status = reply.status
    kind: FailureKind = FAILURE_KINDS.get(status, "validation")
    if status >= 500:
        kind = "upstream_unavailable"
    if 300 <= status < 400:
        message = f"{subject} answered {status}: it has moved, and only reads follow redirects."
        return ToolFailure("not_found", message)
    text, field = _message_of(reply.body)
    message = f"{subject} answered {status}" + (f": {text}" if text else ".")
    wait = retry_after(reply.headers) if kind in ("rate_limit", "upstream_unavailable") else None
    return ToolFailure(
        kind, message, field=field if kind == "validation" else None, retry_after=wait
    )


def _message_of(body: bytes) -> tuple[str, str | None]:
    """Return the API's own message, and the argument that it names, if any."""
    try:
        value = decoded(body[:LONGEST_BYTES])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        text = body[: SHOWN_CHARACTERS * 4].decode("utf-8", errors="replace").strip()
        return ("" if text.startswith("<") else text[:SHOWN_CHARACTERS]), None
    sentence, field = _sentence(value)
    if not sentence and value not in (None, {}, [], ""):
        sentence = msgspec.json.encode(value).decode()
    return sentence[:SHOWN_CHARACTERS], field


def _sentence(value: Any, depth: int = 0) -> tuple[str, str | None]:
    if isinstance(value, str):
        return value.strip(), None
    if depth > 3:
        return "", None
    if isinstance(value, list):
        sentences = [_sentence(item, depth + 1) for item in value[:5]]
        fields = [field for _, field in sentences if field]
        return " ".join(text for text, _ in sentences if text), fields[0] if fields else None
    if not isinstance(value, dict):
        return "", None
    field = _field(value)
    for word in WORDS:
        if word in value:
            sentence, inner = _sentence(value[word], depth + 1)
            if sentence:
                error_field = field or inner
                prefix = f"{error_field}: " if field and depth and field not in sentence else ""
                return f"{prefix}{sentence}", error_field
    return "", field


def _field(value: Mapping[str, Any]) -> str | None:
    """
    Return the argument in `{"field": "priority"}` or FastAPI's `{"loc": ["body", "priority"]}`.
    """
    if isinstance(value.get("field"), str):
        return str(value["field"])
    location = value.get("loc")
    if isinstance(location, list) and location and isinstance(location[-1], str):
        return location[-1]
    return None
