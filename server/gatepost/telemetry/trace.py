"""Read trace contexts (W3C Trace Context) of callers and pass contexts on."""

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Literal, Protocol

import msgspec

TRACEPARENT, TRACESTATE = b"traceparent", b"tracestate"
LONGEST_STATE = 512
MAX_MEMBERS = 32

_PARENT = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-"
    r"(?P<flags>[0-9a-f]{2})(?P<more>-.*)?",
    re.ASCII,
)
_MEMBER = re.compile(
    r"(?:[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
    r"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
SAMPLED = 1


class TraceContext(msgspec.Struct, frozen=True):
    """The trace context of a caller."""

    trace_id: int
    span_id: int
    sampled: bool
    state: tuple[tuple[str, str], ...] = ()
    """The vendor members of `tracestate`."""


def read_context(parent: str | None, state: str | None = None) -> TraceContext | None:
    """
    Parse `traceparent` and `tracestate`; return None for a malformed one.

    Strict (W3C Trace Context sections 3.2 and 3.3): a state that is not well formed is left out.
    """
    if parent is None or len(parent) > LONGEST_STATE:
        return None
    read = _PARENT.fullmatch(parent)
    if read is None or read["version"] == "ff" or (read["version"] == "00" and read["more"]):
        return None
    trace_id, span_id = int(read["trace"], 16), int(read["span"], 16)
    if not trace_id or not span_id:
        return None
    return TraceContext(trace_id, span_id, bool(int(read["flags"], 16) & SAMPLED), _members(state))


def _members(state: str | None) -> tuple[tuple[str, str], ...]:
    if not state or len(state) > LONGEST_STATE:
        return ()
    members = [member for part in state.split(",") if (member := part.strip(" \t"))]
    pairs = [tuple(member.split("=", 1)) for member in members if _MEMBER.fullmatch(member)]
    keys = {pair[0] for pair in pairs}
    if len(members) > MAX_MEMBERS or len(pairs) != len(members) or len(keys) != len(pairs):
        return ()
    return tuple((pair[0], pair[1]) for pair in pairs)


def context_in(headers: Mapping[bytes, bytes]) -> TraceContext | None:
    """Return the trace context in the headers of a request (names in lower case)."""
    parent = headers.get(TRACEPARENT)
    if parent is None:
        return None
    state = headers.get(TRACESTATE)
    return read_context(
        parent.decode("latin-1").strip(" \t"), None if state is None else state.decode("latin-1")
    )


class Span(Protocol):
    """A running span; nothing can be added once it has ended."""

    def set_attribute(self, name: str, value: str | int) -> None:
        """Set an attribute; never with text of a caller or tool, or a secret."""

    def set_error(self, kind: str) -> None:
        """Mark the span as failed; *kind* is a fixed word."""


class CurrentSpan(msgspec.Struct, frozen=True):
    """The current span."""

    trace_id: str
    span_id: str
    sampled: bool
    span: Span
    shared: bool = False
    """Whether the caller sent a context and therefore gets Gatepost's."""

    @property
    def traceparent(self) -> str:
        """Return the `traceparent` for the next server."""
        return f"00-{self.trace_id}-{self.span_id}-{int(self.sampled):02}"


CURRENT_SPAN: ContextVar[CurrentSpan | None] = ContextVar("gatepost.trace", default=None)
"""None if the request is not traced."""


def outgoing() -> str | None:
    """Return the `traceparent` for an outgoing request of this call, or None."""
    span = CURRENT_SPAN.get()
    return None if span is None else span.traceparent


def shared() -> str | None:
    """Return the `traceparent` for the caller if it takes part in tracing, or None."""
    span = CURRENT_SPAN.get()
    return None if span is None or not span.shared else span.traceparent


def marked(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """
    Return parameters for the caller, with the trace context in `_meta` if it takes part (SEP-414).
    """
    parent = shared()
    return (
        params
        if parent is None
        else {**params, "_meta": {**params.get("_meta", {}), "traceparent": parent}}
    )


SpanAttributes = Mapping[str, str | int]


class Tracer(Protocol):
    """Creates spans."""

    def span(
        self,
        name: str,
        kind: Literal["server", "internal"],
        *,
        callers: Sequence[TraceContext | None] = (),
        attributes: SpanAttributes | None = None,
    ) -> AbstractContextManager[Span]:
        """
        Trace a block.

        *callers* are contexts that came with a request, the one that counts first; None where
        there was none. An internal span belongs to the one that it runs in.
        """
