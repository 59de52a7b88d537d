"""The agent's side of a call: what it can do, what it is told, and what it may be asked."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Literal, Protocol, get_args

import msgspec

LogLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)
"""From the least urgent to the most."""
Capabilities = Mapping[str, Any]
"""A ClientCapabilities object of the schema, as the client declared it."""


class InputRequest(msgspec.Struct, frozen=True):
    """
    One question to the agent's side: `elicitation/create`, `sampling/createMessage` or
    `roots/list`, with its parameters as the newest revision writes them.
    """

    method: Literal["elicitation/create", "sampling/createMessage", "roots/list"]
    params: Mapping[str, Any]


RESERVED = range(-32768, -31999)
"""JSON-RPC's error codes; MCP leaves none of them to tools (J-18, J-19)."""


class MissingCapability(Exception):
    """The client of this call cannot do what the call needs; ``required`` is what it lacks."""

    def __init__(self, required: Capabilities) -> None:
        lacks = [" ".join((name, *parts)) for name, parts in required.items()]
        super().__init__(f"needs a client that can do: {', '.join(lacks)}")
        self.required = required


class ProtocolError(Exception):
    """
    Raised by a tool to answer a JSON-RPC error instead of a result.

    Models hardly ever see one: what a model can act on is a ToolFailure. ``code`` must not be one
    that the protocol reserves (-32768 to -32000), except -32602 and -32603.
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        if code in RESERVED and code not in (-32602, -32603):
            raise ValueError(f"{code} is the protocol's own; a tool's codes lie outside of it")
        self.code = code
        self.message = message
        self.data = data


class InputNeeded(BaseException):
    """
    Ends a tool's run because its questions go out as the answer; the client calls again with what
    was answered, and the tool runs from its beginning (2026-07-28, multi round-trip requests).

    A BaseException like CancelledError, so that a tool's `except Exception` does not swallow it.
    """

    def __init__(self, requests: Mapping[str, InputRequest]) -> None:
        super().__init__()
        self.requests = requests


class Unaccepted(BaseException):
    """
    Ends a call that was to become a task and could not: its tool has not begun.

    A BaseException like InputNeeded: no tool and no stage takes it for a failure of theirs.
    """


def all_needed(several: BaseExceptionGroup[Any]) -> InputNeeded | None:
    """Everything that was asked by tasks of one group; None when one of them failed otherwise."""
    needed, others = several.split(InputNeeded)
    if needed is None or others is not None:
        return None
    requests: dict[str, InputRequest] = {}
    ahead: list[BaseException] = [needed]
    while ahead:
        raised = ahead.pop()
        if isinstance(raised, BaseExceptionGroup):
            ahead.extend(reversed(raised.exceptions))
        elif isinstance(raised, InputNeeded):
            requests.update(raised.requests)
    return InputNeeded(requests)


class Pending(Exception):
    """
    A person decides about the call and its client cannot wait: nothing was done, and the same call
    made again after so many seconds meets the same question.
    """

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s


class Waiting(Protocol):
    """A decision that somebody else has to take before the call goes on."""

    message: str
    """What the agent's side is told: what waits, until when, and what the same call would meet."""
    url: str
    """The page where it can be looked at; whoever opens it must sign in. Empty: there is none."""
    retry_after_s: float
    """When it is worth asking again."""

    async def over(self) -> None:
        """Return when it was decided, or when its time is over; raises StoreUnavailable."""


def told(waiting: Waiting) -> str:
    """What waits and where it can be looked at, for whoever reads the agent's side."""
    return f"{waiting.message} {waiting.url}" if waiting.url else waiting.message


def pending(waiting: Waiting) -> Pending:
    """What a call ends with whose client waits no longer, while the decision is still open."""
    return Pending(told(waiting), waiting.retry_after_s)


class Clock(Protocol):
    """Counts the time that a tool may take."""

    def held(self) -> AbstractContextManager[None]:
        """Stop it for the time of a block, in which a person decides."""


@contextmanager
def held(*clocks: Clock | None) -> Iterator[None]:
    """Stop those that there are, for the time of a block."""
    with ExitStack() as stack:
        for clock in clocks:
            if clock is not None:
                stack.enter_context(clock.held())
        yield


class Client(Protocol):
    """Made by the protocol that brings a call; one object per call."""

    @property
    def capabilities(self) -> Capabilities:
        """What the client declared."""

    def timed(self, clock: Clock) -> None:
        """The clock that runs for this call; what waits for a person holds it meanwhile."""

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Tell how far the work is, if the client asked to know."""

    async def log(self, level: LogLevel, data: Any, logger: str | None) -> None:
        """Send a log message, if the client asked for its level."""

    async def request(
        self, requests: Mapping[str, InputRequest]
    ) -> Mapping[str, Mapping[str, Any]]:
        """
        Ask, all at once; the answers by the same keys, as the client sent them.

        Raises MissingCapability for what the client did not declare. May raise InputNeeded, which
        must be let through.
        """

    async def stand_by(self, waiting: Waiting) -> None:
        """
        Wait until somebody else has decided, in the way that this client can wait.

        Returns when `waiting.over()` does. Raises Pending where the client must call again, and
        may raise InputNeeded, which must be let through. What its own side answers meanwhile
        decides nothing.
        """

    async def pause(self, retry_after_s: float) -> None:
        """Let go of the connection; the client comes back for the rest where it can."""

    async def detach(self) -> None:
        """
        Let go of the request: its answer is a task, which goes on without it.

        Returns once the task is durable, and at once where the call cannot become one or is one
        already. Does not return when the task is refused; the call is cancelled then.
        """


class Nobody:
    """The client of a protocol that can be told and asked nothing."""

    @property
    def capabilities(self) -> Capabilities:
        """Nothing was declared."""
        return {}

    def timed(self, clock: Clock) -> None:
        """Nobody waits for a person."""

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Nobody listens."""

    async def log(self, level: LogLevel, data: Any, logger: str | None) -> None:
        """Nobody listens."""

    async def request(
        self, requests: Mapping[str, InputRequest]
    ) -> Mapping[str, Mapping[str, Any]]:
        """Nobody could answer."""
        raise MissingCapability(required_by(requests))

    async def stand_by(self, waiting: Waiting) -> None:
        """Nobody waits: whoever called calls again."""
        raise pending(waiting)

    async def pause(self, retry_after_s: float) -> None:
        """There is nothing to come back to."""

    async def detach(self) -> None:
        """The call goes on as it is."""


NOBODY = Nobody()

PAGES: Capabilities = {"elicitation": {"url": {}}}
"""What a client declares that opens pages for its person."""
FORMS: Capabilities = {"form": {}}
"""What an elicitation capability without parts stands for."""


def required_by(requests: Mapping[str, InputRequest]) -> Capabilities:
    """The capabilities that a client must have declared to be asked this."""
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
    What of *required* was not declared; empty when nothing is missing.

    An elicitation capability without parts means form only (schema ClientCapabilities).
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
