"""Cut an outcome to its size limit, so that it stays valid and says that it was cut."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from gatepost.tools.offers.offer import WORDS, Failure, Offer, Outcome, Tool

# JSON encodes one byte of text as up to six (a control character as \u00XX).
WORST_EXPANSION = 6
# Room for the note and for the members around each block.
NOTE_BYTES = 256

MIN_BYTES = 2 * NOTE_BYTES
"""Minimum room for the text beside a structured value, with the note that it was cut."""

PIECE_CHARACTERS = 16_384
"""
A text is counted and cut in pieces. Encoding all of it for each guess at the length took 0.4
seconds for a text of only quotation marks.
"""

UNENCODABLE = (AttributeError, TypeError, ValueError, RecursionError)
"""The exceptions for an outcome that has no JSON or whose blocks are not mappings."""

_ESCAPED = b'"\\\b\f\n\r\t'
"""The characters that JSON writes with a backslash; other control characters take six bytes."""
_CONTROLS = bytes(code for code in range(32) if code not in _ESCAPED)

_encode = msgspec.json.encode


def truncate(outcome: Outcome, offer: Offer, limit: int) -> Outcome:
    """
    Cut an outcome to *limit* bytes of JSON; raises TypeError or ValueError if it has no JSON.

    A tool's text is cut at the end of a character, other blocks are dropped, and a last block says
    so. A value with an output schema cannot be cut, only the text beside it. The contents of a
    resource or a prompt cannot be cut either. What cannot be cut becomes a failure with its size.
    The failure is not a validation error: the work is done, and an agent that corrects its
    arguments would do it again. The entries of a lister are not cut, because each page of them is.
    """
    if offer.kind == "listing" or _surely_small(outcome, limit):
        return outcome
    if outcome.failure is not None:
        return _shorten_failure(outcome.failure, limit)
    sizes = [_size(block) for block in outcome.content]
    extra = 0 if outcome.structured is msgspec.UNSET else len(_encode(outcome.structured))
    if sum(sizes) + extra <= limit:
        return outcome
    if not isinstance(offer, Tool):
        return _too_large(f"The {WORDS[offer.kind]}", sum(sizes), limit)
    if _follows_text(outcome, offer):
        shortened = tuple(_cut(outcome.content, sizes, limit))
        return replace(outcome, content=shortened, structured=msgspec.UNSET)
    if extra + MIN_BYTES > limit:
        subject = "The call was carried out. Its answer" if _may_change(offer) else "The answer"
        return _too_large(subject, extra, limit, may_repeat=not _may_change(offer))
    return replace(outcome, content=tuple(_cut(outcome.content, sizes, limit - extra)))


def _size(block: Mapping[str, Any]) -> int:
    """Return the bytes of a block as JSON, of which a long text is never written as a whole."""
    text = block.get("text")
    if not isinstance(text, str) or len(text) <= PIECE_CHARACTERS:
        return len(_encode(block))
    total, is_usual = len(_encode({**block, "text": ""})), True
    for piece in _pieces(text):
        size = _encoded_size(piece) if is_usual else _counted_size(piece)
        is_usual = is_usual and 2 * size <= 3 * len(piece)
        total += size
    return total


def _encoded_size(piece: str) -> int:
    return len(_encode(piece)) - 2  # without the quotation marks


def _counted_size(piece: str) -> int:
    """Return the same for a text of many escapes, each of which would take up to 15 ns to write."""
    encoded = piece.encode()
    escapes = len(encoded) - len(encoded.translate(None, _ESCAPED))
    escapes += (WORST_EXPANSION - 1) * (len(encoded) - len(encoded.translate(None, _CONTROLS)))
    return len(encoded) + escapes


def _pieces(text: str) -> Iterator[str]:
    return (text[at : at + PIECE_CHARACTERS] for at in range(0, len(text), PIECE_CHARACTERS))


def _follows_text(outcome: Outcome, tool: Tool) -> bool:
    """Return whether the structured value is only the text, so that both are cut together."""
    if tool.output_schema is None:
        return True
    return outcome.as_result and outcome.structured is msgspec.UNSET


def safe_text_bytes(limit: int) -> int:
    """Return a size at which a text and a structured value are surely within *limit*."""
    return max(limit - NOTE_BYTES, 0) // (WORST_EXPANSION + 1)


def encodable_failure(failure: Failure) -> Failure:
    """Return the failure with a message that can be encoded, even with lone surrogates."""
    message = str(failure.message)
    if message.isascii() and message is failure.message:
        return failure
    return replace(failure, message=message.encode(errors="replace").decode())


def _may_change(tool: Tool) -> bool:
    return not tool.effects.read_only


def _too_large(subject: str, size: int, limit: int, *, may_repeat: bool = True) -> Outcome:
    advice = (
        "Ask for less at once." if may_repeat else "Do not repeat it: look at what it did instead."
    )
    message = (
        f"{subject} has {size} bytes, which is more than the {limit} that can be shown. {advice}"
    )
    return Outcome(failure=Failure("internal", message))


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
            # A lone surrogate, as in invalid file names, must raise here and not when it is sent.
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
    remaining = limit - NOTE_BYTES
    fitting: list[Mapping[str, Any]] = []
    left_out = 0
    for block, size in zip(content, sizes, strict=True):
        if size <= remaining:
            fitting.append(block)
            remaining -= size
        elif isinstance(block.get("text"), str) and remaining > NOTE_BYTES:
            fitting.append({**block, "text": _prefix(block["text"], remaining - NOTE_BYTES)})
            remaining = 0
        else:
            left_out += 1
            remaining = min(remaining, 0) if isinstance(block.get("text"), str) else remaining
    note = f"[The answer was cut: it had {sum(sizes)} bytes, and {limit} are allowed."
    note += f" {left_out} parts were omitted.]" if left_out else "]"
    return [*fitting, {"type": "text", "text": note}]


def _prefix(text: str, remaining: int) -> str:
    """Return the longest prefix of *text* whose JSON has at most *remaining* bytes."""
    remaining -= 2  # the quotation marks
    kept = 0
    for piece in _pieces(text):
        size = _encoded_size(piece)
        if size > remaining:
            return text[: kept + _fitting_characters(piece, remaining)]
        remaining -= size
        kept += len(piece)
    return text


def _fitting_characters(piece: str, remaining: int) -> int:
    low, high = 0, min(len(piece), max(remaining, 0))
    while low < high:
        middle = (low + high + 1) // 2
        if len(_encode(piece[:middle])) - 2 <= remaining:
            low = middle
        else:
            high = middle - 1
    return low
