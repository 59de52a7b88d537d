"""What comes around a call's arguments: who it says it is for, what it is part of, its type."""

from collections import Counter
from collections.abc import Iterable

import msgspec
import structlog
from starlette.types import Scope

from gatepost.intake import NESTING, outside_strings, too_deep
from gatepost.rest.projection import Refusal
from gatepost.scope import FOLDED, REQUEST_ID, peer_of
from gatepost.tools.api import Retry
from gatepost.tools.retry import CORRELATION, IDEMPOTENCY, BadKey, correlation_of, retry_of
from gatepost_authz.caller import TenantContext

log = structlog.get_logger("gatepost.rest")

TENANT_HEADER = b"x-octopus-tenant-id"
JSON = b"application/json"

SINGLE = frozenset({b"content-type", b"content-encoding", CORRELATION, IDEMPOTENCY, TENANT_HEADER})
"""Whoever reads the first and whoever reads the last of two would see different requests."""

SHOWN_CHARACTERS = 64

_decode = msgspec.json.decode
_encode = msgspec.json.encode


class Envelope(msgspec.Struct, frozen=True):
    """One request around its body, checked."""

    request_id: str
    correlation: str | None = None
    retry: Retry | None = None


class TenantDiffers(Refusal):
    """The request says that it is for another tenant than its token; worth a record."""

    def __init__(
        self, caller: TenantContext, request_id: str, claimed: str, peer: str = ""
    ) -> None:
        message = "X-Octopus-Tenant-Id is not the tenant of the access token."
        super().__init__(403, "denied", message)
        self.caller, self.request_id, self.claimed = caller, request_id, claimed
        self.peer = peer


def read_envelope(scope: Scope, caller: TenantContext) -> Envelope:
    """The marks of a request behind the gate; raises Refusal."""
    headers: dict[bytes, bytes] = scope.get(FOLDED) or dict(scope["headers"])
    request_id = str(scope.get(REQUEST_ID, ""))
    doubled = _doubled(scope["headers"]) if len(headers) != len(scope["headers"]) else frozenset()
    claimed = headers.get(TENANT_HEADER)
    if claimed is not None and (TENANT_HEADER in doubled or not _is_tenant(claimed, caller)):
        # The tenant is the token's. A client that believes another one is misconfigured or lying,
        # and doing its work for the token's tenant would mix the two (O13).
        shown = claimed[:SHOWN_CHARACTERS].decode("ascii", "backslashreplace")
        log.warning(
            "tenant_header_differs",
            request_id=request_id,
            tenant=caller.tenant_id,
            claimed=shown,
        )
        raise TenantDiffers(caller, request_id, shown, peer_of(scope))
    if doubled:
        name = min(doubled).decode()
        raise Refusal(400, "invalid_header", f"The header {name} may be sent once only.")
    try:
        retry = retry_of(headers)
        correlation = correlation_of(headers)
    except BadKey as bad:
        raise Refusal(400, "invalid_header", f"{bad}.") from None
    return Envelope(request_id, correlation, retry)


def check_type(scope: Scope) -> None:
    """Only JSON, and not compressed: what it unpacks to would be bounded by nothing; Refusal."""
    headers: dict[bytes, bytes] = scope.get(FOLDED) or dict(scope["headers"])
    declared = headers.get(b"content-type", b"")
    if declared.partition(b";")[0].strip().lower() != JSON:
        raise Refusal(415, "unsupported_media_type", "Content-Type must be application/json.")
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise Refusal(415, "unsupported_media_type", "The body must not be compressed.")


def read_arguments(body: bytes) -> bytes:
    """
    The argument object of a call as it came; raises Refusal.

    Members that stand there twice are refused: what a proxy in front has looked at would not be
    what the tool gets.
    """
    try:
        value = _decode(body)
    except (ValueError, RecursionError):
        raise Refusal(400, "invalid_body", "The body is not valid JSON.") from None
    if too_deep(body):
        raise Refusal(400, "invalid_body", f"The body nests deeper than {NESTING} levels.")
    if not isinstance(value, dict):
        message = "The body must be a JSON object that holds the tool's arguments by name."
        raise Refusal(422, "validation_error", message)
    # Outside of strings, each colon is one member's; a member that was overwritten is gone now.
    if outside_strings(body).count(b":") != outside_strings(_encode(value)).count(b":"):
        raise Refusal(400, "invalid_body", "A member of the body is there twice.")
    return body


def _is_tenant(claimed: bytes, caller: TenantContext) -> bool:
    return claimed.strip(b" \t") == caller.tenant_id.encode()


def _doubled(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    counted = Counter(name for name, _ in headers)
    return frozenset(name for name in SINGLE if counted[name] > 1)
