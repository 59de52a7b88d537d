"""What a task's record contains: its call, the requests for input, and how it ended."""

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from itertools import count
from typing import Any, Literal

import msgspec
from msgspec import Raw

from gatepost.documents.json_shape import decoder_of
from gatepost.mcp.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, JsonRpcError
from gatepost.mcp.responses import REFUSED, call_result, refusal_of
from gatepost.mcp.revisions import MODERN
from gatepost.storage.tasks import TaskRecord
from gatepost.tools.calls.registry import Unknown
from gatepost.tools.calls.truncation import UNENCODABLE
from gatepost.tools.context.client import InputRequest, Unaccepted
from gatepost.tools.offers.offer import Call, Outcome, Tool
from gatepost_authz.caller import TenantContext

UNFORESEEN = "An unexpected error occurred; see the server's log."
TOOL_MISSING = "The tool is no longer available."
REVOKED = "The caller's access was revoked."
CARRIED_OUT = "The call was carried out, but its result was not kept."
OVER = "The task expired before it was finished."
CANCELLED = {"status": "cancelled", "status_message": "Cancelled by its client."}

_log = logging.getLogger("gatepost.tasks")
_encode = msgspec.json.encode
_members = msgspec.json.Decoder(dict[str, Raw]).decode
_replace = msgspec.structs.replace


class BeforeTask(msgspec.Struct):
    """What a call did before it became a task."""

    state: bytes = b""
    """The state with which another run continues the call; empty if it would start again."""
    unstarted: bool = False
    """Whether the call waits for a decision and its tool has not started."""
    answered: list[tuple[Mapping[str, InputRequest], Mapping[str, Mapping[str, Any]]]] = []
    """The requests for input and their answers."""


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

    @classmethod
    def of(cls, call: Call, tool: Tool, before: BeforeTask, *, peer: str) -> "StoredCall":
        """Return what is stored of a call that becomes a task; *peer* is its client's address."""
        return cls(
            caller=_replace(call.caller, claims=dict(call.caller.claims)),
            arguments=Raw(call.arguments),
            request_id=call.request_id,
            capabilities=dict(call.client.capabilities),
            scopes=tool.scopes,
            correlation=call.correlation,
            unstarted=before.unstarted,
            peer=peer,
            kept=before.state,
        )


# A caller's display claims are a read-only view of a mapping.
encode_call = msgspec.json.Encoder(enc_hook=dict).encode
decode_call = decoder_of(StoredCall)


def with_call(record: TaskRecord, **changes: object) -> TaskRecord:
    """Return the record with these members of its stored call."""
    call = _members(record.call)
    new = {name: Raw(_encode(value)) for name, value in changes.items()}
    return record if call | new == call else _replace(record, call=_encode(call | new))


def failed(code: int, message: str, data: Any = None) -> dict[str, Any]:
    """Return the members of a record whose call ended in a JSON-RPC error (K-10)."""
    error = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return {"status": "failed", "status_message": message, "error": _encode(error)}


def with_end(record: TaskRecord, end: dict[str, Any]) -> TaskRecord:
    """Return the ended record, without its arguments and the requests for input."""
    # Arguments and answers may be large or confidential, so they are kept only as long as a
    # second run might need them.
    return _replace(with_call(record, arguments={}, kept=b""), requests=None, answers=None, **end)


StopReason = Literal["cancelled", "revoked", "over", "lost", "handed over"]
"""
Why work is stopped: the client cancelled it, the caller's access was revoked, its time is over,
another server took it over, or this server stops.
"""


