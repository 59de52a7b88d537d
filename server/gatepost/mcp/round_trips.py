"""
Serve multi round-trip requests: a request for input ends the call, and the next call has the
answer.

The server stores nothing between the two calls. Earlier answers travel through the client in
`requestState`. It is encrypted with the key ring that all replicas share, so the client can neither
read nor change it. It is valid for one caller, one call and a quarter of an hour. Replaying a state
has the same effect as a new call with the same answers (M-08). A tool whose effect must happen once
has to ensure that itself.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from gatepost.documents.json_shape import decoded
from gatepost.mcp import client
from gatepost.mcp.client import StreamClient, log_level, name_of, progress_token
from gatepost.mcp.event_stream import SseResponse
from gatepost.mcp.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, JsonRpcError
from gatepost.mcp.request import NO_META, Params
from gatepost.mcp.server import McpServer
from gatepost.mcp.tasks.task_record import digest
from gatepost.telemetry.trace import marked, shared
from gatepost.tools.context.client import (
    MAX_KEPT_BYTES,
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
from gatepost.tools.context.elicitation import (
    AnswerMismatch,
    MalformedAnswer,
    UrlElicitation,
    check_answer,
)
from gatepost_authz.caller import TenantContext

PURPOSE = "request-state"
STATE_LASTS_S = 900
"""Enough time to read, think and type, but short enough that an old consent expires."""
MAX_ROUNDS = 32
OPEN_PAGE = "gatepost:page-"
"""
The prefix of keys for approval pages. A tool cannot ask with such a key, and each round has a
new one.
"""
MAX_RESPONSES = 64
MAX_RESPONSE_BYTES = 1_048_576
# The key ring's limit (MAX_SEALED_CHARACTERS), less base64 and the authentication tag.
MAX_STATE_BYTES = 190_000


class InputResponse(msgspec.Struct, frozen=True, array_like=True):
    """A raw answer and the digest of its request; None if that request is unknown."""

    request_digest: str | None
    answer: Raw


class RequestState(
    msgspec.Struct, frozen=True, rename={"responses": "given", "tool_state": "kept"}
):
    """The content of a `requestState`."""

    round: int
    until: float
    requested: dict[str, str]
    """The digests of the open requests for input, by key."""
    responses: dict[str, InputResponse]
    pages_shown: int = 0
    """How often an approval page was shown; these do not count as rounds."""
    tool_state: bytes = b""
    """The state that the tool keeps for its next run."""


_encode = msgspec.json.encode
_read_state = msgspec.json.Decoder(RequestState).decode
_read_responses = msgspec.json.Decoder(dict[str, Raw]).decode


class InputRejected(InputNeeded):
    """An answer is malformed: the request is refused, and the run is discarded."""

    def __init__(self, key: str, request: InputRequest, invalid: str) -> None:
        super().__init__({key: request})
        self.refusal = JsonRpcError(INVALID_PARAMS, f"The answer to {key} is invalid: {invalid}")


class RoundTripClient(StreamClient):
    """
    The client of one modern request: it receives messages now, and answers in its next request.

    *may_ask* says whether the method may be answered with requests for input (M-01).
    """

    _round = 0
    _responses: Mapping[str, InputResponse] = {}
    _pages_shown = 0
    _visited: Mapping[str, Raw | None] = {}
    """The URL of the page that was shown last, and the answer to it."""
    _read: Capabilities | None = None
    _previous_state = b""

    def __init__(
        self,
        server: McpServer,
        caller: TenantContext,
        method: str,
        params: Params,
        *,
        may_ask: bool,
    ) -> None:
        # Nearly all clients declare capabilities, and few calls use them: decode them on demand.
        self._server, self._caller = server, caller
        self._method, self._params = method, params
        self._may_ask = may_ask

    def enable_messages(self, stream: SseResponse | None) -> None:
        """Enable the messages that the request asks for; raises JsonRpcError (LG-04)."""
        meta = NO_META if self._params.meta is UNSET else self._params.meta
        token, level = progress_token(meta), log_level(meta)
        if stream is not None:
            self.send_messages_to(stream, token, level)

    def remember(self) -> None:
        """Load the answers of this and earlier rounds; raises JsonRpcError if they are invalid."""
        params = self._params
        responses = {} if params.input_responses is UNSET else responses_of(params.input_responses)
        if params.request_state is UNSET:
            self._responses = {key: InputResponse(None, raw) for key, raw in responses.items()}
            return
        state = self._open(params.request_state)
        # Answers to keys that were not asked for are ignored (M-11).
        pages = {key for key in state.requested if key.startswith(OPEN_PAGE)}
        answered = state.requested.keys() & responses.keys() - pages
        received = {key: InputResponse(state.requested[key], responses[key]) for key in answered}
        self._round, self._responses = state.round, {**received, **state.responses}
        self._pages_shown, self._previous_state = state.pages_shown, state.tool_state
        self._visited = {state.requested[key]: responses.get(key) for key in pages}

    @property
    def client_name(self) -> str:
        """Return the client's name in this request."""
        return "" if self._params.meta is UNSET else name_of(self._params.meta.client_info)

    @property
    def capabilities(self) -> Capabilities:
        """Return the capabilities in this request, decoded at first use."""
        if self._read is None:
            meta = NO_META if self._params.meta is UNSET else self._params.meta
            declared = {} if meta.capabilities is UNSET else meta.capabilities
            self._read = {name: _value(raw) for name, raw in declared.items()}
        return self._read

    @property
    def previous_state(self) -> bytes:
        """Return the state of the run before, from the encrypted state of this request."""
        return self._previous_state

    async def request(
        self, requests: Mapping[str, InputRequest], *, state: bytes = b""
    ) -> Mapping[str, Mapping[str, Any]]:
        """
        Return the answers in the request; raises InputNeeded for those that are missing.

        An answer counts only for the same request for input. If it does not match the schema, the
        client is asked again.
        """
        required = required_by(requests)
        if missing := lacking(self.capabilities, required) if self._may_ask else required:
            raise MissingCapability(missing)
        answers = {key: self._answer(key, request) for key, request in requests.items()}
        accepted = {key: answer for key, answer in answers.items() if answer is not None}
        if len(accepted) < len(requests):
            missed = {key: requests[key] for key in requests if key not in accepted}
            raise InputNeeded(missed, _bounded(state))
        return accepted

    def _answer(self, key: str, request: InputRequest) -> Mapping[str, Any] | None:
        remaining = {
            other_key: response
            for other_key, response in self._responses.items()
            if other_key != key
        }
        response, self._responses = self._responses.get(key), remaining
        request_digest = digest(request)
        if response is None or response.request_digest not in (None, request_digest):
            return None
        try:
            answer = check_answer(request, decoded(response.answer))
        except AnswerMismatch:
            return None
        except (MalformedAnswer, msgspec.DecodeError, RecursionError) as invalid:
            raise InputRejected(key, request, str(invalid)) from None
        # Only accepted answers are put into the next state.
        self._responses = {**remaining, key: InputResponse(request_digest, response.answer)}
        return answer

    async def wait_for_decision(self, waiting: Waiting) -> None:
        """
        Wait for a decision; a client that opens pages is shown the page and calls again.

        The client's answer does not matter, unless it declines: then the call stops waiting.
        """
        server = self._server
        allowed_s = server.runner.allowed_s(self._caller)
        page = self._page(waiting)
        if page is None:
            if not await self.hold(waiting, allowed_s, server.stopping):
                raise pending(waiting)
            return
        key = f"{OPEN_PAGE}{self._pages_shown + 1}"
        if _mark(page) not in self._visited:
            raise InputNeeded({key: page})
        if self._declined(key, page):
            raise pending(waiting)
        if not await self.hold(waiting, min(allowed_s, client.HOLD_S), server.stopping):
            if server.stopping.is_set():
                # The state of another round might not be valid on any other server.
                raise pending(waiting)
            raise InputNeeded({key: page})

    def _page(self, waiting: Waiting) -> InputRequest | None:
        """Return the page to show; None if the client does not open pages."""
        if not waiting.url or not self._may_ask or lacking(self.capabilities, PAGES):
            return None
        return UrlElicitation(waiting.message, waiting.url).request

    def _declined(self, key: str, page: InputRequest) -> bool:
        response = self._visited[_mark(page)]
        if response is None:
            return False
        try:
            answer = check_answer(page, decoded(response))
        except (MalformedAnswer, msgspec.DecodeError, RecursionError) as invalid:
            raise InputRejected(key, page, str(invalid)) from None
        return bool(answer["action"] != "accept")

    def encode_input(self, needed: InputNeeded) -> bytes:
        """
        Encode requests for input as a result (M-02), without caching hints (C-04).

        Raises JsonRpcError after too many rounds.
        """
        if isinstance(needed, InputRejected):
            raise needed.refusal
        is_page = any(key.startswith(OPEN_PAGE) for key in needed.requests)
        if self._round >= MAX_ROUNDS and not is_page:
            raise JsonRpcError(INTERNAL_ERROR, "The call asked for input too often", status=200)
        encoded = b'{"resultType":"input_required"'
        if needed.requests:
            encoded += b',"inputRequests":' + _encode(_traced(needed.requests))
        # An approval page is shown between two runs of the tool, and the state is the tool's.
        tool_state = self._previous_state if is_page else needed.state
        state = self._seal(needed.requests, tool_state, is_page=is_page)
        return encoded + b',"requestState":' + _encode(state) + self._server.meta + b"}"

    def _seal(
        self, requests: Mapping[str, InputRequest], tool_state: bytes, *, is_page: bool
    ) -> str:
        tell = _mark if is_page else digest
        state = RequestState(
            self._round + (not is_page),
            self._server.runner.clock() + STATE_LASTS_S,
            {key: tell(request) for key, request in requests.items()},
            {
                key: response
                for key, response in self._responses.items()
                if response.request_digest is not None
            },
            self._pages_shown + is_page,
            tool_state,
        )
        payload = _encode(state)
        if len(payload) > MAX_STATE_BYTES:
            raise JsonRpcError(INVALID_PARAMS, "The answers are too large for another round")
        return self._server.keyring.seal(PURPOSE, payload, context=self._binding())

    def _open(self, sealed: str) -> RequestState:
        payload = self._server.keyring.open(PURPOSE, sealed, context=self._binding())
        try:
            state = None if payload is None else _read_state(payload)
        except msgspec.ValidationError:
            state = None  # encrypted by another version of Gatepost
        if state is None or state.until <= self._server.runner.clock():
            # The same message for a forged, a foreign and an expired state reveals nothing.
            raise JsonRpcError(INVALID_PARAMS, "requestState is invalid or expired for this call")
        return state

    def _binding(self) -> bytes:
        """Return the context that a state is bound to: this caller and this exact call (M-07)."""
        params = self._params
        arguments = b"{}" if params.arguments is UNSET else _canonical(params.arguments)
        bound = [
            *self._caller.identity_key,
            self._method,
            None if params.name is UNSET else params.name,
            None if params.uri is UNSET else params.uri,
            hashlib.sha256(arguments).hexdigest(),
        ]
        return _encode(bound)


