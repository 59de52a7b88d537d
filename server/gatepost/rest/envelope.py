"""Read and check the headers of a request and the body with its arguments."""

import logging
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec
from starlette.types import Scope

from gatepost.documents.json_shape import (
    MAX_VALUES,
    NESTING,
    decoded,
    excess,
    outside_strings,
    too_deep,
)
from gatepost.http.edge import peer_of
from gatepost.http.scope import HEADERS_BY_NAME, REQUEST_ID
from gatepost.rest.responses import RestRefusal
from gatepost.tools.context.idempotency_key import (
    CORRELATION,
    IDEMPOTENCY,
    BadKey,
    correlation_of,
    idempotency_key_of,
)
from gatepost.tools.offers.offer import Call, IdempotencyKey
from gatepost_authz.caller import TenantContext

log = logging.getLogger(__name__)

TENANT_HEADER = b"x-octopus-tenant-id"
JSON = b"application/json"

SINGLE = frozenset({b"content-type", b"content-encoding", CORRELATION, IDEMPOTENCY, TENANT_HEADER})
"""Headers that must not be repeated, because proxies and the server might read different ones."""

SHOWN_CHARACTERS = 64

_encode = msgspec.json.encode


class RestRequest(msgspec.Struct, frozen=True):
    """The checked headers of one request."""

    request_id: str
    correlation: str | None = None
    idempotency_key: IdempotencyKey | None = None


class TenantDiffers(RestRefusal):
    """The request names another tenant than its token does; it gets an audit record."""

    def __init__(self, call: Call, claimed: str) -> None:
        message = "X-Octopus-Tenant-Id is not the tenant of the access token."
        super().__init__(403, "denied", message)
        self.call, self.claimed = call, claimed


def read_envelope(scope: Scope, caller: TenantContext) -> RestRequest:
    """Read and check the headers of an authorized request; raises RestRefusal."""
    headers: dict[bytes, bytes] = scope.get(HEADERS_BY_NAME) or dict(scope["headers"])
    request_id = str(scope.get(REQUEST_ID, ""))
    doubled = _doubled(scope["headers"]) if len(headers) != len(scope["headers"]) else frozenset()
    claimed = headers.get(TENANT_HEADER)
    if claimed is not None and (TENANT_HEADER in doubled or not _is_tenant(claimed, caller)):
        # The token decides the tenant. A client that names another one is misconfigured or
        # malicious, and serving it for the token's tenant would mix the two (O13).
        excerpt = claimed[:SHOWN_CHARACTERS].decode("ascii", "backslashreplace")
        log.warning(
            "tenant_header_differs",
            extra={"request_id": request_id, "tenant": caller.tenant_id, "claimed": excerpt},
        )
        call = Call(
            caller=caller, name="", arguments=b"", request_id=request_id, peer=peer_of(scope)
        )
        raise TenantDiffers(call, excerpt)
    if doubled:
        name = min(doubled).decode()
        raise RestRefusal(400, "invalid_header", f"The header {name} may be sent only once.")
    try:
        idempotency_key = idempotency_key_of(headers)
        correlation = correlation_of(headers)
    except BadKey as error:
        raise RestRefusal(400, "invalid_header", f"{error}.") from None
    return RestRequest(request_id, correlation, idempotency_key)


def check_type(scope: Scope) -> None:
    """Raise RestRefusal unless the body is JSON and not compressed, which would be unbounded."""
    headers: dict[bytes, bytes] = scope.get(HEADERS_BY_NAME) or dict(scope["headers"])
    declared = headers.get(b"content-type", b"")
    if declared.partition(b";")[0].strip().lower() != JSON:
        raise RestRefusal(415, "unsupported_media_type", "Content-Type must be application/json.")
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise RestRefusal(415, "unsupported_media_type", "The body must not be compressed.")


def read_arguments(body: bytes, max_values: int = MAX_VALUES) -> bytes:
    """Return the body if it is a valid object of arguments; raises RestRefusal."""
    if read_object(body, max_values) is None:
        message = "The body must be a JSON object that holds the tool's arguments by name."
        raise RestRefusal(422, "validation_error", message)
    return body


def read_object(body: bytes, max_values: int) -> dict[str, Any] | None:
    """
    Return the JSON object in the body, None if it holds another value; raises RestRefusal.

    Duplicate members are refused, because a proxy might read one of them and Gatepost the other.
    """
    if too_much := excess(body, max_values):
        raise RestRefusal(413, "body_too_large", f"{too_much}.")
    try:
        value = decoded(body)
    except (ValueError, RecursionError):
        raise RestRefusal(400, "invalid_body", "The body is not valid JSON.") from None
    if too_deep(body):
        raise RestRefusal(400, "invalid_body", f"The body nests deeper than {NESTING} levels.")
    if not isinstance(value, dict):
        return None
    # Outside strings, each colon belongs to one member. An overwritten duplicate is missing.
    if outside_strings(body).count(b":") != outside_strings(_encode(value)).count(b":"):
        raise RestRefusal(400, "invalid_body", "The body has a member twice.")
    return value


def _is_tenant(claimed: bytes, caller: TenantContext) -> bool:
    # A platform uses its own name for a tenant, which is in the token's claim.
    names = (caller.tenant_id, caller.tenant_claim)
    return claimed.strip(b" \t") in [name.encode() for name in names if name is not None]


def _doubled(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    counted = Counter(name for name, _ in headers)
    return frozenset(name for name in SINGLE if counted[name] > 1)
