"""The tasks extension: answer calls with a task, and serve the `tasks/…` methods."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from gatepost.mcp.jsonrpc import INVALID_PARAMS, MISSING_CAPABILITY, JsonRpcError
from gatepost.mcp.request import TASKS, Params
from gatepost.mcp.revisions import MODERN
from gatepost.mcp.round_trips import responses_of
from gatepost.mcp.server import McpRequest, McpServer
from gatepost.mcp.tasks import store
from gatepost.mcp.tasks.client import TaskClient
from gatepost.mcp.tasks.runner import no_room, perform
from gatepost.storage.quota import QuotaExceeded
from gatepost.storage.tasks import TERMINAL, TaskRecord
from gatepost.tools.api import Call, Failure, Outcome, Tool
from gatepost.tools.client import Capabilities, InputRequest
from gatepost.tools.elicitation import Misanswered, check_answer
from gatepost.tools.interruption import HUNG_UP
from gatepost.tools.json_shape import decoded
from gatepost.tools.registry import UnknownTool
from gatepost.tools.runner import EXPIRED

_encode = msgspec.json.encode
_replace = msgspec.structs.replace
_extensions = msgspec.json.Decoder(dict[str, Raw]).decode

REQUIRED: Capabilities = {"extensions": {TASKS: {}}}
UNKNOWN = JsonRpcError(INVALID_PARAMS, "Unknown task")
"""Also for a task of another caller, and for one that has expired."""
UNDECLARED = JsonRpcError(
    MISSING_CAPABILITY,
    f"The client did not declare the extension {TASKS}",
    data={"requiredCapabilities": REQUIRED},
)
ONLY_TASKS = "The tool takes long, so only clients that support tasks (MCP 2026-07-28) can call it."
PATIENCE_S = 1.0
"""How long a client waits for a call that has not reached its tool."""


async def run(server: McpServer, ask: McpRequest, call: Call) -> Outcome | TaskRecord:
    """
    Run a call that may become a task; return its outcome, or the task.

    Raises the exceptions of `Runner.run`, and JsonRpcError or StoreUnavailable if the task cannot
    be stored.
    """
    try:
        tool = server.registry.find(call.caller, call.name)
    except UnknownTool:
        return await server.runner.run(call)  # the runner counts and records the call
    if not (ask.revision == MODERN and declared(ask.params)):
        return await _without_task(server, ask, call, tool)
    task_client = TaskClient(ask.client)
    detachable = _replace(call, client=task_client, lasting=True)
    work = asyncio.create_task(perform(server.runner, detachable))
    work.add_done_callback(lambda _: task_client.turn.set())
    accepted, why = False, ()
    try:
        if not await _turned(task_client, server.runner.allowed_s(call.caller), tool):
            return EXPIRED
        if work.done():
            return work.result()
        record = await server.tasks.accept(call, tool, task_client, work)
        accepted = True
        return record
    except asyncio.CancelledError as cancelled:
        why = cancelled.args
        raise
    finally:
        if not accepted:
            # A call that has not reached its tool ends as if it had not been made, so that its
            # idempotency key is not used up. A tool that detaches may have had effects before.
            if tool.detaches or not task_client.refuse():
                work.cancel(*why)
            if tool.detaches and HUNG_UP in why:
                # A call that runs on for its idempotency key must not wait for a task.
                task_client.go_on()
            await _over(work)


async def _without_task(server: McpServer, ask: McpRequest, call: Call, tool: Tool) -> Outcome:
    """Run the call of a client that does not support tasks."""
    if tool.task_support != "required":
        return await server.runner.run(call)
    await server.count(call.caller)
    if ask.revision == MODERN:
        raise UNDECLARED
    # Before 2026-07-28 there is no error code for it, and the agent can tell its user.
    return Outcome(failure=Failure("denied", ONLY_TASKS))


async def _turned(task_client: TaskClient, allowed_s: float, tool: Tool) -> bool:
    """
    Wait until the call is over or should become a task; False if the caller's time is over.

    A call that does not reach its tool soon, for instance because of an earlier call with the
    same idempotency key, becomes a task. A tool without task support becomes one only for an
    approval.
    """
    waits = tool.detaches or tool.task_support == "forbidden"
    patience_s = allowed_s if waits else min(allowed_s, PATIENCE_S)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience_s):
            await task_client.turn.wait()
        return True
    return patience_s < allowed_s


async def _over(work: asyncio.Task[Outcome]) -> None:
    """Wait for the end of cancelled work and discard its outcome."""
    if not work.done():
        await asyncio.wait({work})
    if not work.cancelled():
        work.exception()


def created(server: McpServer, record: TaskRecord) -> bytes:
    """Encode the result of a call that has become a task (K-05)."""
    shown = {"resultType": "task", **server.tasks.task_store.handle(record)}
    return _encode(shown)[:-1] + server.tail + b"}"


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
        for key, request in store.waiting(record).items():
            if key in given:
                taken[key] = _checked(key, request, given[key])
        return store.answer(record, taken)

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
    if not declared(ask.params):
        raise UNDECLARED
    if ask.params.task_id is UNSET:
        raise JsonRpcError(INVALID_PARAMS, "params.taskId is required")
    record = await server.tasks.find(ask.caller, ask.params.task_id)
    if record is None:
        raise UNKNOWN
    return record


def _checked(key: str, request: InputRequest, given: Raw) -> Mapping[str, Any]:
    try:
        return check_answer(request, decoded(given))
    except Misanswered as mistake:
        # The server chose the key, so it may be shown.
        raise JsonRpcError(INVALID_PARAMS, f"params.inputResponses.{key}: {mistake}") from None


def _given(params: Params) -> dict[str, Raw]:
    if params.input_responses is UNSET:
        raise JsonRpcError(INVALID_PARAMS, "params.inputResponses is required")
    return responses_of(params.input_responses)


def declared(params: Params) -> bool:
    """Return whether this request declares the extension (K-02, X-02)."""
    capabilities = UNSET if params.meta is UNSET else params.meta.capabilities
    if capabilities is UNSET or "extensions" not in capabilities:
        return False
    try:
        settings = _extensions(capabilities["extensions"]).get(TASKS)
    except msgspec.DecodeError:
        return False
    return settings is not None and bytes(settings)[:1] == b"{"
