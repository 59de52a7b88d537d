"""What calls say without their tenant's secrets: answers, failures, what is told meanwhile."""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, Raw

from gatepost.redaction import document, place
from gatepost.redaction.automaton import Redactor
from gatepost.redaction.encoding import meant_by
from gatepost.redaction.stream import Said
from gatepost.tools.api import Call, Failure, Offer, Outcome
from gatepost.tools.client import (
    NOBODY,
    Capabilities,
    Client,
    Clock,
    InputRequest,
    LogLevel,
    ProtocolError,
)
from gatepost.tools.fit import UNENCODABLE
from gatepost.tools.secret import literals

MANY = 100
"""So many secrets are prepared for in a thread; each takes a fifth of a millisecond."""
MOST_TENANTS = 1_000
"""Tenants whose redactors are kept; one that is met again is prepared for again."""

_encode = msgspec.json.encode
_decode = msgspec.json.decode
_replace = msgspec.structs.replace


class Known(Protocol):
    """The secrets of tenants, by name, as far as this process knows them."""

    def current(self, tenant: str) -> Mapping[str, str] | None:
        """
        Those of a tenant: the same object until one of them changes; None: not loaded yet.

        A secret has to be among them before any tool gets it.
        """

    async def load(self, tenant: str) -> Mapping[str, str]:
        """Load those of a tenant, so that they are current; StoreUnavailable."""


class NoSecrets:
    """Where tenants keep none."""

    def current(self, tenant: str) -> Mapping[str, str] | None:
        """Nothing."""
        return NONE

    async def load(self, tenant: str) -> Mapping[str, str]:
        """Nothing."""
        return NONE


NONE: Mapping[str, str] = {}


class Redaction:
    """
    Redactors of tenants, each made once for a state of the tenant's secrets.

    Whoever has none shares one that only knows the forms of tokens.
    """

    def __init__(self, known: Known | None = None) -> None:
        self.known = known or NoSecrets()
        self._made: dict[str, tuple[Mapping[str, str], Redactor]] = {}
        self._plain = Redactor(NONE)
        place.join(self)

    def redactors(self) -> Iterable[Redactor]:
        """Those of all tenants that are known here."""
        return [redactor for _, redactor in self._made.values()]

    def at_hand(self, tenant: str) -> Redactor | None:
        """The redactor for the tenant's secrets as they are now; None: `ready` has to make it."""
        secrets = self.known.current(tenant)
        if not secrets:
            return None if secrets is None else self._plain
        made = self._made.get(tenant)
        return made[1] if made is not None and made[0] is secrets else None

    async def ready(self, tenant: str) -> None:
        """Make it; StoreUnavailable where its secrets cannot be loaded."""
        while self.at_hand(tenant) is None:
            secrets = self.known.current(tenant)
            if secrets is None:
                await self.known.load(tenant)
            elif len(secrets) < MANY:
                self._keep(tenant, secrets, Redactor(secrets))
            else:
                self._keep(tenant, secrets, await asyncio.to_thread(Redactor, secrets))

    def of(self, tenant: str) -> Redactor:
        """The same, at once: a secret that came while a call ran is known before it is told."""
        redactor = self.at_hand(tenant)
        if redactor is None:
            secrets = self.known.current(tenant)
            if secrets is None:
                # Loaded when the call began, and let go of since: what was known then.
                made = self._made.get(tenant)
                return self._plain if made is None else made[1]
            redactor = Redactor(secrets)
            self._keep(tenant, secrets, redactor)
        return redactor

    def guard(self, call: Call, offer: Offer) -> "Guard":
        """What one call says, guarded."""
        return Guard(self, call, offer, call.client)

    def _keep(self, tenant: str, secrets: Mapping[str, str], redactor: Redactor) -> None:
        self._made.pop(tenant, None)
        self._made[tenant] = secrets, redactor
        if len(self._made) > MOST_TENANTS:
            del self._made[next(iter(self._made))]


