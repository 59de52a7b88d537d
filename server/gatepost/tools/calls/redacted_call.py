"""Redact the tenant's secrets from everything that one call sends."""

import asyncio
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw

from gatepost.execution.cpu_thread import in_cpu_thread
from gatepost.redaction.clear_document import searched_and_cleaned
from gatepost.redaction.redactor import (
    CURRENT_CALL,
    PROMPT_BYTES,
    Redactor,
    cleaned_text,
    is_prompt,
)
from gatepost.redaction.stream import RedactedStream
from gatepost.secrets.names import REFERENCE_PREFIX
from gatepost.tools.authoring.encoded_json import checked_value
from gatepost.tools.calls.redaction import (
    MANY_BLOCKS,
    ONLY_TOKENS,
    Redaction,
    answer_without,
    failure_without,
    is_harmless,
    request_without,
)
from gatepost.tools.calls.truncation import UNENCODABLE, truncate
from gatepost.tools.context.client import (
    LEVELS,
    MAX_LOG_BYTES,
    AwaitedDecision,
    Capabilities,
    InputRequest,
    LoggingLevel,
    PausableLimit,
    ProtocolError,
)
from gatepost.tools.offers.offer import Call, Offer, Outcome, ToolFailure
from gatepost.tools.schemas.argument_size import is_quoted
from gatepost.tools.schemas.secret import literals

MAX_WRITTEN, MAX_WRITTEN_BYTES = 50, 65_536
"""
The limits for the number and size of secrets in the arguments of one call. Each costs time, and
only an attacker sends a password of thousands of lines.
"""

NUMBERS = frozenset({int, float})
"""
The types that are sent as a number: the encoder makes a text of a `Decimal`, and refuses numpy's
numbers.
"""

T = TypeVar("T")

_encode = msgspec.json.encode
_decode = msgspec.json.decode
_replace = msgspec.structs.replace


