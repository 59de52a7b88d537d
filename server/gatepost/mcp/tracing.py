"""An endpoint whose requests are traced (OpenTelemetry's conventions for MCP)."""

import msgspec
from msgspec import UNSET, Raw, UnsetType

from gatepost.mcp.debug import TalkativeEndpoint
from gatepost.mcp.endpoint import VERSION_HEADER, Endpoint
from gatepost.mcp.era import SERVED
from gatepost.mcp.exchange import Answer, Exchange
from gatepost.mcp.jsonrpc import Message, Refused
from gatepost.mcp.line import Line
from gatepost.mcp.methods import INITIALIZE, METHODS
from gatepost.mcp.params import Params
from gatepost.telemetry.trace import Context, Tracer, context_in, read_context
from gatepost.tools.registry import Registry

KNOWN = frozenset({INITIALIZE, *(method.name for method in METHODS)})
REVISIONS = {version.encode(): version for version in SERVED}
OTHER = "_OTHER"
LONGEST_ID = 20
TOOL_ERROR = "tool_error"


class Problem(msgspec.Struct, gc=False):
    """A JSON-RPC error, as far as it is told."""

    code: int


class Result(msgspec.Struct, gc=False):
    """A result, as far as it is told."""

    failed: bool = msgspec.field(name="isError", default=False)


class Told(msgspec.Struct, gc=False):
    """How a request ended."""

    error: Problem | None = None
    result: Result | None = None


_told = msgspec.json.Decoder(Told).decode


class TracedEndpoint(Endpoint):
    """
    An Endpoint that makes a span of each request.

    Of its own class, so that nobody pays for it who has not asked. A span holds no argument, no
    subject, and of what a client sends only names that the server knows, too.
    """

    tracer: Tracer
    registry: Registry
    names_tenant = False

    async def _request(
        self,
        exchange: Exchange,
        message: Message,
        identity: bytes,
        params: Params,
        problem: Refused | None,
    ) -> Answer | Line | None:
        method = message.method if message.method in KNOWN else None
        told = method or OTHER
        said: dict[str, str | int] = {
            "mcp.method.name": told,
            "network.transport": "tcp",
            "gatepost.request_id": exchange.request_id,
        }
        if revision := REVISIONS.get(exchange.headers.get(VERSION_HEADER, b"")):
            said["mcp.protocol.version"] = revision
        if identity.isdigit() and len(identity) <= LONGEST_ID:
            said["jsonrpc.request.id"] = identity.decode()
        if self.names_tenant:
            said["gatepost.tenant"] = exchange.caller.tenant_id
        name = told + self._target(method, params, said)
        callers = (context_of(params), context_in(exchange.headers))
        with self.tracer.span(name, "server", callers=callers, said=said) as span:
            answer = await super()._request(exchange, message, identity, params, problem)
            kind = failure_of(answer)
            if kind is not None:
                span.failed(kind)
                if kind != TOOL_ERROR:
                    span.say("rpc.response.status_code", kind)
            return answer

    def _target(self, method: str | None, params: Params, said: dict[str, str | int]) -> str:
        """What the span is called by beside its method: a name that is offered here."""
        name = params.name
        if method == "tools/call":
            said["gen_ai.operation.name"] = "execute_tool"
            if name is not UNSET and name in self.registry.tools:
                said["gen_ai.tool.name"] = name
                return f" {name}"
        if method == "prompts/get" and name is not UNSET and name in self.registry.prompts:
            said["gen_ai.prompt.name"] = name
            return f" {name}"
        return ""


class TalkativeTracedEndpoint(TracedEndpoint, TalkativeEndpoint):
    """One that does both."""


def context_of(params: Params) -> Context | None:
    """The trace context in a request's `_meta` (SEP-414); None for what is none."""
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


def failure_of(answer: Answer | Line | None) -> str | None:
    """A JSON-RPC error's code, `tool_error`, or None for what went well or went out as a stream."""
    if not isinstance(answer, Answer) or not answer.body:
        return None
    try:
        told = _told(answer.body)
    except msgspec.DecodeError:
        return None
    if told.error is not None:
        return str(told.error.code)
    return TOOL_ERROR if told.result is not None and told.result.failed else None