def _bounded(state: bytes) -> bytes:
    if len(state) > MAX_KEPT_BYTES:
        raise ValueError(f"a tool keeps at most {MAX_KEPT_BYTES} bytes between two runs")
    return state


def _mark(page: InputRequest) -> str:
    """Return the identity of a page: its URL, because its message may change every minute."""
    return str(page.params["url"])


def _traced(requests: Mapping[str, InputRequest]) -> Mapping[str, InputRequest]:
    """Add the trace context to the requests for input; their digests do not contain it."""
    if shared() is None:
        return requests
    return {
        key: msgspec.structs.replace(request, params=marked(request.params))
        for key, request in requests.items()
    }


def is_retry(params: Params) -> bool:
    """Return whether a request continues after a request for input; never cache it then (C-04)."""
    return not (params.input_responses is UNSET and params.request_state is UNSET)


def responses_of(raw: Raw) -> dict[str, Raw]:
    """Return the answers of a request by key; raises JsonRpcError."""
    if len(raw) > MAX_RESPONSE_BYTES:
        message = f"inputResponses is larger than {MAX_RESPONSE_BYTES} bytes"
        raise JsonRpcError(INVALID_PARAMS, message)
    try:
        responses = _read_responses(raw)
    except msgspec.DecodeError:
        raise JsonRpcError(INVALID_PARAMS, "inputResponses must be an object") from None
    if len(responses) > MAX_RESPONSES:
        raise JsonRpcError(
            INVALID_PARAMS, f"inputResponses holds more than {MAX_RESPONSES} answers"
        )
    return responses


def _canonical(raw: Raw) -> bytes:
    """Normalize JSON, because a client may write the same arguments in another order."""
    # Numbers stay as written: two numbers that are equal only as floats are two calls.
    value = json.loads(bytes(raw), parse_float=_as_written, parse_int=_as_written)
    return _encode(value, order="deterministic")


def _as_written(number: str) -> Raw:
    return Raw(number)


def _value(raw: Raw) -> Any:
    try:
        return decoded(raw)
    except msgspec.DecodeError:
        return None
