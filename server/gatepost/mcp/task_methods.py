"""What a caller sees of its tasks: the `tasks/…` methods and notifications."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from gatepost.documents.json_shape import decoded
from gatepost.mcp.jsonrpc import INVALID_PARAMS, MISSING_CAPABILITY, JsonRpcError
from gatepost.mcp.request import TASKS, Params, declares_tasks
from gatepost.mcp.round_trips import responses_of
from gatepost.mcp.server import McpRequest, McpServer
from gatepost.mcp.tasks.store import TaskStore
from gatepost.mcp.tasks.task_record import answer, decode_call, waiting
from gatepost.storage.tasks import TERMINAL, TaskRecord
from gatepost.tools.context.client import Capabilities, InputRequest
from gatepost.tools.context.elicitation import InvalidAnswer, check_answer
from gatepost_authz.caller import TenantContext
from gatepost_authz.errors import InsufficientScope

_encode = msgspec.json.encode
_replace = msgspec.structs.replace

TASK_ID_CHARACTERS = 64
REQUIRED: Capabilities = {"extensions": {TASKS: {}}}
UNKNOWN = JsonRpcError(INVALID_PARAMS, "Unknown task")
"""Also the answer for a task of another caller, and for one that has expired."""
UNDECLARED = JsonRpcError(
    MISSING_CAPABILITY,
    f"The client did not declare the extension {TASKS}",
    data={"requiredCapabilities": REQUIRED},
)


async def get_task(server: McpServer, ask: McpRequest) -> bytes:
    """Answer `tasks/get`."""
    task = _detailed(server.tasks.task_store, await _task(server, ask))
    return _result(server, {"resultType": "complete", **task})


async def update_task(server: McpServer, ask: McpRequest) -> bytes:
    """
    Answer `tasks/update`: store the answers to open requests and ignore all others (K-12).

    If one answer does not match its request, the whole update is refused.
    """
    record = await _task(server, ask)
    responses = _responses_in(ask.params)

    def take(record: TaskRecord) -> TaskRecord:
        open_ones = waiting(record).items()
        return answer(
            record,
            {k: _checked(k, request, responses[k]) for k, request in open_ones if k in responses},
        )

    if record.status not in TERMINAL:
        size = sum(map(len, responses.values()))
        await server.tasks.task_store.change(
            ask.caller.tenant_id, record.id, take, adds=size, last_read=record
        )
    return _result(server, {"resultType": "complete"})


async def cancel_task(server: McpServer, ask: McpRequest) -> bytes:
    """Answer `tasks/cancel`: mark the task as cancelled; it may still end otherwise (K-13)."""
    record = await _task(server, ask)
    if record.status not in TERMINAL:
        await server.tasks.task_store.change(
            ask.caller.tenant_id, record.id, _cancelled, last_read=record
        )
    return _result(server, {"resultType": "complete"})


def _cancelled(record: TaskRecord) -> TaskRecord:
    return record if record.cancelled else _replace(record, cancelled=True)


def _result(server: McpServer, members: dict[str, Any]) -> bytes:
    return _encode(members)[:-1] + server.meta + b"}"


async def _task(server: McpServer, ask: McpRequest) -> TaskRecord:
    """Return the caller's task that is named; raises JsonRpcError or InsufficientScope."""
    if not declares_tasks(ask.params):
        raise UNDECLARED
    if ask.params.task_id is UNSET:
        raise JsonRpcError(INVALID_PARAMS, "params.taskId is required")
    record = await _find(server.tasks.task_store, ask.caller, ask.params.task_id)
    if record is None:
        raise UNKNOWN
    return record


async def _find(task_store: TaskStore, caller: TenantContext, task_id: str) -> TaskRecord | None:
    """
    Return this caller's task; None if it is unknown, expired or another caller's (K-17).

    Raises InsufficientScope, which names the missing scopes, if the caller no longer holds
    those that the tool requires.
    """
    if len(task_id) > TASK_ID_CHARACTERS:
        return None
    record = await task_store.get(caller.tenant_id, task_id)
    if record is None or record.owner != caller.principal_digest:
        return None
    stored = decode_call(record.call)
    if stored.caller.identity_key != caller.identity_key:
        return None
    caller.require(stored.scopes)
    return record


def _checked(key: str, request: InputRequest, raw: Raw) -> Mapping[str, Any]:
    try:
        return check_answer(request, decoded(raw))
    except InvalidAnswer as invalid:
        # The server chose the key, so it may be shown.
        raise JsonRpcError(INVALID_PARAMS, f"params.inputResponses.{key}: {invalid}") from None


def _responses_in(params: Params) -> dict[str, Raw]:
    if params.input_responses is UNSET:
        raise JsonRpcError(INVALID_PARAMS, "params.inputResponses is required")
    return responses_of(params.input_responses)


async def may_follow(
    task_store: TaskStore, caller: TenantContext, task_ids: Sequence[str]
) -> list[str]:
    """Return the ids of tasks that belong to this caller and that its scopes allow."""
    ids = dict.fromkeys(task_ids)
    return [
        task_id for task_id in ids if await notification(task_store, caller, task_id) is not None
    ]


async def notification(task_store: TaskStore, caller: TenantContext, task_id: str) -> bytes | None:
    """Return the JSON members of `notifications/tasks`; None for another caller's task."""
    try:
        record = await _find(task_store, caller, task_id)
    except InsufficientScope:
        return None
    return None if record is None else _encode(_detailed(task_store, record))[1:-1]


def created(server: McpServer, record: TaskRecord) -> bytes:
    """Encode the result of a call that has become a task (K-05)."""
    return _result(server, {"resultType": "task", **_handle(server.tasks.task_store, record)})


def _detailed(task_store: TaskStore, record: TaskRecord) -> dict[str, Any]:
    """Return the task as `tasks/get` and `notifications/tasks` show it (K-09)."""
    members = _handle(task_store, record)
    if record.status == "input_required" and record.requests is not None:
        members["inputRequests"] = Raw(record.requests)
    if record.status == "completed" and record.result is not None:
        members["result"] = Raw(record.result)
    if record.status == "failed" and record.error is not None:
        members["error"] = Raw(record.error)
    return members


def _handle(task_store: TaskStore, record: TaskRecord) -> dict[str, Any]:
    """Return the fields that every task has in every state (K-06)."""
    members: dict[str, Any] = {"taskId": record.id, "status": record.status}
    if record.status_message is not None:
        members["statusMessage"] = record.status_message
    return members | {
        "createdAt": _iso(record.created_at),
        "lastUpdatedAt": _iso(record.updated_at),
        "ttlMs": round((record.expires_at - record.created_at) * 1000),
        "pollIntervalMs": max(1, round(task_store.limits.poll_interval_s * 1000)),
    }


def _iso(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