class RedactedCall(msgspec.Struct, eq=False):
    """
    Redacts one call: it wraps the call's client and cleans the call's outcome.

    Text that the tool sends in several pieces is searched as a whole.
    """

    redaction: Redaction
    call: Call
    offer: Offer
    redactor: Redactor = ONLY_TOKENS
    """The redactor for `version`; `now` replaces it when the version changes."""
    version: int = -1
    checked: bool = False
    """Whether the arguments were found valid."""
    has_begun: bool = False
    """Whether the tool was called; from then on the call may have had effects."""
    over: bool = False
    """Whether the call has ended; log lines after that hide the secrets of all known tenants."""
    reported: RedactedStream | None = None
    """The messages of the tool's progress."""
    logged: RedactedStream | None = None
    """The tool's log messages."""
    written: list[tuple[str, str]] | None = None
    """The secrets in the call's arguments, computed once."""
    limits: tuple[PausableLimit, ...] = ()
    """The limits that `suspend_while_waiting` was called with."""
    remarks: dict[str, str] | None = None
    """Remarks of stages for the call's audit record."""

    def now(self) -> Redactor:
        """Return the current redactor; secrets may have been added during the call."""
        version = self.redaction.secrets.version
        if version != self.version:
            redactor = self.redaction.redactor_for(self.call.caller.tenant_id)
            if self.offer.secret_arguments:
                # The secrets in the call's own arguments.
                redactor = redactor.with_values(self._written())
            self.redactor, self.version = redactor, version
        return self.redactor

    def arguments(self) -> Any:
        """Return the checked arguments of the call; raises ToolFailure if they are invalid."""
        if self.offer.secret_arguments:
            self._written()  # refuses too many secrets before the check
        arguments = self.offer.check(self.call.arguments)
        self.checked = True
        return arguments

    def _written(self) -> list[tuple[str, str]]:
        if self.written is None:
            self.written = written(self.call, self.offer)
            size = sum(len(value.encode(errors="surrogatepass")) for _, value in self.written)
            if size > MAX_WRITTEN_BYTES or len(self.written) > MAX_WRITTEN:
                # The arguments are not checked, so that no message can quote them.
                self.written, self.checked = [], True
                raise ToolFailure(
                    "validation",
                    f"The secrets in the arguments are too long: at most {MAX_WRITTEN_BYTES} "
                    f"bytes are taken, and {MAX_WRITTEN} of them. Name a kept one: "
                    f"`{REFERENCE_PREFIX}NAME`.",
                )
        return self.written

    async def redact(self, outcome: Outcome, max_bytes: int | None = None) -> Outcome:
        """Return the outcome without secrets and cut; a long one is searched in a thread."""
        if (clean := self.promptly(outcome)) is not None:
            return clean if max_bytes is None else truncate(clean, self.offer, max_bytes)
        work, caller = self._long_outcome, self.call.caller
        return await in_cpu_thread(caller, work, outcome, max_bytes, bounded=False)

    def _long_outcome(self, outcome: Outcome, max_bytes: int | None) -> Outcome:
        """Redact and cut an outcome that was found too long for `promptly`."""
        # True for nearly all, at half the cost of decoding its members.
        if not is_harmless(outcome, self.now(), sys.maxsize, promptly=False):
            outcome = self.outcome(outcome)
        return outcome if max_bytes is None else truncate(outcome, self.offer, max_bytes)

    def promptly(self, outcome: Outcome) -> Outcome | None:
        """Redact an outcome at once; return None if that would take too long."""
        if is_harmless(outcome, self.now()):
            return outcome
        if len(outcome.content) > MANY_BLOCKS:
            return None
        text = outcome.content[0].get("text") if len(outcome.content) == 1 else None
        if isinstance(text, str) and len(text) > PROMPT_BYTES:
            return None  # it is too long in any form, so it need not be encoded
        encoded = _encode(outcome.content)
        if outcome.structured is not UNSET:
            encoded += _encode(outcome.structured)
        if outcome.failure is not None:
            encoded += str(outcome.failure.message).encode(errors="surrogatepass")
        is_short = is_prompt(encoded, of_caller=self.redactor.of_caller)
        return self.outcome(outcome) if is_short else None

    def outcome(self, outcome: Outcome) -> Outcome:
        """Redact an outcome of any size; raises as `truncate` does if it cannot be encoded."""
        redactor, before = self.now(), outcome
        if outcome.failure is not None:
            failure = failure_without(outcome.failure, redactor)
            if failure is not outcome.failure:
                outcome = _replace(outcome, failure=failure)
        if outcome.untrusted is not None:
            label = cleaned_text(outcome.untrusted, redactor)
            if label != outcome.untrusted:
                outcome = _replace(outcome, untrusted=label)
        outcome = answer_without(outcome, self.offer, redactor)
        self.redaction.redacted_outcomes += outcome is not before
        return outcome

    def _refusal(self, refused: ToolFailure) -> ToolFailure:
        """
        Return the failure for the arguments without their secrets.

        Messages quote values, and cut long ones. Half a secret would not be found afterwards, so
        the redacted arguments are checked again. Messages about long arguments quote nothing.
        """
        if not is_quoted(self.call.arguments, with_secrets=bool(self.offer.secret_arguments)):
            return refused
        clean = searched_and_cleaned(self.call.arguments, self.now())
        if clean is None:
            return refused
        try:
            self.offer.check(clean)
        except ToolFailure as redacted_failure:
            return redacted_failure
        return ToolFailure("validation", "The arguments are not what the schema allows.")

    def error(self, error: BaseException) -> BaseException:
        """Return the exception of the call without secrets, but for those that its text names."""
        if isinstance(error, ToolFailure) and not self.checked:
            return self._refusal(error)
        try:
            return self.protocol_error(error) if isinstance(error, ProtocolError) else error
        except UNENCODABLE as unencodable:
            return unencodable

    def protocol_error(self, error: ProtocolError) -> ProtocolError:
        """Return a tool's protocol error without secrets; raises UNENCODABLE if it has no JSON."""
        redactor = self.now()
        message, data = cleaned_text(str(error.message), redactor), checked_value(error.data)
        clean = None if data is None else searched_and_cleaned(_encode(data), redactor)
        data = data if clean is None else _decode(clean)
        if message == error.message and data is error.data:
            return error
        return ProtocolError(error.code, message, data)

    @property
    def client_name(self) -> str:
        """Return the name that the client gives itself."""
        return self.call.client.client_name

    @property
    def capabilities(self) -> Capabilities:
        """Return the capabilities that the client declared."""
        return self.call.client.capabilities

    def suspend_while_waiting(self, limit: PausableLimit) -> None:
        """
        Suspend *limit* whenever this call waits for a person.

        A nested call that waits suspends the limits of its outer call too, which is its client.
        """
        self.limits = (*self.limits, limit)

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Send progress without secrets."""
        if not isinstance(message, str | None):
            raise TypeError("the message of a progress report is text")  # only text is searched
        progress, total = _number(progress), None if total is None else _number(total)
        reported = self.reported = self.reported or RedactedStream()
        if not self.admits_report(progress):
            reported.drop(message or "")
            return
        if self.has_unsent_report:
            reported.take_back()
        reported.begin()
        if message is not None and not reported.passes(message, self.now()):
            encoded = message.encode(errors="surrogatepass")
            message = await self._search(encoded, reported.text, message)
        await self.call.client.progress(progress, total, message)

    def admits_report(self, progress: float) -> bool:
        """Return whether the client takes a report of this progress."""
        return self.call.client.admits_report(progress)

    @property
    def has_unsent_report(self) -> bool:
        """Return whether a further report replaces the newest one."""
        return self.call.client.has_unsent_report

    def wants_log(self, level: LoggingLevel) -> bool:
        """Return whether the client asked for log messages of this level."""
        return self.call.client.wants_log(level)

    def admits_log(self, level: LoggingLevel, data: Any) -> bool:
        """Return whether the client gets a log message."""
        if self.call.client.admits_log(level, data):
            return True
        if type(data) is str and self.wants_log(LEVELS[-1]):
            self.logged = self.logged or RedactedStream()
            self.logged.drop(data)
        return False

    async def log(self, level: LoggingLevel, data: Any, logger: str | None) -> None:
        """Send a log message without secrets."""
        if not isinstance(logger, str | None):
            raise TypeError("the logger of a log message is text")  # other types are not searched
        logged = self.logged = self.logged or RedactedStream()
        if type(data) is not str or not logged.passes(data, self.now()):
            data = await self._log_data(data, logged)
        if logger is not None:
            logger = self.now().clean(logger)
        await self.call.client.log(level, data, logger)

    async def _log_data(self, data: Any, logged: RedactedStream) -> Any:
        """Return the data of a log message without secrets, or a note if it is too large."""
        # What has no valid JSON fails the tool here, before it is sent.
        data = checked_value(data, enc_hook=_type_name)
        encoded = _encode(data, enc_hook=_type_name)
        if len(encoded) <= MAX_LOG_BYTES:
            logged.begin()
            clean = await self._search(encoded, logged.document, encoded)
            if len(clean) <= MAX_LOG_BYTES:
                return Raw(clean)
            logged.take_back()
        elif type(data) is str:
            logged.drop(data)
        return f"A message of {len(encoded)} bytes was dropped: it is too large."

    @property
    def previous_state(self) -> bytes:
        """Return the state that the run before kept."""
        return self.call.client.previous_state

    @property
    def handed_over(self) -> bool:
        """Return whether another run continues the call."""
        return self.call.client.handed_over

    async def request(
        self, requests: Mapping[str, InputRequest], *, state: bytes = b""
    ) -> Mapping[str, Mapping[str, Any]]:
        """Ask the client, with requests without secrets; it never sees the state."""
        clean = {}
        for key, request in requests.items():
            # What has no valid JSON fails the tool here, before it is sent.
            sent = InputRequest(request.method, checked_value(request.params))
            clean[key] = await self._search(_encode(sent.params), request_without, sent)
        with self._suspended():
            return await self.call.client.request(clean, state=state)

    async def _search(self, text: bytes, clean: Callable[[T, Redactor], T], message: T) -> T:
        """Redact a message; *text* is the searched form, and a long one is searched in a thread."""
        redactor = self.now()
        if is_prompt(text, of_caller=redactor.of_caller):
            return clean(message, redactor)
        return await in_cpu_thread(self.call.caller, clean, message, redactor, bounded=False)

    async def wait_for_decision(self, waiting: AwaitedDecision) -> None:
        """Wait for a decision; the message of *waiting* was made without secrets."""
        with self._suspended():
            await self.call.client.wait_for_decision(waiting)

    @contextmanager
    def _suspended(self) -> Iterator[None]:
        with ExitStack() as stack:
            for limit in self.limits:
                stack.enter_context(limit.paused())
            yield

    async def pause(self, retry_after_s: float) -> None:
        """Close the connection; a client that can do so reconnects for the rest."""
        await self.call.client.pause(retry_after_s)

    async def detach(self, *, state: bytes = b"") -> None:
        """Answer the request with a task, in which the call continues; no one else sees *state*."""
        await self.call.client.detach(state=state)


RUNNING_CALLS: dict[tuple[asyncio.Task[Any] | None, RedactedCall], None] = {}
"""
The calls that run in this process, each with its task, in the order in which they began. Unlike
`CURRENT_CALL`, other threads can read it, and tasks that a tool starts do not inherit it.
"""


def running_call(loop: asyncio.AbstractEventLoop) -> Call | None:
    """Return the call that *loop* runs at this moment; any thread may ask."""
    task = asyncio.current_task(loop)
    if task is None:
        return None
    # Copied in one step, because the loop may go on meanwhile.
    calls = [redacted.call for of_task, redacted in [*RUNNING_CALLS] if of_task is task]
    return calls[-1] if calls else None  # the others are the outer calls of the last one


def written(call: Call, offer: Offer) -> list[tuple[str, str]]:
    """Return the secrets in the arguments of a call, each with its argument's name."""
    return [
        (next((step for step in reversed(path) if step is not None), "argument").upper(), value)
        for path in offer.secret_arguments
        for value in literals((path,), call.arguments)
    ]


def _type_name(value: Any) -> str:
    return f"<{type(value).__name__}>"


def remark(name: str, value: str) -> None:
    """Add a remark to the record of the call that this code runs for."""
    current = CURRENT_CALL.get()
    if isinstance(current, RedactedCall):
        current.remarks = {**(current.remarks or {}), name: value}


def has_tool_started() -> bool:
    """Return whether the current call has started its tool, or is nested in one that has."""
    current = CURRENT_CALL.get()
    return isinstance(current, RedactedCall) and (current.has_begun or current.call.depth > 0)


def peer_here() -> str:
    """Return the address of the current call's client; empty outside of calls."""
    current = CURRENT_CALL.get()
    return current.call.peer if isinstance(current, RedactedCall) else ""


def _number(number: float) -> float:
    """Return a number that is sent as one; raise TypeError for a text, which `float` would read."""
    return number if type(number) in NUMBERS else math.fsum((number,))
