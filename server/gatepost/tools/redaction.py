"""What calls say without their tenant's secrets: answers, failures, what is told meanwhile."""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, Raw

from gatepost.redaction import document, place
from gatepost.redaction.automaton import Redactor
from gatepost.redaction.stream import Said
from gatepost.tools.api import Call, Offer, Outcome, Tool, ToolFailure
from gatepost.tools.client import (
    Capabilities,
    Clock,
    InputRequest,
    LogLevel,
    ProtocolError,
    Waiting,
    held,
)
from gatepost.tools.fit import UNENCODABLE
from gatepost.tools.secret import REFERENCE, literals
from gatepost.tools.utterance import (
    LONG_BYTES,
    failure_without,
    is_harmless,
    names_in,
    question_without,
)

MANY = 100
"""So many secrets are prepared for in a thread; each takes a fifth of a millisecond."""
MOST_WRITTEN, MOST_WRITTEN_BYTES = 50, 65_536
"""
Secrets that one call may bring along, and how much of them: each is prepared for, and a caller that
writes thousands of lines as its password wants the server to be busy.
"""
MOST_MADE = 1_000
"""Redactors that are kept; one that is needed again is made again."""

_encode = msgspec.json.encode
_decode = msgspec.json.decode
_replace = msgspec.structs.replace


PLAIN = Redactor({})
"""Finds nothing but tokens, by their forms."""


class Known(Protocol):
    """What must not be in any answer to a tenant."""

    @property
    def version(self) -> int:
        """Another one for other values."""

    @property
    def values(self) -> Mapping[str, str]:
        """Each secret by the name that is shown in its place."""


class Secrets(Protocol):
    """What this process knows of tenants' secrets; one is known before any tool has it."""

    @property
    def version(self) -> int:
        """Another one once something else is known, of whomever."""

    def known(self, tenant: str | None) -> Known:
        """What is known now; None is no tenant."""

    def loaded(self, tenant: str) -> Known | None:
        """The same where that is recent; None: it must be loaded."""

    async def load(self, tenant: str) -> Known:
        """Find out; StoreUnavailable."""


class Nothing:
    """What there is to know where nobody keeps secrets."""

    version = 0
    values: Mapping[str, str] = {}

    def known(self, tenant: str | None) -> Known:
        """Nothing."""
        return self

    def loaded(self, tenant: str) -> Known | None:
        """Nothing."""
        return self

    async def load(self, tenant: str) -> Known:
        """Nothing."""
        return self


class Redaction:
    """
    Redactors of tenants, each made once for a state of the tenant's secrets.

    Tenants without any share one, which knows what the server itself keeps secret and the forms of
    tokens.
    """

    def __init__(self, secrets: Secrets | None = None) -> None:
        self.secrets = secrets or Nothing()
        self._made: dict[int, Redactor] = {}
        self._last: dict[str | None, int] = {}
        self.found = 0
        """Outcomes of calls in which a secret was replaced."""
        place.join(self)

    def redactors(self) -> Iterable[Redactor]:
        """Those of all tenants that are known here, and of none."""
        return [self.of(None), *self._made.values()]

    def at_hand(self, tenant: str) -> Redactor | None:
        """The redactor with which a call of the tenant may begin; None: `ready` must come first."""
        known = self.secrets.loaded(tenant)
        if known is None:
            return None
        return self._made.get(known.version) if known.values else PLAIN

    async def ready(self, tenant: str) -> None:
        """Make the redactor for its secrets as they are now; StoreUnavailable."""
        while self.at_hand(tenant) is None:
            known = self.secrets.loaded(tenant) or await self.secrets.load(tenant)
            if known.version in self._made or not known.values:
                return
            if len(known.values) < MANY:
                fast = known.version == self.secrets.known(None).version
                self._keep(tenant, known, Redactor(known.values, fast=fast))
            else:
                self._keep(tenant, known, await asyncio.to_thread(Redactor, known.values))

    def of(self, tenant: str | None) -> Redactor:
        """The same, at once: a secret that came while a call ran is known before it is told."""
        known = self.secrets.known(tenant)
        if not known.values:
            return PLAIN
        redactor = self._made.get(known.version)
        if redactor is None:
            redactor = Redactor(known.values, fast=tenant is None)
            self._keep(tenant, known, redactor)
        return redactor

    def clean(self, tenant: str | None, text: str) -> str:
        """A text of that tenant's that is about to be logged."""
        return self.of(tenant).clean(text)

    def _keep(self, tenant: str | None, known: Known, redactor: Redactor) -> None:
        before = self._last.pop(tenant, None)
        if before is not None and before != self.secrets.known(None).version:
            self._made.pop(before, None)
        self._made[known.version], self._last[tenant] = redactor, known.version
        if len(self._made) > MOST_MADE:
            del self._made[next(iter(self._made))]
        if len(self._last) > MOST_MADE:
            del self._last[next(iter(self._last))]