class Guard(msgspec.Struct, weakref=True):
    """
    One call: its client, who hears no secret, and what comes of it, without any.

    What its tool says in several pieces is looked at together.
    """

    redaction: Redaction
    call: Call
    offer: Offer
    client: Client = NOBODY
    said: dict[str, Said] = {}
    own: tuple[Redactor, Redactor] | None = None
    """The tenant's redactor, and the same with what this call's caller wrote itself."""

    def now(self) -> Redactor:
        """The redactor for this moment."""
        redactor = self.redaction.of(self.call.caller.tenant_id)
        if not self.offer.secret_arguments:
            return redactor
        if self.own is None or self.own[0] is not redactor:
            self.own = redactor, redactor.with_values(written(self.call, self.offer))
        return self.own[1]

    def outcome(self, outcome: Outcome) -> Outcome:
        """The outcome without secrets; as `fit` where it cannot be told at all."""
        redactor = self.now()
        if outcome.failure is not None:
            return _replace(outcome, failure=_failure(outcome.failure, redactor))
        if redactor.plain and _is_harmless(outcome, redactor):
            return outcome
        content = document.cleaned(_encode(outcome.content), redactor, blocks=True)
        if content is not None:
            outcome = _replace(outcome, content=tuple(_decode(content)))
        if outcome.structured is not UNSET:
            structured = document.cleaned(_encode(outcome.structured), redactor)
            if structured is not None:
                outcome = _replace(outcome, structured=Raw(structured))
        return outcome

    def error(self, error: BaseException) -> BaseException:
        """What the call raised, as it may be told."""
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
        return self.client.capabilities

    def timed(self, clock: Clock) -> None:
        """See `Client`."""
        self.client.timed(clock)

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """See `Client`."""
        if isinstance(message, str):
            message = self._said("progress").text(message, self.now())
        await self.client.progress(progress, total, message)

    async def log(self, level: LogLevel, data: Any, logger: str | None) -> None:
        """See `Client`."""
        with suppress(*UNENCODABLE):  # it has no JSON, which whoever sends it finds out
            encoded = _encode(data, enc_hook=_shown)
            clean = self._said("log").document(encoded, self.now())
            data = data if clean is encoded else Raw(clean)
        if isinstance(logger, str):
            logger = self.now().clean(logger)
        await self.client.log(level, data, logger)

    async def request(
        self, requests: Mapping[str, InputRequest]
    ) -> Mapping[str, Mapping[str, Any]]:
        """See `Client`."""
        redactor = self.now()
        clean = {key: _question(request, redactor) for key, request in requests.items()}
        return await self.client.request(clean)

    async def pause(self, retry_after_s: float) -> None:
        """See `Client`."""
        await self.client.pause(retry_after_s)

    async def detach(self) -> None:
        """See `Client`."""
        await self.client.detach()

    def _said(self, kind: str) -> Said:
        return self.said.setdefault(kind, Said())


def written(call: Call, offer: Offer) -> list[tuple[str, str]]:
    """The secrets that a caller wrote into its arguments, each with its argument's name."""
    return [
        (next((step for step in reversed(path) if step is not None), "argument").upper(), meant)
        for path in offer.secret_arguments
        for value in literals((path,), call.arguments)
        for meant in meant_by(value)
    ]


def _is_harmless(outcome: Outcome, redactor: Redactor) -> bool:
    """Decide the usual case, one text and perhaps the same as JSON, without encoding it again."""
    if len(outcome.content) != 1:
        return False
    block = outcome.content[0]
    text = block.get("text")
    if len(block) != 2 or not isinstance(text, str):
        return False
    plain = text.encode(errors="surrogatepass")
    if isinstance(outcome.structured, Raw):
        raw = bytes(outcome.structured)
        if raw != plain and redactor.spans(raw):
            return False
    elif outcome.structured is not UNSET:
        return False
    return not redactor.spans(plain)


def _failure(failure: Failure, redactor: Redactor) -> Failure:
    message = redactor.clean(str(failure.message))
    field = None if failure.field is None else redactor.clean(str(failure.field))
    if message == failure.message and field == failure.field:
        return failure
    return _replace(failure, message=message, field=field)


def _question(request: InputRequest, redactor: Redactor) -> InputRequest:
    try:
        params = document.cleaned(_encode(request.params), redactor)
    except UNENCODABLE:
        return request  # it has no JSON, which whoever sends it finds out
    return request if params is None else InputRequest(request.method, _decode(params))


def _shown(value: Any) -> str:
    return f"<{type(value).__name__}>"
