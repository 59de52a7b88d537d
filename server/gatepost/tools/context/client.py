"""The client of a call: its capabilities, and what a call can send to it and ask of it."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, get_args

import msgspec

LoggingLevel = Literal[
    "debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"
]
LEVELS: tuple[LoggingLevel, ...] = get_args(LoggingLevel)
"""All levels, the least urgent first."""
Capabilities = Mapping[str, Any]
"""A ClientCapabilities object of the schema, as the client declared it."""


class InputRequest(msgspec.Struct, frozen=True):
    """
    One request to the client: `elicitation/create`, `sampling/createMessage` or `roots/list`.

    Its parameters have the form of the newest revision.
    """

    method: Literal["elicitation/create", "sampling/createMessage", "roots/list"]
    params: Mapping[str, Any]


MAX_LOG_BYTES = 16_384
"""The largest log message, as JSON."""

MAX_KEPT_BYTES = 65_536
"""The largest state that a request for input keeps for the next run."""

RESERVED = range(-32768, -31999)
"""JSON-RPC's error codes; MCP leaves none of them to tools (J-18, J-19)."""


class MissingCapability(Exception):
    """The client lacks capabilities that the call needs; ``required`` holds the missing ones."""

    def __init__(self, required: Capabilities) -> None:
        lacks = [" ".join((name, *parts)) for name, parts in required.items()]
        super().__init__(f"needs a client that can do: {', '.join(lacks)}")
        self.required = required


class ProtocolError(Exception):
    """
    Raised by a tool to answer with a JSON-RPC error instead of a result.

    Agents rarely see such an error. Raise ToolFailure for anything an agent can act on. ``code``
    must not be reserved by the protocol (-32768 to -32000), except -32602 and -32603.
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        if not isinstance(code, int):
            raise TypeError(f"the code of an error is a number, not {type(code).__name__}")
        if code in RESERVED and code not in (-32602, -32603):
            raise ValueError(f"{code} is reserved by the protocol; use a code outside its range")
        self.code = code
        self.message = message
        self.data = data


class InputNeeded(BaseException):
    """
    Ends a tool's run, because its requests for input are sent as the answer.

    The client calls again with the answers, and the tool runs from its beginning (2026-07-28,
    multi round-trip requests). This is a BaseException like CancelledError, so that a tool's
    `except Exception` does not swallow it.

    The next run finds *state* as `Client.previous_state`; the client of the caller cannot read it.
    """

    def __init__(self, requests: Mapping[str, InputRequest], state: bytes = b"") -> None:
        super().__init__()
        self.requests = requests
        self.state = state


class TaskNotAccepted(BaseException):
    """
    Ends a call that should become a task and could not; its tool has not started.

    This is a BaseException like InputNeeded, so that no tool and no stage handles it as a failure.
    """


def all_needed(several: BaseExceptionGroup[Any]) -> InputNeeded | None:
    """
    Merge the requests of the tasks of a group; return None if a task failed otherwise.

    Only one of the tasks may keep a state, so the result is also None if several do.
    """
    needed, other_errors = several.split(InputNeeded)
    if needed is None or other_errors is not None:
        return None
    requests: dict[str, InputRequest] = {}
    states: list[bytes] = []
    unvisited: list[BaseException] = [needed]
    while unvisited:
        raised = unvisited.pop()
        if isinstance(raised, BaseExceptionGroup):
            unvisited.extend(reversed(raised.exceptions))
        elif isinstance(raised, InputNeeded):
            requests.update(raised.requests)
            states += [raised.state] if raised.state else []
    return InputNeeded(requests, *states) if len(states) <= 1 else None


class ApprovalPending(Exception):
    """
    The call waits for an approval and its client cannot wait.

    Nothing was done. If the client repeats the call after ``retry_after_s`` seconds, the call
    meets the same approval request.
    """

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s


class AwaitedDecision(Protocol):
    """A decision of an approver that the call waits for."""

    message: str
    """The text for the client: what waits, until when, and what repeating the call does."""
    url: str
    """The approval page, which requires a sign-in; empty if there is none."""
    message_with_url: str
    """The text with the URL, for a client that cannot be shown the page."""
    retry_after_s: float
    """The number of seconds after which to call again."""

    async def over(self) -> None:
        """Return when the request is decided or has expired; raises StoreUnavailable."""


def pending(waiting: AwaitedDecision) -> ApprovalPending:
    """Return the exception for a client that stops waiting before the decision."""
    return ApprovalPending(waiting.message_with_url, waiting.retry_after_s)


class PausableLimit(Protocol):
    """A limit that does not apply to a call while it waits for a person."""

    def paused(self) -> AbstractContextManager[None]:
        """Suspend the limit for the duration of a block."""


class Client(Protocol):
    """The client of one call, created by the protocol that received the call."""

    @property
    def client_name(self) -> str:
        """
        Return the name that the client gives itself, which may be any text; empty if it gives none.
        """

    @property
    def capabilities(self) -> Capabilities:
        """Return the capabilities that the client declared."""

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Send progress, if the client asked for it."""

    def admits_report(self, progress: float) -> bool:
        """Return whether a report is sent or waits; False: it is dropped, as if it was not made."""

    @property
    def has_unsent_report(self) -> bool:
        """Return whether the newest report that was admitted waits, or was replaced."""

    def wants_log(self, level: LoggingLevel) -> bool:
        """Return whether the client asked for log messages of this level."""

    def admits_log(self, level: LoggingLevel, data: Any) -> bool:
        """
        Return whether the client wants a log message and the rate limit has room, and take it.

        It is asked once about each message, before it is sent.
        """

    async def log(self, level: LoggingLevel, data: Any, logger: str | None) -> None:
        """Send a log message that was admitted, if the client asked for its level."""

    @property
    def previous_state(self) -> bytes:
        """
        Return the *state* of the `request` or `detach` of the run before; empty in a first run.
        """

    @property
    def handed_over(self) -> bool:
        """
        Return whether another run continues the call, so that the end of this one says nothing.
        """

    async def request(
        self, requests: Mapping[str, InputRequest], *, state: bytes = b""
    ) -> Mapping[str, Mapping[str, Any]]:
        """
        Send all requests at once and return the client's answers by the same keys.

        If the request ends this run, the next run gets *state* as `previous_state`. It has at most
        `MAX_KEPT_BYTES`.

        Raises MissingCapability if the client did not declare what a request needs. It may raise
        InputNeeded, which must not be caught.
        """

    async def wait_for_decision(self, waiting: AwaitedDecision) -> None:
        """
        Wait for an approver's decision, in the way that this client can wait.

        Returns when `waiting.over()` does. Raises ApprovalPending if the client must call again. It
        may raise InputNeeded, which must not be caught. The client's own answers decide nothing.
        """

    async def pause(self, retry_after_s: float) -> None:
        """Close the connection; a client that can do so reconnects for the rest."""

    async def detach(self, *, state: bytes = b"") -> None:
        """
        Answer the request with a task, in which the call continues.

        Returns when the task is durable, or at once if the call cannot become a task or already
        is one. Does not return if the task is refused; then the call is cancelled.

        With a *state*, the call is in progress elsewhere: if this process ends, another one runs
        the tool again, which gets *state* as `previous_state` and must continue instead of starting
        again.
        """


