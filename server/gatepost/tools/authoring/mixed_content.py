"""
Convert images, recordings, files and bytes that tools return, alone or in lists with other values.
"""

import collections.abc
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
from pydantic_core import to_jsonable_python

from gatepost.execution.failure import ToolFailure
from gatepost.tools.authoring.encoded_json import checked_blocks
from gatepost.tools.context.content import Audio, Contents, File, Image, block_of

CONTENT_TYPES = (Image, Audio, File, Contents, bytes)
"""The types of values that become content blocks of their own."""
WRAPPERS = frozenset(
    {
        Annotated,
        Union,
        UnionType,
        list,
        tuple,
        collections.abc.Sequence,
        collections.abc.Iterable,
    }
)
"""The origins of annotations in which content is looked for."""

MAX_BYTES = 16_000_000
"""Maximum number of bytes of content in one answer: encoding more holds other calls up."""
BYTES_NAME = "result.bin"
"""The file name of bytes that a tool returns without one."""


def holds_content(hint: Any) -> bool:
    """Return whether a return annotation names content: `Image`, `list[str | Image]`, `bytes`."""
    if get_origin(hint) in WRAPPERS:
        return any(map(holds_content, get_args(hint)))
    return isinstance(hint, type) and issubclass(hint, CONTENT_TYPES)


def is_content(value: Any) -> bool:
    """Return whether a returned value is content, or a list or tuple with some."""
    if isinstance(value, list | tuple):
        # By their types, because a long list has few of them.
        return any(issubclass(kind, CONTENT_TYPES) for kind in {*map(type, value)})
    return isinstance(value, CONTENT_TYPES)


def blocks(value: Any) -> tuple[Mapping[str, Any], ...]:
    """
    Convert content into blocks of MCP: a value, or a list or tuple of values, in their order.

    Bytes become a file, text stays text, None is omitted, and any other value becomes its JSON as
    text. Raises ToolFailure if there is too much of it.
    """
    several = value if isinstance(value, list | tuple) else [value]
    size = sum(map(_size, several))
    if size > MAX_BYTES:
        message = f"The answer has {size} bytes of content, which is more than {MAX_BYTES}."
        raise ToolFailure("internal", f"{message} Look at what the call did before you repeat it.")
    return checked_blocks(_blocks(several))


def encoded(value: Any) -> bytes:
    """Encode a returned value as JSON: plain values, structs, dataclasses and pydantic models."""
    return msgspec.json.encode(value, enc_hook=to_jsonable_python)


def _size(value: Any) -> int:
    body = value.body if isinstance(value, File | Contents) else value
    body = body.data if isinstance(body, Image | Audio) else body
    return len(body) if isinstance(body, bytes | str) else 0


def _blocks(several: list[Any] | tuple[Any, ...]) -> Iterator[Mapping[str, Any]]:
    for value in several:
        if isinstance(value, bytes):
            yield block_of(File(value, BYTES_NAME))
        elif isinstance(value, str | Image | Audio | File | Contents):
            yield block_of(value)
        elif value is not None:
            yield block_of(encoded(value).decode())
