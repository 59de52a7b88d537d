"""What 2026-07-28 demands of headers and `_meta` before a request means anything."""

import base64
import binascii
import re
from typing import Any

import msgspec
from msgspec import UNSET

from gatepost.mcp.era import MODERN, SERVED, is_modern
from gatepost.mcp.exchange import Head, Headers
from gatepost.mcp.jsonrpc import HEADER_MISMATCH, INVALID_PARAMS, UNSUPPORTED_VERSION, Refused
from gatepost.mcp.params import CAPABILITIES, VERSION, Meta, Params
from gatepost.tools.api import Tool

_ON_THE_WIRE = dict(zip(Params.__struct_fields__, Params.__struct_encode_fields__, strict=True))

_SENTINEL = re.compile(rb"=\?base64\?(.*)\?=", re.DOTALL)
_VISIBLE = re.compile(rb"[\x20-\x7e\t]*")
_DECIMAL = re.compile(r"-?[0-9]{1,40}(?:\.0{1,40})?", re.ASCII)


def meta_missing(meta: Meta) -> Refused | None:
    """The refusal that names the `_meta` keys a request lacks (V-01)."""
    if meta.version is not UNSET and meta.capabilities is not UNSET:
        return None
    missing = [
        name
        for name, value in ((VERSION, meta.version), (CAPABILITIES, meta.capabilities))
        if value is UNSET
    ]
    return Refused(INVALID_PARAMS, f"params._meta lacks {' and '.join(missing)}")


def no_meta(meta: Meta) -> Refused:
    """The refusal for a request whose header is modern and whose body names no version (DE-02)."""
    return meta_missing(meta) or Refused(INVALID_PARAMS, f"params._meta lacks {VERSION}")


def mismatch(header: str, member: str) -> Refused:
    """A header does not say what the body says (H-09)."""
    return Refused(HEADER_MISMATCH, f"{header} does not match {member}")


def unserved(requested: str) -> Refused:
    """The version is not served, or needs a handshake; names the others (V-04)."""
    # Whoever sends a handshake version as metadata has no use for another of its kind (DE-08).
    usable = SERVED if is_modern(requested) else (MODERN,)
    supported = [version for version in usable if version != requested]
    data = {"supported": supported, "requested": requested}
    return Refused(UNSUPPORTED_VERSION, "Protocol version not served", data=data)


def check_mirrors(
    head: Head, method: str, name: str | msgspec.UnsetType | None, member: str | None
) -> None:
    """
    Hold `Mcp-Method`, and `Mcp-Name` where *name* is not None, against the body (H-02, H-03).

    *name* is the value of the parameter *member*, as Params calls it.

    The body decides what is done; a header that says otherwise would let whoever routes or limits
    by headers judge a different request (H-08).
    """
    if head.method != method:
        raise mismatch("Mcp-Method", "method")
    if name is not None and name is not UNSET and head.name != name:
        raise mismatch("Mcp-Name", f"params.{_ON_THE_WIRE[member or 'name']}")


def decode_value(value: bytes) -> str | None:
    """
    A header value as text; None when it holds what no header may, or a broken sentinel.

    Text that a header cannot carry comes as `=?base64?…?=` (H-06). A value without exactly these
    marks is literal.
    """
    value = value.strip(b" \t")
    if not _VISIBLE.fullmatch(value):
        return None
    encoded = _SENTINEL.fullmatch(value) if value[:2] == b"=?" else None
    if encoded is None:
        return value.decode("ascii")
    try:
        decoded = base64.b64decode(encoded[1], validate=True)
        # The decoder forgives stray bits at the end: two spellings of one name are one too many.
        return decoded.decode() if base64.b64encode(decoded) == encoded[1] else None
    except (binascii.Error, UnicodeDecodeError):
        return None


def check_routed(headers: Headers, tool: Tool, arguments: bytes) -> None:
    """Hold the `Mcp-Param-…` headers that *tool* declares against its arguments (H-10 to H-12)."""
    try:
        values = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        # The tool's own parser may be able to: it reads 1e999 as infinity.
        raise Refused(INVALID_PARAMS, "params.arguments cannot be read") from None
    for routed in tool.routed:
        shown = f"Mcp-Param-{routed.header}"
        value = _at(values, routed.path)
        header = headers.get(shown.lower().encode())
        if value is None:
            if header is not None:
                # Somebody on the way routed by a value that the body does not have.
                raise mismatch(shown, ".".join(routed.path))
        elif isinstance(value, str | int | float) and (
            header is None or not _same(decode_value(header), value)
        ):
            raise mismatch(shown, ".".join(routed.path))


def _at(values: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        if not isinstance(values, dict):
            return None
        values = values.get(name)
    return values


def _same(text: str | None, value: str | float) -> bool:
    if text is None or isinstance(value, str):
        return text == value
    if isinstance(value, bool):
        return text == ("true" if value else "false")
    # `42` and `42.0` are the same integer (H-11); exact, with no detour over a float.
    return bool(_DECIMAL.fullmatch(text)) and int(text.partition(".")[0]) == value
