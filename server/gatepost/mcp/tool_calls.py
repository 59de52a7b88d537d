"""Answer `tools/call`: run the call and encode its outcome, or the task that it becomes."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import msgspec

from gatepost.execution.interruption import StopCause
from gatepost.mcp.jsonrpc import INVALID_PARAMS, JsonRpcError
from gatepost.mcp.request import arguments_in, declares_tasks, name_in
from gatepost.mcp.responses import MethodResult, UncommittedResult, call_result, unrecorded
from gatepost.mcp.revisions import MODERN
from gatepost.mcp.server import McpRequest, McpServer
from gatepost.mcp.task_methods import UNDECLARED, created
from gatepost.mcp.tasks.task_record import BeforeTask
from gatepost.mcp.tasks.task_runner import perform
from gatepost.storage.commit import NO_COMMIT
from gatepost.storage.tasks import TaskRecord
from gatepost.tools.calls.redacted_call import has_tool_started
from gatepost.tools.calls.registry import UnknownTool
from gatepost.tools.calls.runner import EXPIRED, UNRECORDED_EFFECT
from gatepost.tools.context.client import (
    AwaitedDecision,
    Client,
    InputRequest,
    LoggingLevel,
    MissingCapability,
    TaskNotAccepted,
)
from gatepost.tools.offers.offer import Call, Failure, Outcome, Tool

ONLY_TASKS = "The tool takes long, so only clients that support tasks (MCP 2026-07-28) can call it."
UNSTARTED_S = 1.0
"""How long a client waits for a call that has not reached its tool."""

_replace = msgspec.structs.replace


async def call_tool(server: McpServer, ask: McpRequest) -> MethodResult:
    """Answer `tools/call`; the endpoint answers an AuthError from the runner."""
    params = ask.params
    try:
        name, arguments = name_in(params), arguments_in(params)
    except JsonRpcError as refusal:
        raise await server.counted(ask.caller, refusal) from None
    if server.registry.source is not None:
        name = await server.registry.called_name(ask.caller, name)
    call = Call(
        caller=ask.caller,
        name=name,
        arguments=arguments,
        request_id=ask.request_id,
        client=ask.client,
        idempotency_key=ask.idempotency_key,
        correlation=ask.correlation,
        peer=ask.peer,
    )
    commit = NO_COMMIT
    try:
        if call.name in server.lengthy or (
            server.registry.source is not None and await _is_tenants_lengthy(server, call)
        ):
            result = await run_detachable(server, ask, call)
            if isinstance(result, TaskRecord):
                return created(server, result)
            outcome = result
        else:
            outcome, commit = await server.runner.run_uncommitted(call)
    except UnknownTool as unknown:
        raise unknown_tool(unknown.name) from None
    except MissingCapability as missing:
        if ask.revision == MODERN:
            raise
        # Before 2026-07-28 there is no error code for it, and the agent can tell its user.
        outcome = Outcome(failure=Failure("denied", f"This tool {missing}."))
    if outcome is UNRECORDED_EFFECT:
        raise unrecorded(ask.request_id)
    body = call_result(outcome, ask.revision, server.meta)
    return body if commit.durable else UncommittedResult(body, commit)


async def _is_tenants_lengthy(server: McpServer, call: Call) -> bool:
    """Return whether it is a call of a tenant's own tool, which may become a task."""
    await server.registry.prepare(call.caller)
    return server.is_lengthy(call.caller, call.name)


