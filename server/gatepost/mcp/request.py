"""Read a request of the endpoint: its headers, its parameters with `_meta`, and how they agree."""

import base64
import binascii
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType
from starlette.types import Receive, Scope, Send

from gatepost.documents.json_shape import COUNTED_BYTES, NESTING, decoder_of, is_deep
from gatepost.http.scope import HEADERS_BY_NAME, REQUEST_ID
from gatepost.mcp.body import JSON, check_type
from gatepost.mcp.jsonrpc import (
    HEADER_MISMATCH,
    ID_BYTES,
    INVALID_PARAMS,
    UNSUPPORTED_VERSION,
    IncomingMessage,
    JsonRpcError,
    read_id,
)
from gatepost.mcp.revisions import MODERN, SERVED, is_modern
from gatepost.tools.context.idempotency_key import (
    CORRELATION,
    IDEMPOTENCY,
    BadKey,
    correlation_of,
    idempotency_key_of,
)
from gatepost.tools.offers.offer import IdempotencyKey
from gatepost_authz.caller import TenantContext
from gatepost_authz.middleware import CALLER

Headers = dict[bytes, bytes]
"""Request headers by name, in lower case."""


class Exchange(msgspec.Struct, frozen=True):
    """One authorized request: who calls, and what its headers say."""

    caller: TenantContext
    path: str
    request_id: str
    headers: Headers
    receive: Receive
    send: Send
    version: str | None = None
    """The revision that MCP-Protocol-Version names."""
    is_marked: bool = False
    """Whether there is an idempotency key or a correlation id."""
    is_doubled: bool = False
    """Whether a header that decides something is repeated."""
    peer: str = ""
    """The client's address: of the connection, or from a trusted proxy's header."""


VERSION_HEADER = b"mcp-protocol-version"
MODERN_HEADER = MODERN.encode()
RELEVANT_HEADERS = (b"mcp-", b"content-", IDEMPOTENCY, CORRELATION)


def exchange_of(scope: Scope, receive: Receive, send: Send) -> Exchange:
    """Read the headers of a request that has a body; raises JsonRpcError."""
    raw = scope["headers"]
    headers: Headers = scope.get(HEADERS_BY_NAME) or dict(raw)
    if headers.get(b"content-type") != JSON or b"content-encoding" in headers:
        check_type(headers)
    version, client = headers.get(VERSION_HEADER), scope.get("client")
    return Exchange(
        scope[CALLER],
        scope["path"],
        scope.get(REQUEST_ID, ""),
        headers,
        receive,
        send,
        MODERN if version == MODERN_HEADER else version_in(headers),
        IDEMPOTENCY in headers or CORRELATION in headers,
        len(headers) != len(raw) and is_doubled(raw),
        client[0] if client else "",
    )


def version_in(headers: Headers) -> str | None:
    """Return the revision in MCP-Protocol-Version, or None."""
    value = headers.get(VERSION_HEADER)
    return None if value is None else value.strip(b" \t").decode("latin-1")