class Guard(msgspec.Struct):
    """
    One call: its client, who hears no secret, and what comes of it, without any.

    What its tool says in several pieces is looked at together.
    """

    redaction: Redaction
    call: Call
    offer: Offer
    redactor: Redactor = PLAIN
    """What is kept from being said at the `version`; `now` asks again when that is another."""
    version: int = -1
    checked: bool = False
    """Whether its arguments were found to be right."""
    over: bool = False
    """Whether the call has ended; what it left running is about nobody in particular."""
    said: dict[str, Said] | None = None
    written: list[tuple[str, str]] | None = None
    """What this call's caller wrote itself; found out once."""
    clock: Clock | None = None  # of a call within another; its client has the outer one's
    seat: Clock | None = None
    """What the call takes up while it works; held, as its clock is, while a person decides."""
    remarks: dict[str, str] | None = None
    """What stages say of the call for its record."""

    def now(self) -> Redactor:
        """The redactor for this moment: a secret may have come while the call ran."""
        version = self.redaction.secrets.version
        if version != self.version:
            redactor = self.redaction.of(self.call.caller.tenant_id)
            if self.offer.secret_arguments:
                # What the caller wrote itself.
                redactor = redactor.with_values(self._written())
            self.redactor, self.version = redactor, version
        return self.redactor

    def arguments(self) -> Any:
        """The call's arguments as the offer takes them; ToolFailure for what it does not take."""
        if self.offer.secret_arguments:
            self._written()  # refuses too many, before anything is looked at
        arguments = self.offer.check(self.call.arguments)
        self.checked = True
        return arguments

    def _written(self) -> list[tuple[str, str]]:
        if self.written is None:
            self.written = written(self.call, self.offer)
            size = sum(len(value.encode(errors="surrogatepass")) for _, value in self.written)
            if size > MOST_WRITTEN_BYTES or len(self.written) > MOST_WRITTEN:
                # Nothing of the call is looked at, so that there is nothing to be told.
                self.written, self.checked = [], True
                raise ToolFailure(
                    "validation",
                    f"The secrets in the arguments are too long: at most {MOST_WRITTEN_BYTES} "
                    f"bytes are taken, and {MOST_WRITTEN} of them. Name a kept one: "
                    f"`{REFERENCE}NAME`.",
                )
        return self.written

    async def told(self, outcome: Outcome) -> Outcome:
        """The outcome without secrets; others are served while a long one is searched."""
        return self.promptly(outcome) or await self.apart(outcome)

    async def apart(self, outcome: Outcome) -> Outcome:
        """The same for one that `promptly` has found too long."""
        return await asyncio.to_thread(self.outcome, outcome)

    def promptly(self, outcome: Outcome) -> Outcome | None:
        """The same at once; None for one that is too long for that."""
        if outcome.failure is not None and len(str(outcome.failure.message)) > LONG_BYTES:
            return None
        if is_harmless(outcome, self.now()):
            return outcome
        content = _encode(outcome.content)
        structured = b"" if outcome.structured is UNSET else _encode(outcome.structured)
        return None if len(content) + len(structured) > LONG_BYTES else self.outcome(outcome)

    def outcome(self, outcome: Outcome) -> Outcome:
        """The same for one of any size; raises as `fit` where it cannot be told at all."""
        redactor, before = self.now(), outcome
        if outcome.failure is not None:
            failure = failure_without(outcome.failure, redactor)
            if failure is not outcome.failure:
                outcome = _replace(outcome, failure=failure)
        content = document.cleaned(_encode(outcome.content), redactor, blocks=True)
        if content is not None:
            outcome = _replace(outcome, content=tuple(_decode(content)))
        if outcome.structured is not UNSET:
            encoded = _encode(outcome.structured)
            structured = document.cleaned(encoded, redactor)
            if structured is not None and isinstance(self.offer, Tool) and self.offer.output_schema:
                # A secret may be a word of the answer's own form, which would be another one then.
                names = frozenset(names_in(self.offer.output_schema))
                structured = document.cleaned(encoded, redactor, names=names)
            if structured is not None:
                outcome = _replace(outcome, structured=Raw(structured))
        self.redaction.found += outcome is not before
        return outcome

    def _refusal(self, refused: ToolFailure) -> ToolFailure:
        """
        What is wrong with the arguments, said of them as they are without secrets.

        Messages quote values, and only the beginning of long ones: half a secret is not found.
        """
        clean = document.cleaned(self.call.arguments, self.now())
        if clean is None:
            return refused
        try:
            self.offer.check(clean)
        except ToolFailure as again:
            return again
        return ToolFailure("validation", "The arguments are not what the schema allows.")

    async def error(self, error: BaseException) -> BaseException:
        """What the call raised, as it may be told; others are served while that is found out."""
        if isinstance(error, ToolFailure) and not self.checked:
            if len(self.call.arguments) > LONG_BYTES:
                return await asyncio.to_thread(self._refusal, error)
            return self._refusal(error)
        return self.protocol_error(error) if isinstance(error, ProtocolError) else error

    def protocol_error(self, error: ProtocolError) -> ProtocolError:
        """An error in its author's words, without secrets."""
        redactor = self.now()
        message, data = redactor.clean(str(error.message)), error.data
        with suppress(*UNENCODABLE):  # it has no JSON, which fails the call when it is answered
            clean = None if data is None else document.cleaned(_encode(data), redactor)
            data = data if clean is None else _decode(clean)
        if message == error.message and data is error.data:
            return error
        return ProtocolError(error.code, message, data)

    @property
    def capabilities(self) -> Capabilities:
        """See `Client`."""
        return self.call.client.capabilities

    def timed(self, clock: Clock) -> None:
        """See `Client`; what a call within a call waits for stops both their clocks."""
        if self.call.depth:
            self.clock = clock
        else:
            self.call.client.timed(clock)

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """See `Client`."""
        if isinstance(message, str):
            message = self._said("progress").text(message, self.now())
        await self.call.client.progress(progress, total, message)

    async def log(self, level: LogLevel, data: Any, logger: str | None) -> None:
        """See `Client`."""
        with suppress(*UNENCODABLE):  # it has no JSON, which whoever sends it finds out
            encoded = _encode(data, enc_hook=_shown)
            clean = self._said("log").document(encoded, self.now())
            data = data if clean is encoded else Raw(clean)
        if isinstance(logger, str):
            logger = self.now().clean(logger)
        await self.call.client.log(level, data, logger)

    async def request(
        self, requests: Mapping[str, InputRequest]
    ) -> Mapping[str, Mapping[str, Any]]:
        """See `Client`."""
        clean = {key: question_without(request, self.now()) for key, request in requests.items()}
        with held(self.clock, self.seat):
            return await self.call.client.request(clean)

    async def stand_by(self, waiting: Waiting) -> None:
        """See `Client`; what waits was made without secrets."""
        with held(self.clock, self.seat):
            await self.call.client.stand_by(waiting)

    async def pause(self, retry_after_s: float) -> None:
        """See `Client`."""
        await self.call.client.pause(retry_after_s)

    async def detach(self) -> None:
        """See `Client`."""
        await self.call.client.detach()

    def _said(self, kind: str) -> Said:
        if self.said is None:
            self.said = {}
        return self.said.setdefault(kind, Said())


def written(call: Call, offer: Offer) -> list[tuple[str, str]]:
    """The secrets that a caller wrote into its arguments, each with its argument's name."""
    return [
        (next((step for step in reversed(path) if step is not None), "argument").upper(), value)
        for path in offer.secret_arguments
        for value in literals((path,), call.arguments)
    ]


def _shown(value: Any) -> str:
    return f"<{type(value).__name__}>"
