"""Shows GitLab's response to a model: complete JSON is parsed, and a cut body says so."""

import base64
import codecs
from typing import Annotated, Any, NotRequired

import msgspec
from pydantic import Field
from typing_extensions import TypedDict

from gatepost import OutboundReply

UNSHOWN = frozenset({"set-cookie", "set-cookie2", "connection", "keep-alive", "transfer-encoding"})
"""Headers that hold credentials or concern only the connection."""

CHARSETS = {"utf-8": "utf-8", "utf8": "utf-8", "us-ascii": "ascii", "iso-8859-1": "latin-1"}
MOST_DEPTH = 60


class GitlabResponse(TypedDict):
    """What GitLab answered, whatever its status."""

    status_code: int
    headers: dict[str, str]
    text: Annotated[str | None, Field(description="The body, where it is text and was asked for")]
    json: Annotated[Any, Field(description="The body as a value, where it is whole JSON")]
    truncated: Annotated[bool, Field(description="Whether there is more than `max_bytes`")]
    base64: NotRequired[Annotated[str, Field(description="The body's bytes, where asked for")]]


def shown(reply: OutboundReply, *, text: bool, data: bool) -> GitlabResponse:
    """Return the result; *text* and *data* say in which forms the body is wanted."""
    kind = reply.headers.get("content-type", "")
    answered = GitlabResponse(
        status_code=reply.status,
        headers={name: value for name, value in reply.headers.items() if name not in UNSHOWN},
        text=_text(kind, reply.body, whole=not reply.truncated) if text else None,
        json=None if reply.truncated else _value(kind, reply.body),
        truncated=reply.truncated,
    )
    if data:
        answered["base64"] = base64.b64encode(reply.body).decode()
    return answered


def _value(kind: str, body: bytes) -> Any:
    media = kind.partition(";")[0].strip().lower()
    if media != "application/json" and not media.endswith("+json"):
        return None
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return value if _is_shallow(value) else None


def _is_shallow(value: Any, depth: int = 0) -> bool:
    """Return whether every parser on the way to the model can read it: many limit the depth."""
    if depth > MOST_DEPTH:
        return False
    if isinstance(value, dict):
        return all(_is_shallow(one, depth + 1) for one in value.values())
    return not isinstance(value, list) or all(_is_shallow(one, depth + 1) for one in value)


def _text(kind: str, body: bytes, *, whole: bool) -> str | None:
    """Return the body as text, cut between two characters; None if it is not text."""
    _, _, told = kind.lower().partition("charset=")
    charset = CHARSETS.get(told.split(";")[0].strip(' "'), "utf-8")
    try:
        text = codecs.getincrementaldecoder(charset)().decode(body, final=whole)
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text
