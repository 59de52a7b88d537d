"""
Multi round-trip requests: a question ends the call, and the next call brings its answer.

Nothing is kept here between the two. What was answered earlier travels through the client in
`requestState`, sealed with the key ring that all replicas share, so that it can be neither read
nor changed there, and is good for one caller, one call and a quarter of an hour. A state that
comes back twice gives nothing that its answers would not give in a new call (M-08): what must
happen once is the business of whoever makes it happen.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from gatepost.mcp import vigil
from gatepost.mcp.interaction import Audience, log_level, progress_token
from gatepost.mcp.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, Refused
from gatepost.mcp.params import NO_META, Params
from gatepost.mcp.questions import digest
from gatepost.mcp.server import Server
from gatepost.mcp.stream import Stream
from gatepost.telemetry.trace import marked, shared
from gatepost.tools.asking import Malformed, Unfit, UrlElicitation, check_answer
from gatepost.tools.client import (
    PAGES,
    Capabilities,
    InputNeeded,
    InputRequest,
    MissingCapability,
    Waiting,
    lacking,
    pending,
    required_by,
)
from gatepost_authz.caller import TenantContext

PURPOSE = "request-state"
STATE_LASTS_S = 900
"""A person reads, thinks and types; not much longer, or an old yes would count."""
MOST_ROUNDS = 32
VISIT = "gatepost:visit-"
"""
How keys of pages begin where somebody else decides: no tool can ask by them (`asking.KEY`), and
each round has a fresh one.
"""
MOST_RESPONSES = 64
MOST_RESPONSE_BYTES = 1_048_576
# The key ring opens nothing longer (MOST_SEALED_CHARACTERS), as base64 and with its proof.
MOST_STATE_BYTES = 190_000


class Given(msgspec.Struct, frozen=True, array_like=True):
    """An answer as it came, and what tells its question; None: nobody knows what was asked."""

    question: str | None
    answer: Raw


class State(msgspec.Struct, frozen=True):
    """What a `requestState` holds."""

    round: int
    until: float
    asked: dict[str, str]
    """The open questions, by key."""
    given: dict[str, Given]
    visits: int = 0
    """How often a page was shown on which somebody else decides; these are no rounds."""


_encode = msgspec.json.encode
_read_state = msgspec.json.Decoder(State).decode
_read_responses = msgspec.json.Decoder(dict[str, Raw]).decode


class Rejected(InputNeeded):
    """What came is no answer at all: the request is refused, and nothing of the run counts."""

    def __init__(self, key: str, request: InputRequest, mistake: str) -> None:
        super().__init__({key: request})
        self.refusal = Refused(INVALID_PARAMS, f"The answer to {key} cannot be taken: {mistake}")


class Rounds(Audience):
    """
    The client of one modern request: hears of it, and answers in the next one.

    *asks* is whether the method may be answered with questions (M-01).
    """

    _round = 0
    _given: Mapping[str, Given] = {}
    _visits = 0
    _visited: Mapping[str, Raw | None] = {}
    """What tells the page that was shown last, and what came back."""
    _read: Capabilities | None = None

    def __init__(
        self, server: Server, caller: TenantContext, method: str, params: Params, *, asks: bool
    ) -> None:
        # Nearly every client declares something and asks for nothing: read when it is needed.
        self._server, self._caller = server, caller
        self._method, self._params = method, params
        self._asks = asks

    def hear(self, stream: Stream | None) -> None:
        """Tell what the request wants to be told; raises Refused for an unknown log level."""
        meta = NO_META if self._params.meta is UNSET else self._params.meta
        token, level = progress_token(meta), log_level(meta)
        if stream is not None:
            self.tell(stream, token, level)

    def remember(self) -> None:
        """Take in what came from earlier rounds; raises Refused for what cannot be taken."""
        params = self._params
        responses = {} if params.input_responses is UNSET else responses_of(params.input_responses)
        if params.request_state is UNSET:
            self._given = {key: Given(None, raw) for key, raw in responses.items()}
            return
        state = self._open(params.request_state)
        # Keys that nobody asked by are ignored (M-11).
        shown = {key for key in state.asked if key.startswith(VISIT)}
        asked = state.asked.keys() & responses.keys() - shown
        new = {key: Given(state.asked[key], responses[key]) for key in asked}
        self._round, self._given = state.round, {**new, **state.given}
        self._visits = state.visits
        self._visited = {state.asked[key]: responses.get(key) for key in shown}

    @property
    def capabilities(self) -> Capabilities:
        """What the client declared with this request, read when somebody asks."""
        if self._read is None:
            meta = NO_META if self._params.meta is UNSET else self._params.meta
            declared = {} if meta.capabilities is UNSET else meta.capabilities
            self._read = {name: _value(raw) for name, raw in declared.items()}
        return self._read

    async def request(
        self, requests: Mapping[str, InputRequest]
    ) -> Mapping[str, Mapping[str, Any]]:
        """
        The answers that came with the request; raises InputNeeded for what none came to.

        An answer counts for the question as it was asked; one that does not fit is asked for again.
        """
        required = required_by(requests)
        if missing := lacking(self.capabilities, required) if self._asks else required:
            raise MissingCapability(missing)
        answers = {key: self._answer(key, request) for key, request in requests.items()}
        found = {key: answer for key, answer in answers.items() if answer is not None}
        if len(found) < len(requests):
            raise InputNeeded({key: requests[key] for key in requests if key not in found})
        return found

    def _answer(self, key: str, request: InputRequest) -> Mapping[str, Any] | None:
        kept = {other: given for other, given in self._given.items() if other != key}
        given, self._given = self._given.get(key), kept
        question = digest(request)
        if given is None or given.question not in (None, question):
            return None
        try:
            answer = check_answer(request, msgspec.json.decode(given.answer))
        except Unfit:
            return None
        except (Malformed, msgspec.DecodeError) as mistake:
            raise Rejected(key, request, str(mistake)) from None
        # Only what was taken travels on.
        self._given = {**kept, key: Given(question, given.answer)}
        return answer

    async def stand_by(self, waiting: Waiting) -> None:
        """
        See Client; a client that opens pages is shown this one, and calls again.

        Whether its person went there, and what it says of that, changes nothing; only who declines
        wants no answer any more.
        """
        server = self._server
        allowed_s = server.runner.allowed_s(self._caller)
        page = self._page(waiting)
        if page is None:
            if not await self.hold(waiting, allowed_s, server.stopping):
                raise pending(waiting)
            return
        key = f"{VISIT}{self._visits + 1}"
        if _mark(page) not in self._visited:
            raise InputNeeded({key: page})
        if self._declined(key, page):
            raise pending(waiting)
        if not await self.hold(waiting, min(allowed_s, vigil.HOLD_S), server.stopping):
            if server.stopping.is_set():
                # The state of another round may be good at no other server.
                raise pending(waiting)
            raise InputNeeded({key: page})

    def _page(self, waiting: Waiting) -> InputRequest | None:
        """The page to show; None where the client does not open pages."""
        if not waiting.url or not self._asks or lacking(self.capabilities, PAGES):
            return None
        return UrlElicitation(waiting.message, waiting.url).request

    def _declined(self, key: str, page: InputRequest) -> bool:
        given = self._visited[_mark(page)]
        if given is None:
            return False
        try:
            answer = check_answer(page, msgspec.json.decode(given))
        except (Malformed, msgspec.DecodeError) as mistake:
            raise Rejected(key, page, str(mistake)) from None
        return bool(answer["action"] != "accept")

    def questions(self, needed: InputNeeded) -> bytes:
        """
        What a run ended with, as its request's result (M-02), without caching hints (C-04).

        Raises Refused where it may not be.
        """
        if isinstance(needed, Rejected):
            raise needed.refusal
        visit = any(key.startswith(VISIT) for key in needed.requests)
        if self._round >= MOST_ROUNDS and not visit:
            raise Refused(INTERNAL_ERROR, "The call asks more often than it may", status=200)
        shown = b'{"resultType":"input_required"'
        if needed.requests:
            shown += b',"inputRequests":' + _encode(_told(needed.requests))
        state = self._seal(needed.requests, visit=visit)
        return shown + b',"requestState":' + _encode(state) + self._server.tail + b"}"

    def _seal(self, requests: Mapping[str, InputRequest], *, visit: bool) -> str:
        tell = _mark if visit else digest
        state = State(
            self._round + (not visit),
            self._server.runner.clock() + STATE_LASTS_S,
            {key: tell(request) for key, request in requests.items()},
            {key: given for key, given in self._given.items() if given.question is not None},
            self._visits + visit,
        )
        payload = _encode(state)
        if len(payload) > MOST_STATE_BYTES:
            raise Refused(INVALID_PARAMS, "The answers are too large for another round")
        return self._server.keyring.seal(PURPOSE, payload, context=self._binding())

    def _open(self, sealed: str) -> State:
        payload = self._server.keyring.open(PURPOSE, sealed, context=self._binding())
        try:
            state = None if payload is None else _read_state(payload)
        except msgspec.ValidationError:
            state = None  # sealed by another version of ours
        if state is None or state.until <= self._server.runner.clock():
            # The same words for forged, foreign and old: none of these tells anything.
            raise Refused(INVALID_PARAMS, "requestState is not good for this call (any more)")
        return state

    def _binding(self) -> bytes:
        """What a state is good for: this caller asking exactly this (M-07)."""
        params = self._params
        arguments = b"{}" if params.arguments is UNSET else _canonical(params.arguments)
        bound = [
            *self._caller.principal_key,
            self._caller.client_id,
            self._method,
            None if params.name is UNSET else params.name,
            None if params.uri is UNSET else params.uri,
            hashlib.sha256(arguments).hexdigest(),
        ]
        return _encode(bound)


def _mark(page: InputRequest) -> str:
    """What tells a page from others: its message may count the minutes."""
    return str(page.params["url"])


def _told(requests: Mapping[str, InputRequest]) -> Mapping[str, InputRequest]:
    """The questions as they go out; what they are known by is what they ask."""
    if shared() is None:
        return requests
    return {
        key: msgspec.structs.replace(one, params=marked(one.params))
        for key, one in requests.items()
    }


def is_retry(params: Params) -> bool:
    """Whether a request goes on after questions: its result is nobody else's (C-04)."""
    return not (params.input_responses is UNSET and params.request_state is UNSET)


def responses_of(raw: Raw) -> dict[str, Raw]:
    """The answers of a request by their keys; raises Refused."""
    if len(raw) > MOST_RESPONSE_BYTES:
        message = f"inputResponses is larger than {MOST_RESPONSE_BYTES} bytes"
        raise Refused(INVALID_PARAMS, message)
    try:
        responses = _read_responses(raw)
    except msgspec.DecodeError:
        raise Refused(INVALID_PARAMS, "inputResponses must be an object") from None
    if len(responses) > MOST_RESPONSES:
        raise Refused(INVALID_PARAMS, f"inputResponses holds more than {MOST_RESPONSES} answers")
    return responses


def _canonical(raw: Raw) -> bytes:
    """JSON without its spelling: a client may write the same arguments in another order."""
    # Numbers stay as they were written: two that a float cannot tell apart are two calls.
    value = json.loads(bytes(raw), parse_float=_as_written, parse_int=_as_written)
    return _encode(value, order="deterministic")


def _as_written(number: str) -> Raw:
    return Raw(number)


def _value(raw: Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return None
