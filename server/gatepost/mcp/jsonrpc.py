"""Bytes ↔ JSON-RPC envelopes (JSON-RPC 2.0, as MCP narrows it)."""

import re
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from gatepost.intake import NESTING, too_deep

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
RESOURCE_NOT_FOUND = -32002
"""Before 2026-07-28 only (J-18)."""
HEADER_MISMATCH = -32020
MISSING_CAPABILITY = -32021
UNSUPPORTED_VERSION = -32022
URL_ELICITATION = -32042
"""Of 2025-11-25 alone: a page has to be visited before the call can proceed."""
RATE_LIMITED = -32000
TENANT_SUSPENDED = -31001
INSUFFICIENT_SCOPE = -31002
INSUFFICIENT_AUTHENTICATION = -31003
DENIED = -31004

BATCH_MESSAGES = 50
ID_BYTES = 1024
BAD_BATCH = f"A batch holds 1 to {BATCH_MESSAGES} messages"

_PLAIN_ID = re.compile(rb'-?(?:0|[1-9][0-9]*)|"[ !#-\[\]-~]*"')

_encode = msgspec.json.encode


class Refused(Exception):
    """
    A message is answered with a JSON-RPC error.

    ``status`` is the HTTP status in the modern era; the legacy era has 200 for everything that is
    about one request, because 404 means an ended session there (and clients start over).
    """

    def __init__(
        self,
        code: int,
        message: str,
        *,
        data: Any = None,
        status: int = 400,
        legacy_status: int = 200,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.status = status
        self.legacy_status = legacy_status
        self.headers = headers


class Members(msgspec.Struct, gc=False):
    """What a JSON-RPC message may have beside parameters."""

    jsonrpc: str | UnsetType = UNSET
    id: Raw | UnsetType = UNSET
    method: str | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


class Envelope(Members, gc=False):
    """One message; what its method must judge stays raw."""

    params: Raw | UnsetType = UNSET


class Loose(msgspec.Struct):
    """A message whose members have the wrong types: all that is wanted of it is its id."""

    id: Raw | UnsetType = UNSET


_decode = msgspec.json.Decoder(Envelope).decode
_decode_batch = msgspec.json.Decoder(list[Raw]).decode
_decode_loose = msgspec.json.Decoder(Loose).decode
_decode_text = msgspec.json.Decoder(str).decode


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message, understood as far as JSON-RPC goes; ``id`` is its JSON, unchanged."""

    id: bytes | None
    method: str | None
    params: bytes | None
    refusal: Refused | None = None
    answer: bytes | None = None
    """Of a response: the object of its one member, `result` or `error`."""


def read(body: bytes) -> Message | list[bytes]:
    """
    Read a body: one message, or the raw messages of a batch.

    Raises Refused for what is not JSON, is nested too deeply, or is neither object nor array. A
    message that is an object but no JSON-RPC message comes back with its refusal, so that the
    answer can carry its id.
    """
    try:
        # msgspec looks inside no value that it leaves raw, and raises neither of its own errors
        # for text that is not UTF-8.
        if not body.isascii():
            body.decode()
        # No tokenizer here: a body whose first byte is `[` can be nothing but an array.
        if body[:1] != b"{" and body.lstrip(b" \t\r\n")[:1] == b"[":
            batch = _decode_batch(body)
            if len(batch) > BATCH_MESSAGES:
                raise Refused(INVALID_REQUEST, BAD_BATCH, legacy_status=400)
            _bound_nesting(body)
            return [bytes(raw) for raw in batch]
        return read_one(body)
    except RecursionError:
        raise _too_deep() from None
    except msgspec.ValidationError:
        raise Refused(
            INVALID_REQUEST, "The body is not a JSON-RPC message", legacy_status=400
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Refused(PARSE_ERROR, "The body is not JSON", legacy_status=400) from None


def read_one(body: bytes) -> Message:
    """Read one message; errors as in `read`, as msgspec raises them."""
    try:
        envelope = _decode(body)
    except msgspec.ValidationError:
        return _unreadable(_decode_loose(body).id)
    if body.count(b"{") + body.count(b"[") > NESTING:
        _bound_nesting(body)
    raw_id, method, params = envelope.id, envelope.method, envelope.params
    identity = None
    if raw_id is not UNSET and (identity := read_id(raw_id)) is None:
        return _unreadable(UNSET)
    if envelope.jsonrpc != "2.0":
        return _unreadable(raw_id)
    if envelope.result is not UNSET or envelope.error is not UNSET:
        # A response: no method, exactly one of the two, and an id with a result.
        both = envelope.result is not UNSET and envelope.error is not UNSET
        if method is not UNSET or both or (identity is None and envelope.error is UNSET):
            return _unreadable(raw_id)
        if envelope.error is not UNSET:
            return Message(identity, None, None, None, b'{"error":%b}' % bytes(envelope.error))
        answer = b"" if envelope.result is UNSET else bytes(envelope.result)
        return Message(identity, None, None, None, b'{"result":%b}' % answer)
    if method is UNSET or not method:
        return _unreadable(raw_id)
    return Message(identity, method, None if params is UNSET else bytes(params))


def read_part(raw: bytes) -> Message:
    """Read one message of a batch; what is none comes back with a refusal (JSON-RPC 2.0, 6)."""
    try:
        return read_one(raw)
    except msgspec.ValidationError:
        return _unreadable(UNSET)


def read_id(raw: Raw) -> bytes | None:
    """The JSON of a string or integer id, unchanged; None for anything else (MCP forbids null)."""
    identity = bytes(raw)
    if identity.isdigit() and len(identity) <= ID_BYTES:
        return identity
    if len(identity) > ID_BYTES:
        return None
    if _PLAIN_ID.fullmatch(identity):
        return identity
    if identity[:1] != b'"':
        return None
    try:
        # Escapes and all: half of a surrogate pair would make our answer invalid.
        return _encode(_decode_text(identity))
    except msgspec.DecodeError:
        return None


def result(identity: bytes, body: bytes) -> bytes:
    """A successful response around an encoded result."""
    # Joined, not added up: a list of a hundred tools would be copied twice.
    return b"".join((b'{"jsonrpc":"2.0","id":', identity, b',"result":', body, b"}"))


def error(identity: bytes | None, refusal: Refused) -> bytes:
    """An error response; without an id when the request's could not be read (never null)."""
    body: dict[str, Any] = {"code": refusal.code, "message": refusal.message}
    if refusal.data is not None:
        body["data"] = refusal.data
    shown = b"" if identity is None else b',"id":' + identity
    return b'{"jsonrpc":"2.0"' + shown + b',"error":' + _encode(body) + b"}"


def request(identity: str, method: str, params: Any) -> bytes:
    """A request of ours, to a client of an older revision."""
    return _encode({"jsonrpc": "2.0", "id": identity, "method": method, "params": params})


def notification(method: str, params: Any) -> bytes:
    """A notification of ours."""
    return _encode({"jsonrpc": "2.0", "method": method, "params": params})


def _unreadable(raw: Raw | UnsetType) -> Message:
    refusal = Refused(INVALID_REQUEST, "Not a valid JSON-RPC message", legacy_status=400)
    return Message(None if raw is UNSET else read_id(raw), None, None, refusal)


def _bound_nesting(body: bytes) -> None:
    if too_deep(body):
        raise _too_deep()


def _too_deep() -> Refused:
    message = f"The body is nested deeper than {NESTING} levels"
    return Refused(INVALID_REQUEST, message, legacy_status=400)