def is_doubled(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether a header that decides something is repeated."""
    counted = Counter(name for name, _ in headers)
    return any(n > 1 and name.startswith(RELEVANT_HEADERS) for name, n in counted.items())


PREFIX = "io.modelcontextprotocol/"
VERSION = PREFIX + "protocolVersion"
CAPABILITIES = PREFIX + "clientCapabilities"
SERVER_INFO = PREFIX + "serverInfo"
CLIENT_CREDENTIALS = PREFIX + "oauth-client-credentials"
ENTERPRISE_MANAGED = PREFIX + "enterprise-managed-authorization"
SKILLS = PREFIX + "skills"
TASKS = PREFIX + "tasks"
"""The extension with which a call may be answered with a task."""
LOG_LEVEL = PREFIX + "logLevel"
IDEMPOTENCY_KEY = "io.gatepost/idempotency-key"
"""Gatepost's idempotency key in `_meta`, for clients that cannot set headers."""


class Meta(msgspec.Struct, gc=False):
    """The members of `_meta` that Gatepost reads."""

    version: str | UnsetType = msgspec.field(name=VERSION, default=UNSET)
    capabilities: dict[str, Raw] | UnsetType = msgspec.field(name=CAPABILITIES, default=UNSET)
    client_info: Raw | UnsetType = msgspec.field(name=f"{PREFIX}clientInfo", default=UNSET)
    progress_token: Raw | UnsetType = msgspec.field(name="progressToken", default=UNSET)
    log_level: str | UnsetType = msgspec.field(name=LOG_LEVEL, default=UNSET)
    idempotency_key: str | UnsetType = msgspec.field(name=IDEMPOTENCY_KEY, default=UNSET)
    # Raw, because an invalid trace context must not cause a refusal (J-17).
    traceparent: Raw | UnsetType = UNSET
    tracestate: Raw | UnsetType = UNSET


class Params(msgspec.Struct, gc=False):
    """The parameters of all methods, as far as types can check them."""

    meta: Meta | UnsetType = msgspec.field(name="_meta", default=UNSET)
    name: str | UnsetType = UNSET
    arguments: Raw | UnsetType = UNSET
    cursor: str | UnsetType | None = UNSET
    uri: str | UnsetType = UNSET
    ref: Raw | UnsetType = UNSET
    argument: Raw | UnsetType = UNSET
    context: Raw | UnsetType = UNSET
    level: str | UnsetType = UNSET
    notifications: Raw | UnsetType = UNSET
    task_id: str | UnsetType = msgspec.field(name="taskId", default=UNSET)
    input_responses: Raw | UnsetType = msgspec.field(name="inputResponses", default=UNSET)
    request_state: str | UnsetType = msgspec.field(name="requestState", default=UNSET)
    request_id: Raw | UnsetType = msgspec.field(name="requestId", default=UNSET)


class OnlyMeta(msgspec.Struct):
    """The `_meta` of parameters whose other members have wrong types."""

    meta: Meta | UnsetType = msgspec.field(name="_meta", default=UNSET)


class WholeRequest(msgspec.Struct, gc=False):
    """A request with its parameters; an object that lacks one of these members is refused."""

    jsonrpc: Literal["2.0"]
    id: Raw
    method: str
    params: Params
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


_decode_whole = msgspec.json.Decoder(WholeRequest).decode
_decode = msgspec.json.Decoder(Params).decode
_decode_extensions = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_meta = msgspec.json.Decoder(OnlyMeta).decode

NO_PARAMS = Params()
NO_META = Meta()


def read_whole(body: bytes, *, bounded: bool) -> tuple[IncomingMessage, bytes, Params] | None:
    """
    Read a request of the modern era, its id and its parameters, in one pass.

    Return None for any other body. It is then read in parts (`jsonrpc.read`, `read_params`), which
    find out what is wrong. Only methods of sessions need raw parameters. *bounded* as for `read`.
    """
    try:
        if not body.isascii():
            body.decode()  # msgspec looks inside no value that it leaves raw
        message = _decode_whole(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    method, params = message.method, message.params
    if not method or params.meta is UNSET or params.meta.version != MODERN:
        return None
    if message.result is not UNSET or message.error is not UNSET:
        return None
    is_flat = len(body) <= COUNTED_BYTES and body.count(b"{") + body.count(b"[") <= NESTING
    if not (bounded or is_flat) and is_deep(body, params.arguments):
        return None
    number = bytes(message.id)  # most clients count their requests
    identity = number if number.isdigit() and len(number) <= ID_BYTES else read_id(message.id)
    return None if identity is None else (IncomingMessage(identity, method, None), identity, params)


def read_params(raw: bytes | None) -> tuple[Params, JsonRpcError | None]:
    """
    Read parameters; return a refusal beside them if they are malformed.

    `_meta` is read even then, because the form of the refusal depends on the era it names.
    """
    if raw is None or raw == b"null":
        return NO_PARAMS, None
    try:
        return _decode(raw), None
    except msgspec.DecodeError as error:
        # msgspec's messages name the member and both types, but no value.
        refusal = JsonRpcError(INVALID_PARAMS, f"Invalid params: {error}")
    try:
        return Params(meta=_decode_meta(raw).meta), refusal
    except msgspec.DecodeError:
        return NO_PARAMS, refusal


def name_in(params: Params) -> str:
    """Return the name of the tool or prompt; raises JsonRpcError if it is missing."""
    if params.name is UNSET:
        raise JsonRpcError(INVALID_PARAMS, "params.name is required")
    return params.name


def uri_in(params: Params) -> str:
    """Return the URI of the resource or folder; raises JsonRpcError if it is missing."""
    if params.uri is UNSET:
        raise JsonRpcError(INVALID_PARAMS, "params.uri is required")
    return params.uri


def arguments_in(params: Params) -> bytes:
    """Return the arguments as the JSON of an object; raises JsonRpcError."""
    raw = b"{}" if params.arguments is UNSET else bytes(params.arguments)
    if raw[:1] == b"{":
        return raw
    if raw == b"null":
        return b"{}"
    raise JsonRpcError(INVALID_PARAMS, "params.arguments must be an object")


def declares_tasks(params: Params) -> bool:
    """Return whether a request declares the tasks extension (K-02, X-02)."""
    capabilities = UNSET if params.meta is UNSET else params.meta.capabilities
    if capabilities is UNSET or "extensions" not in capabilities:
        return False
    try:
        settings = _decode_extensions(capabilities["extensions"]).get(TASKS)
    except msgspec.DecodeError:
        return False
    return settings is not None and bytes(settings)[:1] == b"{"


def decode_as(kind: type[Any], raw: bytes | None) -> Any:
    """Decode parameters as *kind*; raises JsonRpcError."""
    try:
        return decoder_of(kind)(raw or b"{}")
    except msgspec.DecodeError as error:
        raise JsonRpcError(INVALID_PARAMS, f"Invalid params: {error}") from None


_ON_THE_WIRE = dict(zip(Params.__struct_fields__, Params.__struct_encode_fields__, strict=True))

_SENTINEL = re.compile(rb"=\?base64\?(.*)\?=", re.DOTALL)
_VISIBLE = re.compile(rb"[\x20-\x7e\t]*")


def no_meta(meta: Meta) -> JsonRpcError:
    """Return the refusal for a modern request that names what its `_meta` lacks (V-01, DE-02)."""
    members = ((VERSION, meta.version), (CAPABILITIES, meta.capabilities))
    missing = [name for name, value in members if value is UNSET] or [VERSION]
    return JsonRpcError(INVALID_PARAMS, f"params._meta lacks {' and '.join(missing)}")


def mismatch(header: str, member: str) -> JsonRpcError:
    """Return the refusal for a header that differs from the body (H-09)."""
    return JsonRpcError(HEADER_MISMATCH, f"{header} does not match {member}")


def unserved(requested: str) -> JsonRpcError:
    """Return the refusal that names the served versions instead of *requested* (V-04)."""
    # A client that sends a handshake version as metadata cannot use another of these (DE-08).
    usable = SERVED if is_modern(requested) else (MODERN,)
    supported = [version for version in usable if version != requested]
    data = {"supported": supported, "requested": requested}
    return JsonRpcError(UNSUPPORTED_VERSION, "Protocol version not served", data=data)


def check_mirrors(
    exchange: Exchange, method: str, name: str | msgspec.UnsetType | None, member: str | None
) -> None:
    """
    Refuse a request whose `Mcp-Method` or `Mcp-Name` differs from its body (H-02, H-03).

    *name* is the value of the parameter *member* of Params; None if `Mcp-Name` is not checked.
    The body decides what is done. If a header could differ, a proxy that routes or limits by
    headers would judge a different request (H-08).
    """
    headers = exchange.headers
    sent, expected = headers.get(b"mcp-method", b""), method.encode()
    if sent != expected and sent.strip(b" \t") != expected:
        raise mismatch("Mcp-Method", "method")
    if name is None or name is UNSET:
        return
    header = headers.get(b"mcp-name")
    # Letters, digits and `_` encode nothing but themselves.
    if header is not None and name.isidentifier() and name.isascii() and header == name.encode():
        return
    if header is None or decode_value(header) != name:
        raise mismatch("Mcp-Name", f"params.{_ON_THE_WIRE[member or 'name']}")


def decode_value(value: bytes) -> str | None:
    """
    Return a header value as text; None if it has forbidden bytes or a broken sentinel.

    Text that a header cannot carry is encoded as `=?base64?…?=` (H-06). Any other value is
    literal.
    """
    value = value.strip(b" \t")
    if not _VISIBLE.fullmatch(value):
        return None
    encoded = _SENTINEL.fullmatch(value) if value[:2] == b"=?" else None
    if encoded is None:
        return value.decode("ascii")
    try:
        decoded = base64.b64decode(encoded[1], validate=True)
        # The decoder ignores stray bits at the end, but a name must have only one encoding.
        return decoded.decode() if base64.b64encode(decoded) == encoded[1] else None
    except (binascii.Error, UnicodeDecodeError):
        return None


KeyAndCorrelation = tuple[IdempotencyKey | None, str | None]

NO_KEYS: KeyAndCorrelation = (None, None)


def key_and_correlation(headers: Mapping[bytes, bytes], params: Params) -> KeyAndCorrelation:
    """
    Return the idempotency key of a call, from its headers or `_meta`, and its correlation id.

    Raises JsonRpcError if either is invalid.
    """
    meta = NO_META if params.meta is UNSET else params.meta
    key = None if meta.idempotency_key is UNSET else meta.idempotency_key
    if key is None and IDEMPOTENCY not in headers and CORRELATION not in headers:
        return NO_KEYS  # most calls have neither, and pay only for this check
    try:
        return idempotency_key_of(headers, key), correlation_of(headers)
    except BadKey as error:
        raise JsonRpcError(INVALID_PARAMS, str(error), legacy_status=400) from None
