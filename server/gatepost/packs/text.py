"""Files as text for a model: told apart from bytes, cut where a character ends, saying so."""

import codecs
import mimetypes

from gatepost.tools.api import Outcome, ToolFailure
from gatepost.tools.surroundings import Head

MOST_BYTES = 4_000_000
"""What a tool may be asked to read at once."""


def encoded(text: str, field: str) -> bytes:
    """*text* as UTF-8; ToolFailure when JSON carried half a character."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        message = f"`{field}` is not valid text: half a character at position {error.start}."
        raise ToolFailure("validation", message, field=field) from None


def decoded(shown: str, head: Head) -> str:
    """
    The text of a file's beginning, without the part of a character at its end.

    ToolFailure, naming the file as *shown*, when it is no UTF-8 text.
    """
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(
            head.data, final=len(head.data) >= head.size
        )
    except UnicodeDecodeError:
        raise _binary(shown, head) from None
    if "\0" in text:
        raise _binary(shown, head)
    return text


def shown_text(shown: str, head: Head) -> Outcome:
    """A file's text as an answer; a second block says where it was cut."""
    text = decoded(shown, head)
    blocks = [{"type": "text", "text": text}]
    if len(head.data) < head.size:
        note = (
            f"[Cut: these are the first {len(text.encode())} of {head.size} bytes. "
            "Pass a larger max_bytes for more.]"
        )
        blocks.append({"type": "text", "text": note})
    return Outcome(tuple(blocks))


def _binary(shown: str, head: Head) -> ToolFailure:
    kind, _ = mimetypes.guess_type(shown, strict=False)
    told = f" (by its name {kind})" if kind else ""
    message = f"{shown} is no UTF-8 text but {head.size} bytes of something else{told}."
    return ToolFailure("validation", message, field="path")
