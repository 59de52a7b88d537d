"""Decode and encode JSON-RPC 2.0 messages, as MCP restricts them."""

import re
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from gatepost.documents.json_shape import NESTING, too_deep

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
RESOURCE_NOT_FOUND = -32002
"""The error code before 2026-07-28 only (J-18)."""
HEADER_MISMATCH = -32020
MISSING_CAPABILITY = -32021
UNSUPPORTED_VERSION = -32022
URL_ELICITATION = -32042
"""Only in 2025-11-25: the user must visit a page before the call can proceed."""
RATE_LIMITED = -32000
TENANT_SUSPENDED = -31001
INSUFFICIENT_SCOPE = -31002
INSUFFICIENT_AUTHENTICATION = -31003
DENIED = -31004

BATCH_MESSAGES = 50
ID_BYTES = 1024
BAD_BATCH = f"A batch holds 1 to {BATCH_MESSAGES} messages"

_PLAIN_ID = re.compile(rb'-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|"[ !#-\[\]-~]*"')

_encode = msgspec.json.encode


class JsonRpcError(Exception):
    """
    Refuses a message with a JSON-RPC error.

    ``status`` is the HTTP status in the modern era. The legacy era uses 200 for every error of a
    single request, because there 404 means that the session has ended, and clients start over.
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
        self.is_counted = False
        """Whether the refused request was counted against the caller's rate limit."""

    def counted(self) -> "JsonRpcError":
        """Mark the request as counted against the caller's rate limit and return this error."""
        self.is_counted = True
        return self

    def forget(self) -> None:
        """
        Drop the traceback.

        Many refusals are constants, and a traceback keeps the variables of its request. Each raise
        makes it longer, so a caller that is refused again and again would fill the memory.
        """
        self.__traceback__ = self.__context__ = None


class Members(msgspec.Struct, gc=False):
    """The members of a JSON-RPC message other than its parameters."""

    jsonrpc: str | UnsetType = UNSET
    id: Raw | UnsetType = UNSET
    method: str | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


class JsonRpcMessage(Members, gc=False):
    """One message; the parameters stay raw until its method reads them."""

    params: Raw | UnsetType = UNSET


class UntypedMessage(msgspec.Struct):
    """A message whose members have the wrong types; only its id is read."""

    id: Raw | UnsetType = UNSET


_decode = msgspec.json.Decoder(JsonRpcMessage).decode
_decode_batch = msgspec.json.Decoder(list[Raw]).decode
_decode_loose = msgspec.json.Decoder(UntypedMessage).decode
_decode_text = msgspec.json.Decoder(str).decode


class IncomingMessage(msgspec.Struct, frozen=True):
    """One message, read as JSON-RPC; ``id`` is the original JSON."""

    id: bytes | None
    method: str | None
    params: bytes | None
    refusal: JsonRpcError | None = None
    answer: bytes | None = None
    """For a response: an object with its `result` or `error`."""


def read(body: bytes, *, bounded: bool = False) -> IncomingMessage | list[bytes]:
    """
    Read a body: one message, or the raw messages of a batch.

    If *bounded*, the nesting has already been checked, which takes long for a long body. Raises
    JsonRpcError for a body that is not JSON, is nested too deeply, or is neither object nor array.
    An object that is not a JSON-RPC message is returned with its refusal, so that the answer can
    carry its id.
    """
    try:
        # msgspec does not look inside the values it leaves raw, and accepts text there that is
        # not UTF-8.
        if not body.isascii():
            body.decode()
        if is_batch(body):
            batch = _decode_batch(body)
            if len(batch) > BATCH_MESSAGES:
                raise JsonRpcError(INVALID_REQUEST, BAD_BATCH, legacy_status=400)
            if not bounded:
                _bound_nesting(body)
            return [bytes(raw) for raw in batch]
        return read_one(body, bounded=bounded)
    except RecursionError:
        raise too_deeply() from None
    except msgspec.ValidationError:
        raise JsonRpcError(
            INVALID_REQUEST, "The body is not a JSON-RPC message", legacy_status=400
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise JsonRpcError(PARSE_ERROR, "The body is not JSON", legacy_status=400) from None


def is_batch(body: bytes) -> bool:
    """Return whether a JSON body is an array: its first byte says so."""
    return body[:1] != b"{" and body.lstrip(b" \t\r\n")[:1] == b"["


def read_one(body: bytes, *, bounded: bool) -> IncomingMessage:
    """Read one message; msgspec's errors for invalid JSON are not converted."""
    try:
        envelope = _decode(body)
    except msgspec.ValidationError:
        return _unreadable(_decode_loose(body).id)
    if not bounded and body.count(b"{") + body.count(b"[") > NESTING:
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
            return IncomingMessage(
                identity, None, None, None, b'{"error":%b}' % bytes(envelope.error)
            )
        answer = b"" if envelope.result is UNSET else bytes(envelope.result)
        return IncomingMessage(identity, None, None, None, b'{"result":%b}' % answer)
    if method is UNSET or not method:
        return _unreadable(raw_id)
    return IncomingMessage(identity, method, None if params is UNSET else bytes(params))


def read_part(raw: bytes, *, bounded: bool = False) -> IncomingMessage:
    """Read one message of a batch; return an invalid one with a refusal (JSON-RPC 2.0, 6)."""
    try:
        return read_one(raw, bounded=bounded)
    except msgspec.ValidationError:
        return _unreadable(UNSET)


def read_id(raw: Raw) -> bytes | None:
    """
    Return the JSON of an id that is a string or a number, unchanged: 1.0 stays 1.0.

    Return None for anything else. MCP forbids null, which JSON-RPC discourages.
    """
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
        # Decode the escapes too: a lone surrogate would make the answer invalid.
        return _encode(_decode_text(identity))
    except msgspec.DecodeError:
        return None


def error(identity: bytes | None, refusal: JsonRpcError) -> bytes:
    """
    Encode an error response.

    If no id could be read, the id is null for a body that is not JSON (JSON-RPC 2.0, 5). For any
    other message it is absent, because the schemas of MCP allow no null there.
    """
    body: dict[str, Any] = {"code": refusal.code, "message": refusal.message}
    if refusal.data is not None:
        body["data"] = refusal.data
    if identity is None and refusal.code == PARSE_ERROR:
        identity = b"null"
    member = b"" if identity is None else b',"id":' + identity
    return b'{"jsonrpc":"2.0"' + member + b',"error":' + _encode(body) + b"}"


def request(identity: str, method: str, params: Any) -> bytes:
    """Encode a request from the server to a client of an older revision."""
    return _encode({"jsonrpc": "2.0", "id": identity, "method": method, "params": params})


def notification(method: str, params: Any) -> bytes:
    """Encode a notification from the server."""
    return _encode({"jsonrpc": "2.0", "method": method, "params": params})


def _unreadable(raw: Raw | UnsetType) -> IncomingMessage:
    refusal = JsonRpcError(INVALID_REQUEST, "Not a valid JSON-RPC message", legacy_status=400)
    return IncomingMessage(None if raw is UNSET else read_id(raw), None, None, refusal)


def _bound_nesting(body: bytes) -> None:
    if too_deep(body):
        raise too_deeply()


def too_deeply() -> JsonRpcError:
    """Return the refusal of a body that is nested too deeply."""
    message = f"The body is nested deeper than {NESTING} levels"
    return JsonRpcError(INVALID_REQUEST, message, legacy_status=400)