class DetachableClient:
    """
    The client of a call that may become a task: that of its request, until the call detaches.

    From then on it is the task, and the request's stream and connection are released.
    """

    def __init__(self, client: Client) -> None:
        self.client_name = client.client_name
        self.capabilities = client.capabilities
        self.before = BeforeTask()
        self.detaching = asyncio.Event()
        """Set when the call wants to become a task or is over."""
        self._client = client
        self._is_task = self._refused = False
        self._decided = asyncio.Event()
        """Set when it is decided whether the call becomes a task."""

    def accept(self, running_task: Client) -> None:
        """Continue as *running_task*, which is durable."""
        self._client, self._is_task = running_task, True
        self._decided.set()

    def refuse(self) -> bool:
        """
        End the call with TaskNotAccepted when it waits to become a task.

        Return whether it waits already; False also if it is a task.
        """
        if self._is_task:
            return False
        self._refused = True
        self._decided.set()
        return self.detaching.is_set()

    def go_on(self) -> None:
        """Let a call that waits to become a task run to its end."""
        self._decided.set()

    async def detach(self, *, state: bytes = b"") -> None:
        """Ask to become a task; raise TaskNotAccepted if it is refused."""
        if not self._is_task:
            self.before.state = state
            self.detaching.set()
            await self._decided.wait()
            if self._refused:
                raise TaskNotAccepted
        await self._client.detach(state=state)

    async def request(
        self, requests: Mapping[str, InputRequest], *, state: bytes = b""
    ) -> Mapping[str, Mapping[str, Any]]:
        """Ask the client of the request or of the task."""
        answers = await self._client.request(requests, state=state)
        if not self._is_task:
            self.before.answered.append((requests, answers))
        return answers

    async def wait_for_decision(self, waiting: AwaitedDecision) -> None:
        """Turn the call into a task and wait for a decision."""
        if not self._is_task:
            self.before.unstarted = not has_tool_started()
            await self.detach()
        await self._client.wait_for_decision(waiting)

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Send progress to the client, or set the task's status message."""
        await self._client.progress(progress, total, message)

    def admits_report(self, progress: float) -> bool:
        """Return whether the client takes a report of this progress."""
        return self._client.admits_report(progress)

    @property
    def has_unsent_report(self) -> bool:
        """Return whether a further report replaces the newest one at the request's client."""
        return self._client.has_unsent_report

    def wants_log(self, level: LoggingLevel) -> bool:
        """Return whether the request's client asked for this level, if there still is one."""
        return self._client.wants_log(level)

    def admits_log(self, level: LoggingLevel, data: Any) -> bool:
        """Return whether the client, if there still is one, gets a log message."""
        return self._client.admits_log(level, data)

    async def log(self, level: LoggingLevel, data: Any, logger: str | None) -> None:
        """Send a log message to the request's client, if there still is one."""
        await self._client.log(level, data, logger)

    async def pause(self, retry_after_s: float) -> None:
        """Close the request's connection, if there still is one."""
        await self._client.pause(retry_after_s)

    @property
    def previous_state(self) -> bytes:
        """Return the state that the run before kept."""
        return self.before.state or self._client.previous_state

    @property
    def handed_over(self) -> bool:
        """Return whether another run of the task continues the call."""
        return self._client.handed_over


async def run_detachable(server: McpServer, ask: McpRequest, call: Call) -> Outcome | TaskRecord:
    """
    Run a call that may become a task; return its outcome, or the task.

    Raises the exceptions of `Runner.run`, and JsonRpcError or StoreUnavailable if the task cannot
    be stored.
    """
    await server.registry.prepare(call.caller)
    try:
        tool = server.registry.find(call.caller, call.name)
    except UnknownTool:
        return await server.runner.run(call)  # the runner counts and records the call
    if not (ask.revision == MODERN and declares_tasks(ask.params)):
        return await _without_task(server, ask, call, tool)
    client = DetachableClient(ask.client)
    detachable = _replace(call, client=client, lasting=True)
    work = asyncio.create_task(perform(server.runner, detachable))
    work.add_done_callback(lambda _: client.detaching.set())
    accepted, reason = False, ()
    try:
        if not await _turned(client, server.runner.allowed_s(call.caller), tool):
            return EXPIRED
        if work.done():
            return work.result()
        record = await server.tasks.accept(call, tool, work, client.before, client.accept)
        accepted = True
        return record
    except asyncio.CancelledError as cancelled:
        reason = cancelled.args
        raise
    finally:
        if not accepted:
            # A call that has not reached its tool ends as if it had not been made, so that its
            # idempotency key is not used up. A tool that detaches may have had effects before.
            if tool.detaches or not client.refuse():
                work.cancel(*reason)
            if tool.detaches and StopCause.DISCONNECTED in reason:
                # A call that runs on for its idempotency key must not wait for a task.
                client.go_on()
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


async def _turned(client: DetachableClient, allowed_s: float, tool: Tool) -> bool:
    """
    Wait until the call is over or should become a task; False if the caller's time is over.

    A call that does not reach its tool soon, for instance because of an earlier call with the
    same idempotency key, becomes a task. A tool without task support becomes one only for an
    approval.
    """
    waits = tool.detaches or tool.task_support == "forbidden"
    timeout_s = allowed_s if waits else min(allowed_s, UNSTARTED_S)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await client.detaching.wait()
        return True
    return timeout_s < allowed_s


async def _over(work: asyncio.Task[Outcome]) -> None:
    """Wait for the end of cancelled work and discard its outcome."""
    if not work.done():
        await asyncio.wait({work})
    if not work.cancelled():
        work.exception()


def unknown_tool(name: str) -> JsonRpcError:
    """Return the refusal of a tool; it is the same if the caller cannot reach the tool."""
    return JsonRpcError(INVALID_PARAMS, f"Unknown tool: {name[:64]}")
