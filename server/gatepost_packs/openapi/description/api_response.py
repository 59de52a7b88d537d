"""Show an API's response as a value that stays valid JSON after truncation."""

import base64
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import webencodings

from gatepost import decoded
from gatepost_packs.openapi.description.operation import is_json

READ_BYTES = 4_000_000
"""
Bytes of a response that are read at most. Truncated JSON stays valid, so more is read than shown.
"""
PROMPT_BYTES = 100_000
"""Longer values are shown in a thread: shortening a deeply nested one takes long."""
DEPTH = 60
LEAST = 4
"""Minimum number of bytes of a shortened part: those of `null`."""
HIDDEN_HEADERS = frozenset(
    {"set-cookie", "connection", "keep-alive", "transfer-encoding", "content-encoding"}
)
"""Response headers that concern only the connection or a session."""
TEXT = re.compile(
    r"text/|application/(?:xml|yaml|x-yaml|javascript|graphql|x-ndjson)|.*\+(?:xml|yaml)"
)
CHARSET = re.compile(r"charset=\"?([\w.:-]+)", re.ASCII)

_encode = msgspec.json.encode


class ShownBody(NamedTuple):
    """The shown form of a body."""

    body: Any
    cut: bool


def shown_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the response headers that are worth showing."""
    return {name: value for name, value in headers.items() if name not in HIDDEN_HEADERS}


def shown_body(data: bytes, content_type: str, *, truncated: bool, max_bytes: int) -> ShownBody:
    """
    Return a body as JSON of about *max_bytes* bytes: JSON as itself, text as text, else `{"base64":
    …}`.

    *truncated* says that *data* is only the beginning.
    """
    if not data:
        return ShownBody(None, truncated)
    if not truncated and (is_json(content_type) or not content_type):
        try:
            value = decoded(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        else:
            return shortened(value, max_bytes)
    text = _text(data, content_type, truncated=truncated)
    if text is not None:
        cut_body = shortened(text, max_bytes)
        return ShownBody(cut_body.body, cut_body.cut or truncated)
    shown_bytes = max(max_bytes // 4 * 3 // 3 * 3, 3)
    encoded = base64.b64encode(data[:shown_bytes]).decode()
    return ShownBody({"base64": encoded}, truncated or len(data) > shown_bytes)


def shortened(value: Any, max_bytes: int, depth: int = 0) -> ShownBody:
    """
    Return *value* in about *max_bytes* bytes of JSON.

    A text or list is cut at its end. An object keeps its small members, so that a count beside a
    long list stays.
    """
    try:
        if len(_encode(value)) <= max_bytes:
            return ShownBody(value, False)
    except (RecursionError, UnicodeEncodeError):
        return ShownBody(None, True)
    if depth >= DEPTH or max_bytes < 2:
        return ShownBody(None, True)
    if isinstance(value, str):
        return ShownBody(_beginning(value, max_bytes), True)
    if isinstance(value, list):
        return ShownBody(_first_items(value, max_bytes, depth), True)
    if isinstance(value, dict):
        return ShownBody(_members(value, max_bytes, depth), True)
    return ShownBody(None, True)


def _first_items(value: list[Any], max_bytes: int, depth: int) -> list[Any]:
    items: list[Any] = []
    remaining_bytes = max_bytes - 2
    for item in value:
        size = len(_encode(item)) + 1
        if size > remaining_bytes:
            if not items and remaining_bytes >= LEAST and isinstance(item, dict | list | str):
                items.append(shortened(item, remaining_bytes, depth + 1).body)
            break
        items.append(item)
        remaining_bytes -= size
    return items


def _members(value: dict[str, Any], max_bytes: int, depth: int) -> dict[str, Any]:
    remaining_bytes = max_bytes - 2
    sizes = {name: len(_encode({name: inner})) for name, inner in value.items()}
    members: dict[str, Any] = {}
    # The smallest parts first: each may have an equal share of the rest, and few need all of it.
    for at, name in enumerate(sorted(sizes, key=sizes.__getitem__)):
        share = remaining_bytes // (len(sizes) - at)
        if sizes[name] <= share:
            members[name] = value[name]
            remaining_bytes -= sizes[name]
            continue
        overhead = len(_encode(name)) + 2
        if share - overhead < LEAST:
            continue
        members[name] = shortened(value[name], share - overhead, depth + 1).body
        remaining_bytes -= min(len(_encode({name: members[name]})), remaining_bytes)
    return {name: members[name] for name in value if name in members}


def _beginning(text: str, max_bytes: int) -> str:
    low, high = 0, min(len(text), max_bytes)
    while low < high:
        middle = (low + high + 1) // 2
        if len(_encode(text[:middle])) <= max_bytes:
            low = middle
        else:
            high = middle - 1
    return text[:low]


def _text(data: bytes, content_type: str, *, truncated: bool) -> str | None:
    charset = CHARSET.search(content_type)
    # Only the web's character sets: Python knows more codecs, and some of them take minutes.
    encoding = (charset and webencodings.lookup(charset[1])) or webencodings.UTF8
    bare = content_type.partition(";")[0].strip().lower()
    try:
        errors = "ignore" if truncated else "strict"
        text, _ = encoding.codec_info.decode(data, errors)
    except UnicodeDecodeError:
        return data.decode("utf-8", errors="replace") if TEXT.match(bare) else None
    if "\0" in text or (charset is None and not bare.startswith("text/") and _is_binary(bare)):
        return None
    return text


def _is_binary(bare: str) -> bool:
    return bare.startswith(("image/", "audio/", "video/", "font/")) or bare in (
        "application/pdf",
        "application/zip",
        "application/gzip",
    )
