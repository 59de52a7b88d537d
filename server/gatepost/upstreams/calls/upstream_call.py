"""Build the request of a call of an upstream from the caller's arguments."""

import base64
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from gatepost.tools.context.client import Capabilities, LoggingLevel
from gatepost.tools.offers.offer import CallContext
from gatepost.tools.schemas.header_arguments import Routed
from gatepost.upstreams.calls.call_states import MAX_ROUNDS, PARKED_S
from gatepost.upstreams.connection import RequestOptions
from gatepost.upstreams.upstream_server import UpstreamServer

PREFIX = "Mcp-Param-"
LOG_LEVEL: LoggingLevel = "info"
"""
The level that is requested from an upstream; the caller's own level is applied to its messages.
"""
PRINTABLE = frozenset(map(chr, range(0x20, 0x7F)))


class UpstreamCall(msgspec.Struct, frozen=True):
    """One request to an upstream: its method, its parameters, and the values of its headers."""

    method: str
    params: Mapping[str, Any]
    headers: Mapping[str, str] = {}


def header_arguments(routed: Sequence[Routed], arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the `Mcp-Param-*` headers of a call; an argument that is not there has none."""
    headers = {}
    for parameter in routed:
        value: Any = arguments
        for name in parameter.path:
            value = value.get(name) if isinstance(value, Mapping) else None
        if value is None:
            continue
        text = str(value).lower() if isinstance(value, bool) else str(value)
        headers[PREFIX + parameter.header] = _header_value(text)
    return headers


def _header_value(text: str) -> str:
    """Return a text as a header carries it: plain ASCII, or base64 with its marks (H-06)."""
    is_marked = text.startswith("=?base64?") and text.endswith("?=")
    if set(text) <= PRINTABLE and text == text.strip() and not is_marked:
        return text
    encoded = base64.b64encode(text.encode(errors="surrogatepass")).decode("ascii")
    return f"=?base64?{encoded}?="


def idempotency_key(ctx: CallContext, server: UpstreamServer, key: str) -> str | None:
    """
    Return the key under which the upstream knows this call.

    The upstream sees one client, this server. So the keys of two callers must differ, and those of
    two tools too.
    """
    client_key = ctx.idempotency_key
    if client_key is None or client_key.kind != "idempotency":
        return None
    key_parts = [*ctx.caller.identity_key, server.id, key, client_key.key]
    return hashlib.sha256(msgspec.json.encode(key_parts)).hexdigest()


def options_of(
    ctx: CallContext,
    server: UpstreamServer,
    call: UpstreamCall,
    declared: Capabilities,
    *,
    key: str,
    waits: bool,
) -> RequestOptions:
    """Return what goes along; with *waits* the connection's own clocks leave time for a person."""
    extra_s = MAX_ROUNDS * PARKED_S if waits else 0.0
    return RequestOptions(
        capabilities=declared,
        progress_token=secrets.token_urlsafe(9),
        log_level=LOG_LEVEL if "logging" in server.allow else None,
        idempotency_key=idempotency_key(ctx, server, key),
        correlation=ctx.correlation,
        caller=ctx.caller.principal_key,
        timeout_s=server.timeout_s + extra_s,
        idle_s=server.idle_s + extra_s,
        header_arguments=call.headers,
    )


def principal_of(ctx: CallContext, server: UpstreamServer) -> tuple[str, ...] | None:
    """Return the caller's key if the upstream keeps something for each caller."""
    program = server.program
    is_per_person = server.stateful or server.catalogue == "person"
    if is_per_person or (program is not None and program.per == "person"):
        return cast("tuple[str, ...]", ctx.caller.principal_key)
    return None