class SilentClient:
    """The client of a protocol that has no messages and no requests to the client."""

    @property
    def client_name(self) -> str:
        """Return no name."""
        return ""

    @property
    def capabilities(self) -> Capabilities:
        """Return no capabilities."""
        return {}

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Drop the progress."""

    def admits_report(self, progress: float) -> bool:
        """Return True; a subclass with `progress` takes each report."""
        return True

    @property
    def has_unsent_report(self) -> bool:
        """Return False, because no report waits."""
        return False

    def wants_log(self, level: LoggingLevel) -> bool:
        """Return False: there are no messages."""
        return False

    def admits_log(self, level: LoggingLevel, data: Any) -> bool:
        """Return False: there are no messages."""
        return False

    async def log(self, level: LoggingLevel, data: Any, logger: str | None) -> None:
        """Drop the message."""

    @property
    def previous_state(self) -> bytes:
        """Return nothing, because no run of this client follows another."""
        return b""

    @property
    def handed_over(self) -> bool:
        """Return False, because no run of this client follows another."""
        return False

    async def request(
        self, requests: Mapping[str, InputRequest], *, state: bytes = b""
    ) -> Mapping[str, Mapping[str, Any]]:
        """Raise MissingCapability, because this client cannot answer."""
        raise MissingCapability(required_by(requests))

    async def wait_for_decision(self, waiting: AwaitedDecision) -> None:
        """Raise ApprovalPending, because this client cannot wait and has to call again."""
        raise pending(waiting)

    async def pause(self, retry_after_s: float) -> None:
        """Do nothing, because this client cannot reconnect."""

    async def detach(self, *, state: bytes = b"") -> None:
        """Return at once; the call continues without a task."""


NO_CLIENT = SilentClient()

PAGES: Capabilities = {"elicitation": {"url": {}}}
"""The capability of a client that opens pages for its user."""
FORMS: Capabilities = {"form": {}}
"""The meaning of an elicitation capability without parts."""


def required_by(requests: Mapping[str, InputRequest]) -> Capabilities:
    """Return the capabilities that a client needs for these requests."""
    required: dict[str, Any] = {}
    for request in requests.values():
        feature, _, _ = request.method.partition("/")
        parts = required.setdefault(feature, {})
        if request.method == "elicitation/create":
            parts[request.params.get("mode", "form")] = {}
        if request.method == "sampling/createMessage" and request.params.get("tools"):
            parts["tools"] = {}
    if required.get("elicitation") == FORMS:
        required["elicitation"] = {}
    return required


def lacking(declared: Capabilities, required: Capabilities) -> Capabilities:
    """
    Return the part of *required* that was not declared.

    An elicitation capability without parts means only forms (schema ClientCapabilities).
    """
    missing: dict[str, Any] = {}
    for feature, parts in required.items():
        offered = declared.get(feature)
        if not isinstance(offered, Mapping):
            missing[feature] = parts
            continue
        if feature == "elicitation":
            parts, offered = parts or FORMS, offered or FORMS
        absent = [part for part in parts if part not in offered]
        if absent:
            missing[feature] = {part: {} for part in absent}
    return missing
