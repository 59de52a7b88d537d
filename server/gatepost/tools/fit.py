"""An outcome within its size limit, still valid, saying that it was cut."""

from collections.abc import Mapping
from typing import Any

import msgspec

from gatepost.tools.api import Failure, Offer, Outcome, Tool

# JSON writes one byte of text as up to six (a control character as \u00XX).
WORST_EXPANSION = 6
# Room for the note and for the members around each block.
NOTE_BYTES = 256

UNENCODABLE = (AttributeError, TypeError, ValueError, RecursionError)
"""What an outcome raises that has no JSON, or whose blocks are no mappings."""

_encode = msgspec.json.encode


def fit(outcome: Outcome, offer: Offer, limit: int) -> Outcome:
    """
    Bring an outcome within *limit* bytes of JSON; TypeError or ValueError when it is no JSON.

    A tool's text is cut where a character ends, other blocks are left out, and a last block says
    so. An answer that must satisfy an output schema cannot be cut, nor can the contents of a
    resource or a prompt: it becomes a failure that says how large it was.
    """
    if _surely_small(outcome, limit):
        return outcome
    if outcome.failure is not None:
        return _shorten_failure(outcome.failure, limit)
    sizes = [len(_encode(block)) for block in outcome.content]
    extra = 0 if outcome.structured is msgspec.UNSET else len(_encode(outcome.structured))
    if sum(sizes) + extra <= limit:
        return outcome
    if not isinstance(offer, Tool) or offer.output_schema is not None:
        message = (
            f"The answer has {sum(sizes) + extra} bytes, which is more than the {limit} allowed. "
            "Ask for less at once."
        )
        return Outcome(failure=Failure("validation", message))
    return Outcome(tuple(_cut(outcome.content, sizes, limit)))


def fitting_bytes(limit: int) -> int:
    """A text and a structured value that are no longer than this are surely within *limit*."""
    return max(limit - NOTE_BYTES, 0) // (WORST_EXPANSION + 1)


def tellable(failure: Failure) -> Failure:
    """The failure with its message as text that can be sent, whatever was pasted into it."""
    message = str(failure.message)
    if message.isascii() and message is failure.message:
        return failure
    return msgspec.structs.replace(failure, message=message.encode(errors="replace").decode())


def _surely_small(outcome: Outcome, limit: int) -> bool:
    """Decide the usual case without encoding anything."""
    if isinstance(outcome.structured, msgspec.Raw):
        size = len(memoryview(outcome.structured))
    elif outcome.structured is msgspec.UNSET:
        size = 0
    else:
        return False
    for block in outcome.content:
        text = block.get("text")
        if not isinstance(text, str) or len(block) > 2:
            if block.get("type") == "text" and not isinstance(text, str):
                raise TypeError("a text block holds no text")
            return False
        if not text.isascii():
            # Half a surrogate pair, as in odd file names: UnicodeEncodeError, and not at the wire.
            text.encode()
        size += len(text) * WORST_EXPANSION + NOTE_BYTES
    if outcome.failure is not None:
        outcome.failure.message.encode()
        size += len(outcome.failure.message) * WORST_EXPANSION
    return size <= limit


def _shorten_failure(failure: Failure, limit: int) -> Outcome:
    message = _prefix(failure.message, max(limit - NOTE_BYTES, 0))
    return Outcome(failure=msgspec.structs.replace(failure, message=f"{message} [cut]"))


def _cut(
    content: tuple[Mapping[str, Any], ...], sizes: list[int], limit: int
) -> list[Mapping[str, Any]]:
    room = limit - NOTE_BYTES
    kept: list[Mapping[str, Any]] = []
    left_out = 0
    for block, size in zip(content, sizes, strict=True):
        if size <= room:
            kept.append(block)
            room -= size
        elif isinstance(block.get("text"), str) and room > NOTE_BYTES:
            kept.append({**block, "text": _prefix(block["text"], room - NOTE_BYTES)})
            room = 0
        else:
            left_out += 1
            room = min(room, 0) if isinstance(block.get("text"), str) else room
    note = f"[The answer was cut: it had {sum(sizes)} bytes, and {limit} are allowed."
    note += f" {left_out} parts are left out.]" if left_out else "]"
    return [*kept, {"type": "text", "text": note}]


def _prefix(text: str, room: int) -> str:
    """The longest beginning of *text* whose JSON is surely no longer than *room* bytes."""
    low, high = 0, min(len(text), room)
    while low < high:
        middle = (low + high + 1) // 2
        if len(_encode(text[:middle])) <= room:
            low = middle
        else:
            high = middle - 1
    return text[:low]
