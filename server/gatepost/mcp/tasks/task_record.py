"""What a task's record contains: its call, the requests for input, and how it ended."""

import hashlib
import secrets
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any

import msgspec
from msgspec import Raw

from gatepost.storage.tasks import TaskRecord
from gatepost.tools.client import InputRequest
from gatepost.tools.json_shape import decoder_of
from gatepost_authz.caller import TenantContext

CANCELLED = {"status": "cancelled", "status_message": "Cancelled by its client."}

_encode = msgspec.json.encode
_members = msgspec.json.Decoder(dict[str, Raw]).decode
_replace = msgspec.structs.replace


class StoredCall(msgspec.Struct, frozen=True):
    """
    The data that is needed to run a task's call again.

    It contains no token. The caller was checked when the task was accepted, and its scopes at that
    time apply. A later revocation stops the caller's tasks.
    """

    caller: TenantContext
    arguments: Raw
    request_id: str
    capabilities: dict[str, Any]
    scopes: frozenset[str]
    """The scopes that the tool requires; reading the task requires them too."""
    attempts: int = 1
    unstarted: bool = False
    """Whether the call waits for a decision and its tool has not started."""
    correlation: str | None = None
    peer: str = ""
    """The client's address; empty if audit records omit it."""
    kept: bytes = b""
    """The state with which another run continues the call; empty if it would start again."""


# A caller's display claims are a read-only view of a mapping.
encode_call = msgspec.json.Encoder(enc_hook=dict).encode
decode_call = decoder_of(StoredCall)


def with_unstarted(record: TaskRecord, unstarted: bool) -> TaskRecord:
    """Return the record with a flag for whether nothing of its call has started."""
    call, flag = _members(record.call), Raw(_encode(unstarted))
    if call.get("unstarted", Raw(b"false")) == flag:
        return record
    return _replace(record, call=_encode(call | {"unstarted": flag}))


def with_state(record: TaskRecord, state: bytes) -> TaskRecord:
    """Return the record with the state with which another run continues its call."""
    call, kept = _members(record.call), Raw(_encode(state))
    if call.get("kept") == kept:
        return record
    return _replace(record, call=_encode(call | {"kept": kept}))


def failed(code: int, message: str, data: Any = None) -> dict[str, Any]:
    """Return the members of a record whose call ended in a JSON-RPC error (K-10)."""
    error = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return {"status": "failed", "status_message": message, "error": _encode(error)}


def given_up(record: TaskRecord) -> TaskRecord:
    """Return the record without a lease, so that another server takes it over at once."""
    return _replace(record, runner="", leased_until=0.0)


def new_run_id() -> str:
    """Return a new id for one run of a task; knowing it gives no rights."""
    return secrets.token_hex(8)


def with_end(record: TaskRecord, end: dict[str, Any]) -> TaskRecord:
    """Return the ended record, without its arguments and the requests for input."""
    # Arguments and answers may be large or confidential, so they are kept only as long as a
    # second run might need them.
    call = _members(record.call) | {"arguments": Raw(b"{}"), "kept": Raw(b'""')}
    return _replace(record, requests=None, answers=None, call=_encode(call), **end)


class InputAnswer(msgspec.Struct, frozen=True):
    """The digest of a key's request and its answer; None if the request was withdrawn."""

    request_digest: str
    given: dict[str, Any] | None = None


_decode_requests = msgspec.json.Decoder(dict[str, InputRequest]).decode
_answers = msgspec.json.Decoder(dict[str, InputAnswer]).decode


def waiting(record: TaskRecord) -> dict[str, InputRequest]:
    """Return the requests that wait for an answer, by key."""
    return {} if record.requests is None else _decode_requests(record.requests)


def spent(record: TaskRecord) -> dict[str, InputAnswer]:
    """Return the keys that are used up."""
    return {} if record.answers is None else _answers(record.answers)


class PendingInputs(msgspec.Struct, frozen=True):
    """The keys of requests, by the tool's own names, and the record with the new requests."""

    keys: Mapping[str, str]
    numbers: Mapping[str, int]
    record: TaskRecord


class InputKeys:
    """
    Assigns a key to each request for input of one run.

    A key belongs to one request for the life of its task (K-11). A run that starts again after a
    crash asks the same again and finds earlier answers under the same keys. If a request has
    changed, its old answer does not count.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._mine: set[str] = set()

    def pose(self, record: TaskRecord, requests: Mapping[str, InputRequest]) -> PendingInputs:
        """Choose keys without changing any state, because the record may be read again."""
        open_ones, used = waiting(record), spent(record)
        keys: dict[str, str] = {}
        numbers = dict(self._numbers)
        for name, request in requests.items():
            for number in count(numbers.get(name, 0) + 1):
                key = name if number == 1 else f"{name}-{number}"
                if key in self._mine or key in open_ones:
                    continue
                before = used.get(key)
                if before is None:
                    open_ones[key] = request
                elif before.given is None or before.request_digest != digest(request):
                    continue
                break
            keys[name], numbers[name] = key, number
        return PendingInputs(keys, numbers, _kept(record, open_ones, used))

    def add_answered(
        self,
        record: TaskRecord,
        requests: Mapping[str, InputRequest],
        answers: Mapping[str, Mapping[str, Any]],
    ) -> TaskRecord:
        """Return the record with the requests and answers from before it was a task."""
        posed = self.pose(record, requests)
        self.keep(posed)
        return answer(posed.record, {key: answers[name] for name, key in posed.keys.items()})

    def keep(self, posed: PendingInputs) -> None:
        """Mark these keys as used by this run, after the record is stored."""
        self._numbers.update(posed.numbers)
        self._mine.update(posed.keys.values())


def answer(record: TaskRecord, responses: Mapping[str, Mapping[str, Any]]) -> TaskRecord:
    """Return the record with these answers; ignore answers to requests that are not open (K-12)."""
    open_ones, used = waiting(record), spent(record)
    for key in [key for key in open_ones if key in responses]:
        used[key] = InputAnswer(digest(open_ones.pop(key)), dict(responses[key]))
    return _kept(record, open_ones, used)


def withdraw(record: TaskRecord, keys: Iterable[str]) -> TaskRecord:
    """Return the record without these requests; their keys stay used."""
    open_ones, used = waiting(record), spent(record)
    for key in keys:
        if key in open_ones:
            used[key] = InputAnswer(digest(open_ones.pop(key)))
    return _kept(record, open_ones, used)


def answers_to(record: TaskRecord, keys: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the answers by the tool's own names; None if one is missing."""
    used = spent(record)
    found: dict[str, Any] = {}
    for name, key in keys.items():
        given = used[key].given if key in used else None
        if given is None:
            return None
        found[name] = given
    return found


def digest(request: InputRequest) -> str:
    """
    Return the digest that identifies a request for input.

    Only an elicitation has one, because a user decides on it: consent to "Delete 3 files?" is not
    consent to "Delete 300 files?". A sampling request may contain the time of day.
    """
    if request.method != "elicitation/create":
        return ""
    return hashlib.sha256(_encode(request, order="deterministic")).hexdigest()[:32]


def _kept(
    record: TaskRecord, open_ones: dict[str, InputRequest], used: dict[str, InputAnswer]
) -> TaskRecord:
    requests = _encode(open_ones) if open_ones else None
    answers = _encode(used) if used else None
    if requests == record.requests and answers == record.answers:
        return record
    status: Any = "input_required" if open_ones else "working"
    return _replace(record, requests=requests, answers=answers, status=status)
