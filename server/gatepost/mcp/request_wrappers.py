"""Wrap each request of the endpoint in debug log lines and spans."""

import logging
import time
from collections.abc import Awaitable, Callable

import msgspec
from msgspec import UNSET, Raw, UnsetType

from gatepost.mcp.event_stream import EventStream
from gatepost.mcp.jsonrpc import IncomingMessage, JsonRpcError
from gatepost.mcp.methods import INITIALIZE, METHODS
from gatepost.mcp.request import VERSION_HEADER, Exchange, Params
from gatepost.mcp.responses import ExchangeResponse
from gatepost.mcp.revisions import SERVED
from gatepost.telemetry.trace import TraceContext, Tracer, context_in, read_context
from gatepost.tools.calls.registry import Registry
from gatepost_authz.caller import TenantContext

Serve = Callable[
    [Exchange, IncomingMessage, bytes, Params, JsonRpcError | None],
    Awaitable[ExchangeResponse | EventStream | None],
]
"""
Serves a request. The arguments are the exchange, its message, its id, its parameters, and the error
in these, if any.
"""

WrapRequest = Callable[[Serve], Serve]
"""Wraps each request, for example in a span."""


log = logging.getLogger(__name__)

SHOWN_CHARACTERS = 64


def logged(serve: Serve) -> Serve:
    """
    Log each request: method, id, target, duration and outcome.

    The lines contain no arguments, which may be secrets.
    """

    async def serve_and_log(
        exchange: Exchange,
        message: IncomingMessage,
        identity: bytes,
        params: Params,
        problem: JsonRpcError | None,
    ) -> ExchangeResponse | EventStream | None:
        details = {
            "method": (message.method or "")[:SHOWN_CHARACTERS],
            "id": identity[:SHOWN_CHARACTERS].decode(errors="replace"),
            "request_id": exchange.request_id,
        }
        if params.name is not UNSET:
            details["tool" if message.method == "tools/call" else "named"] = params.name[
                :SHOWN_CHARACTERS
            ]
        log.debug("request_received", extra=details)
        began = time.perf_counter()
        answer = await serve(exchange, message, identity, params, problem)
        duration_ms = round((time.perf_counter() - began) * 1000, 1)
        log.debug(
            "response_ready",
            extra={**details, "duration_ms": duration_ms, "outcome": outcome_of(answer)},
        )
        return answer

    return serve_and_log


def outcome_of(answer: ExchangeResponse | EventStream | None) -> str:
    """Return `success`, `failure` (of a tool), `error` and its code, or `streamed`."""
    if not isinstance(answer, ExchangeResponse):
        return "streamed"
    response = _decode_response(answer.body or b"{}")
    if response.error is not None:
        return f"error {response.error.code}"
    return "failure" if response.result is not None and response.result.failed else "success"


KNOWN_METHODS = frozenset({INITIALIZE, *(method.name for method in METHODS)})
REVISIONS = {version.encode(): version for version in SERVED}
OTHER_METHOD = "_OTHER"
LONGEST_ID = 20
TOOL_ERROR = "tool_error"


class TracedError(msgspec.Struct, gc=False):
    """The reported part of a JSON-RPC error."""

    code: int


class Result(msgspec.Struct, gc=False):
    """The reported part of a result."""

    failed: bool = msgspec.field(name="isError", default=False)


class ReportedEnd(msgspec.Struct, gc=False):
    """The end of a request, as it is reported."""

    error: TracedError | None = None
    result: Result | None = None


_decode_response = msgspec.json.Decoder(ReportedEnd).decode


class RequestTracing:
    """
    Creates a span for each request.

    A span contains no argument and no subject. Of the client's values it contains only names that
    the server knows.
    """

    def __init__(self, tracer: Tracer, registry: Registry, *, names_tenant: bool) -> None:
        self._tracer, self._registry, self._names_tenant = tracer, registry, names_tenant

    def __call__(self, serve: Serve) -> Serve:
        """Return *serve* with a span around each request."""

        async def serve_in_span(
            exchange: Exchange,
            message: IncomingMessage,
            identity: bytes,
            params: Params,
            problem: JsonRpcError | None,
        ) -> ExchangeResponse | EventStream | None:
            name, attributes = self._described(exchange, message, identity, params)
            callers = (context_of(params), context_in(exchange.headers))
            with self._tracer.span(name, "server", callers=callers, attributes=attributes) as span:
                answer = await serve(exchange, message, identity, params, problem)
                kind = failure_of(answer)
                if kind is not None:
                    span.set_error(kind)
                    if kind != TOOL_ERROR:
                        span.set_attribute("rpc.response.status_code", kind)
                return answer

        return serve_in_span

    def _described(
        self, exchange: Exchange, message: IncomingMessage, identity: bytes, params: Params
    ) -> tuple[str, dict[str, str | int]]:
        """Return the span's name and attributes."""
        method = message.method if message.method in KNOWN_METHODS else None
        label = method or OTHER_METHOD
        attributes: dict[str, str | int] = {
            "mcp.method.name": label,
            "network.transport": "tcp",
            "gatepost.request_id": exchange.request_id,
        }
        if revision := REVISIONS.get(exchange.headers.get(VERSION_HEADER, b"")):
            attributes["mcp.protocol.version"] = revision
        if identity.isdigit() and len(identity) <= LONGEST_ID:
            attributes["jsonrpc.request.id"] = identity.decode()
        if self._names_tenant:
            attributes["gatepost.tenant"] = exchange.caller.tenant_id
        return label + self._target(exchange.caller, method, params, attributes), attributes

    def _target(
        self,
        caller: TenantContext,
        method: str | None,
        params: Params,
        attributes: dict[str, str | int],
    ) -> str:
        """Return the second part of the span's name: the name of an offer."""
        name = params.name
        if method == "tools/call":
            attributes["gen_ai.operation.name"] = "execute_tool"
            if name is not UNSET and self._registry.tool_of_tenant(caller, name) is not None:
                attributes["gen_ai.tool.name"] = name
                return f" {name}"
        if method == "prompts/get" and name is not UNSET and name in self._registry.prompts:
            attributes["gen_ai.prompt.name"] = name
            return f" {name}"
        return ""


def context_of(params: Params) -> TraceContext | None:
    """Return the trace context in a request's `_meta` (SEP-414), or None."""
    meta = params.meta
    if meta is UNSET or meta.traceparent is UNSET:
        return None
    return read_context(_text(meta.traceparent), _text(meta.tracestate))


def _text(raw: Raw | UnsetType) -> str | None:
    if raw is UNSET:
        return None
    try:
        return msgspec.json.decode(raw, type=str)
    except msgspec.DecodeError:
        return None


def failure_of(answer: ExchangeResponse | EventStream | None) -> str | None:
    """Return the code of a JSON-RPC error, `tool_error`, or None for a success or a stream."""
    if not isinstance(answer, ExchangeResponse) or not answer.body:
        return None
    try:
        response = _decode_response(answer.body)
    except msgspec.DecodeError:
        return None
    if response.error is not None:
        return str(response.error.code)
    return TOOL_ERROR if response.result is not None and response.result.failed else None
