"""Read files as text for a model: detect binary data, cut between characters, and add a note."""

import codecs
import mimetypes
from collections.abc import Mapping
from typing import Any

from gatepost import FileHead, Outcome, ToolFailure


def result_schema(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the output schema of a tool that returns one value of that schema, or a text."""
    return {"type": "object", "properties": {"result": value}, "required": ["result"]}


TEXT_RESULT = result_schema({"type": "string"})
"""The output schema of a tool that returns a text."""

MAX_BYTES = 4_000_000
"""Maximum number of bytes that one call can read."""


def encoded(text: str, field: str) -> bytes:
    """Return *text* as UTF-8; ToolFailure if JSON carried half a character."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        message = f"`{field}` is not valid text: half a character at position {error.start}."
        raise ToolFailure("validation", message, field=field) from None


def decoded(shown_path: str, head: FileHead) -> str:
    """
    Return the text of a file's beginning, without a partial character at its end.

    ToolFailure, naming the file as *shown_path*, if it is not UTF-8 text.
    """
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(
            head.data, final=len(head.data) >= head.size
        )
    except UnicodeDecodeError:
        raise _binary(shown_path, head) from None
    if "\0" in text:
        raise _binary(shown_path, head)
    return text


def shown_text(shown_path: str, head: FileHead) -> Outcome:
    """Return a file's text as a result; a second block says where it was cut."""
    text = decoded(shown_path, head)
    blocks = [{"type": "text", "text": text}]
    if len(head.data) < head.size:
        note = (
            f"[Cut: these are the first {len(text.encode())} of {head.size} bytes. Pass a "
            "larger max_bytes for more.]"
        )
        blocks.append({"type": "text", "text": note})
    return Outcome(tuple(blocks))


def _binary(shown_path: str, head: FileHead) -> ToolFailure:
    kind, _ = mimetypes.guess_type(shown_path, strict=False)
    kind_note = f" (by its name {kind})" if kind else ""
    message = f"{shown_path} is not UTF-8 text but {head.size} bytes of binary data{kind_note}."
    return ToolFailure("validation", message, field="path")
