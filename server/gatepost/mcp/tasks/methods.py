"""The tasks extension: serve the `tasks/…` methods."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from gatepost.mcp.jsonrpc import INVALID_PARAMS, MISSING_CAPABILITY, JsonRpcError
from gatepost.mcp.request import TASKS, Params, declares_tasks
from gatepost.mcp.round_trips import responses_of
from gatepost.mcp.server import McpRequest, McpServer
from gatepost.mcp.tasks.task_record import answer, waiting
from gatepost.mcp.tasks.task_runner import no_room
from gatepost.storage.quota import QuotaExceeded
from gatepost.storage.tasks import TERMINAL, TaskRecord
from gatepost.tools.client import Capabilities, InputRequest
from gatepost.tools.elicitation import Misanswered, check_answer
from gatepost.tools.json_shape import decoded

_encode = msgspec.json.encode
_replace = msgspec.structs.replace

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
    record = await _task(server, ask)
    shown = {"resultType": "complete", **server.tasks.task_store.shown(record)}
    return _encode(shown)[:-1] + server.tail + b"}"


async def update_task(server: McpServer, ask: McpRequest) -> bytes:
    """
    Answer `tasks/update`: store the answers to open requests and ignore all others (K-12).

    If one answer does not match its request, the whole update is refused.
    """
    found = await _task(server, ask)
    given = _given(ask.params)

    def take(record: TaskRecord) -> TaskRecord:
        taken = {}
        for key, request in waiting(record).items():
            if key in given:
                taken[key] = _checked(key, request, given[key])
        return answer(record, taken)

    if found.status not in TERMINAL:
        task_store, tenant = server.tasks.task_store, ask.caller.tenant_id
        try:
            async with task_store.quota.room(tenant, found.owner, sum(map(len, given.values()))):
                await task_store.change(tenant, found.id, take)
        except QuotaExceeded as full:
            raise no_room(full) from None
    return _done(server)


async def cancel_task(server: McpServer, ask: McpRequest) -> bytes:
    """Answer `tasks/cancel`: mark the task as cancelled; it may still end otherwise (K-13)."""
    found = await _task(server, ask)
    if found.status not in TERMINAL:
        await server.tasks.task_store.change(ask.caller.tenant_id, found.id, _cancelled)
    return _done(server)


def _cancelled(record: TaskRecord) -> TaskRecord:
    return record if record.cancelled else _replace(record, cancelled=True)


def _done(server: McpServer) -> bytes:
    return b'{"resultType":"complete"' + server.tail + b"}"


async def _task(server: McpServer, ask: McpRequest) -> TaskRecord:
    """Return the caller's task that is named; raises JsonRpcError or InsufficientScope."""
    if not declares_tasks(ask.params):
        raise UNDECLARED
    if ask.params.task_id is UNSET:
        raise JsonRpcError(INVALID_PARAMS, "params.taskId is required")
    record = await server.tasks.task_store.find(ask.caller, ask.params.task_id)
    if record is None:
        raise UNKNOWN
    return record


def _checked(key: str, request: InputRequest, given: Raw) -> Mapping[str, Any]:
    try:
        return check_answer(request, decoded(given))
    except Misanswered as invalid:
        # The server chose the key, so it may be shown.
        raise JsonRpcError(INVALID_PARAMS, f"params.inputResponses.{key}: {invalid}") from None


def _given(params: Params) -> dict[str, Raw]:
    if params.input_responses is UNSET:
        raise JsonRpcError(INVALID_PARAMS, "params.inputResponses is required")
    return responses_of(params.input_responses)
