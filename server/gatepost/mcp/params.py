"""What the methods' parameters may hold, and the `_meta` that every request carries."""

from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from gatepost.intake import NESTING
from gatepost.mcp.era import MODERN
from gatepost.mcp.jsonrpc import INVALID_PARAMS, Members, Message, Refused, read_id

PREFIX = "io.modelcontextprotocol/"
VERSION = PREFIX + "protocolVersion"
CAPABILITIES = PREFIX + "clientCapabilities"
SERVER_INFO = PREFIX + "serverInfo"
CLIENT_CREDENTIALS = PREFIX + "oauth-client-credentials"
ENTERPRISE_MANAGED = PREFIX + "enterprise-managed-authorization"
SKILLS = PREFIX + "skills"
TASKS = PREFIX + "tasks"
"""The extension that lets a call be answered with a task."""
LOG_LEVEL = PREFIX + "logLevel"
IDEMPOTENCY_KEY = "io.gatepost/idempotency-key"
"""Our own: marks a call as the same one again, where headers are out of a client's hands."""


class Meta(msgspec.Struct, gc=False):
    """The members of `_meta` that are read; a client's own name for itself is not one of them."""

    version: str | UnsetType = msgspec.field(name=VERSION, default=UNSET)
    capabilities: dict[str, Raw] | UnsetType = msgspec.field(name=CAPABILITIES, default=UNSET)
    progress_token: Raw | UnsetType = msgspec.field(name="progressToken", default=UNSET)
    log_level: str | UnsetType = msgspec.field(name=LOG_LEVEL, default=UNSET)
    retry: str | UnsetType = msgspec.field(name=IDEMPOTENCY_KEY, default=UNSET)
    # As they came: a trace context that is none is no reason to refuse anything (J-17).
    traceparent: Raw | UnsetType = UNSET
    tracestate: Raw | UnsetType = UNSET


class Params(msgspec.Struct, gc=False):
    """The parameters of every method served, as far as a type says it."""

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
    """`_meta` of parameters whose other members have the wrong types."""

    meta: Meta | UnsetType = msgspec.field(name="_meta", default=UNSET)


class Whole(Members, gc=False):
    """A message together with its parameters."""

    params: Params | UnsetType = UNSET


_decode_whole = msgspec.json.Decoder(Whole).decode
_decode = msgspec.json.Decoder(Params).decode
_decode_meta = msgspec.json.Decoder(OnlyMeta).decode

NONE = Params()
NO_META = Meta()


def read_whole(body: bytes) -> tuple[Message, bytes, Params] | None:
    """
    A request of the modern era, its id and its parameters, in one pass; None for whatever else
    there is: that is read in parts (`jsonrpc.read`, `read_params`), which find out what is wrong.

    The message that comes back has no raw parameters, which only the methods of sessions look at.
    """
    try:
        if not body.isascii():
            body.decode()  # msgspec looks inside no value that it leaves raw
        whole = _decode_whole(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    method, params, raw_id = whole.method, whole.params, whole.id
    if raw_id is UNSET or params is UNSET or not method:
        return None
    if params.meta is UNSET or params.meta.version != MODERN:
        return None
    if whole.jsonrpc != "2.0" or whole.result is not UNSET or whole.error is not UNSET:
        return None
    if body.count(b"{") + body.count(b"[") > NESTING:
        return None
    identity = read_id(raw_id)
    return None if identity is None else (Message(identity, method, None), identity, params)


def read_params(raw: bytes | None) -> tuple[Params, Refused | None]:
    """
    Read parameters; with a refusal, when they are malformed, for whoever gets to say so.

    `_meta` is read even then, because it decides which era's words the refusal is in.
    """
    if raw is None or raw == b"null":
        return NONE, None
    try:
        return _decode(raw), None
    except msgspec.DecodeError as error:
        # msgspec's sentences name the member and both types, and no value.
        refusal = Refused(INVALID_PARAMS, f"Invalid params: {error}")
    try:
        return Params(meta=_decode_meta(raw).meta), refusal
    except msgspec.DecodeError:
        return NONE, refusal


def name_in(params: Params) -> str:
    """The tool or prompt that is named; raises Refused."""
    if params.name is UNSET:
        raise Refused(INVALID_PARAMS, "params.name is required")
    return params.name


def uri_in(params: Params) -> str:
    """The resource or folder that is named; raises Refused."""
    if params.uri is UNSET:
        raise Refused(INVALID_PARAMS, "params.uri is required")
    return params.uri


def arguments_in(params: Params) -> bytes:
    """The arguments as JSON of an object; raises Refused."""
    raw = b"{}" if params.arguments is UNSET else bytes(params.arguments)
    if raw[:1] == b"{":
        return raw
    if raw == b"null":
        return b"{}"
    raise Refused(INVALID_PARAMS, "params.arguments must be an object")


def decode_as(kind: type[Any], raw: bytes | None) -> Any:
    """Parameters as a method's own type; raises Refused."""
    try:
        return msgspec.json.decode(raw or b"{}", type=kind)
    except msgspec.DecodeError as error:
        raise Refused(INVALID_PARAMS, f"Invalid params: {error}") from None
