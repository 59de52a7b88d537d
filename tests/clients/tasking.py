"""
The tasks extension for Python clients: what a host writes to have it, and no more.

The Python SDK 2.3 and FastMCP 4.1 know the frame of an extension; that of tasks is not in them.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, Literal

import anyio
from mcp import types
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim

Answer = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Answers what a task asks for: a method and its parameters to its result."""
DONE = {"completed", "failed", "cancelled"}


class Started(types.Result):
    """The result of a call that goes on as a task."""

    result_type: Literal["task"] = "task"
    task_id: str
    poll_interval_ms: int | None = None


class Task(types.Result):
    """What `tasks/get` shows."""

    status: str
    status_message: str | None = None
    # "inputRequests" itself is a word that the SDK keeps to itself in the results of calls alone.
    input_requests: dict[str, dict[str, Any]] | None = None
    result: dict[str, Any] | None = None


class About(types.RequestParams):
    task_id: str


class Answers(About):
    input_responses: dict[str, Any]


class GetTask(types.Request[About, Literal["tasks/get"]]):
    method: Literal["tasks/get"] = "tasks/get"
    name_param: ClassVar[str | None] = "taskId"


class UpdateTask(types.Request[Answers, Literal["tasks/update"]]):
    method: Literal["tasks/update"] = "tasks/update"
    name_param: ClassVar[str | None] = "taskId"


class CancelTask(types.Request[About, Literal["tasks/cancel"]]):
    method: Literal["tasks/cancel"] = "tasks/cancel"
    name_param: ClassVar[str | None] = "taskId"


class Tasks(ClientExtension):
    """Waits for a task as if it were the call, and answers what it asks for meanwhile."""

    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self, answer: Answer, *, patient: bool = True) -> None:
        self.answer, self.patient = answer, patient
        self.statuses: list[str] = []
        """Every status that was seen, in order."""

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=Started, resolve=self.resolve)]

    async def resolve(self, started: Started, context: ClaimContext) -> types.CallToolResult:
        about = About(task_id=started.task_id)
        if not self.patient:
            await context.session.send_request(CancelTask(params=about), types.EmptyResult)
        answered: set[str] = set()
        while True:
            task = await context.session.send_request(GetTask(params=about), Task)
            self.statuses.append(task.status)
            if task.status in DONE:
                break
            asked = {k: v for k, v in (task.input_requests or {}).items() if k not in answered}
            if asked:
                given = {
                    key: await self.answer(request["method"], request["params"])
                    for key, request in asked.items()
                }
                answered |= given.keys()
                update = Answers(task_id=started.task_id, input_responses=given)
                await context.session.send_request(UpdateTask(params=update), types.EmptyResult)
            # The server says how often it wants to be asked.
            await anyio.sleep((started.poll_interval_ms or 1000) / 1000)
        if task.result is not None:
            return types.CallToolResult.model_validate(task.result)
        said = types.TextContent(type="text", text=task.status_message or task.status)
        return types.CallToolResult(content=[said], is_error=True)