def end_of(work: "asyncio.Task[Outcome]", reason: StopReason | None) -> dict[str, Any]:
    """Return the members of a record whose work is over; it may have been stopped for *reason*."""
    if work.cancelled() and reason != "cancelled":
        return failed(INTERNAL_ERROR, REVOKED if reason == "revoked" else OVER)
    if work.cancelled():
        return CANCELLED
    raised = work.exception()
    if isinstance(raised, Unaccepted):
        # The request was cancelled while it became a task.
        return CANCELLED
    if isinstance(raised, Unknown):
        return failed(INVALID_PARAMS, TOOL_MISSING)
    if raised is None:
        try:
            return {"status": "completed", "result": call_result(work.result(), MODERN, b"")}
        except (JsonRpcError, *UNENCODABLE) as unusable:
            raised = unusable
    if isinstance(raised, REFUSED):
        refusal = refusal_of(raised, modern=True)
        return failed(refusal.code, refusal.message, refusal.data)
    _log.error("task_error", exc_info=raised)
    return failed(INTERNAL_ERROR, UNFORESEEN)


class InputAnswer(msgspec.Struct, frozen=True):
    """The digest of a key's request and its answer; None if the request was withdrawn."""

    request_digest: str
    given: Mapping[str, Any] | None = None


_decode_requests = msgspec.json.Decoder(dict[str, InputRequest]).decode
_decode_answers = msgspec.json.Decoder(dict[str, InputAnswer]).decode


def waiting(record: TaskRecord) -> dict[str, InputRequest]:
    """Return the requests that wait for an answer, by key."""
    return {} if record.requests is None else _decode_requests(record.requests)


def _spent(record: TaskRecord) -> dict[str, InputAnswer]:
    """Return the keys that are used up."""
    return {} if record.answers is None else _decode_answers(record.answers)


def pose(
    record: TaskRecord, requests: Mapping[str, InputRequest], run_keys: set[str]
) -> tuple[TaskRecord, dict[str, str]]:
    """
    Return the record with these requests for input, and their keys by the tool's own names.

    A key belongs to one request for the life of its task (K-11). A run that starts again after a
    crash asks the same again and finds earlier answers under the same keys. If a request has
    changed, its old answer does not count. *run_keys* are the keys that this run has come to.
    """
    open_requests, used = waiting(record), _spent(record)
    keys: dict[str, str] = {}
    for name, request in requests.items():
        for number in count(1):
            key = keys[name] = name if number == 1 else f"{name}-{number}"
            if key in run_keys or key in open_requests:
                continue
            run_keys.add(key)
            before = used.get(key)
            if before is None:
                open_requests[key] = request
            elif before.given is None or before.request_digest != digest(request):
                continue
            break
    return _with_inputs(record, open_requests, used), keys


def answer(record: TaskRecord, responses: Mapping[str, Mapping[str, Any] | None]) -> TaskRecord:
    """
    Return the record with these answers; ignore answers to requests that are not open (K-12).

    None withdraws a request, whose key stays used.
    """
    open_requests, used = waiting(record), _spent(record)
    for key in [key for key in open_requests if key in responses]:
        used[key] = InputAnswer(digest(open_requests.pop(key)), responses[key])
    return _with_inputs(record, open_requests, used)


def answers_to(record: TaskRecord, keys: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the answers by the tool's own names; None if one is missing."""
    used = _spent(record)
    answers = {name: used[key].given for name, key in keys.items() if key in used}
    return None if len(answers) < len(keys) or None in answers.values() else answers


def digest(request: InputRequest) -> str:
    """
    Return the digest that identifies a request for input.

    Only an elicitation has one, because a user decides on it: consent to "Delete 3 files?" is not
    consent to "Delete 300 files?". A sampling request may contain the time of day.
    """
    if request.method != "elicitation/create":
        return ""
    return hashlib.sha256(_encode(request, order="deterministic")).hexdigest()[:32]


def _with_inputs(
    record: TaskRecord, open_requests: dict[str, InputRequest], used: dict[str, InputAnswer]
) -> TaskRecord:
    requests = _encode(open_requests) if open_requests else None
    answers = _encode(used) if used else None
    if requests == record.requests and answers == record.answers:
        return record
    status: Any = "input_required" if open_requests else "working"
    return _replace(record, requests=requests, answers=answers, status=status)
