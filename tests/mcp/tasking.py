"""A client of the tasks extension, in this process: calls, looks, answers, cancels, waits."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from gatepost.mcp.change_notifications import ChangeNotification
from gatepost.storage.tasks import TERMINAL
from tests.support.endpoint import META, EndpointClient, Response

TASKS = META + "tasks"
CAPABILITIES = {"elicitation": {}, "sampling": {}, "extensions": {TASKS: {}}}
DECLARED = {META + "clientCapabilities": CAPABILITIES}
WITHIN_S = 20.0


class Tasker(EndpointClient):
    """As `EndpointClient`, declaring the extension with every request unless told otherwise."""

    meta: Mapping[str, Any] = DECLARED

    async def start(self, tool: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """The result of a call that must become a task."""
        response = await self.call_with(tool, arguments)
        assert response.json["result"]["resultType"] == "task"
        return response.json["result"]

    async def call_with(
        self, tool: str, arguments: Mapping[str, Any] | None = None, **params: Any
    ) -> Response:
        """A call with whatever else its parameters hold."""
        asked = {"name": tool, "arguments": arguments or {}, **params}
        return await self.ask("tools/call", asked, meta=self.meta)

    async def about(self, method: str, task_id: str, **params: Any) -> Response:
        """A request about one task."""
        asked = {"taskId": task_id, **params}
        return await self.ask(f"tasks/{method}", asked, meta=self.meta, mcp_name=task_id)

    async def get(self, task_id: str) -> Any:
        """What `tasks/get` shows."""
        return (await self.about("get", task_id)).json["result"]

    async def answer(self, task_id: str, **responses: Any) -> Response:
        """`tasks/update` with these answers."""
        return await self.about("update", task_id, inputResponses=responses)

    async def until(self, task_id: str, *statuses: str) -> Any:
        """What `tasks/get` shows once the task is in one of these states; default: at its end."""
        return await self.when(task_id, lambda task: task["status"] in (statuses or TERMINAL))

    async def when(self, task_id: str, condition: Callable[[Any], object]) -> Any:
        """What `tasks/get` shows once *condition* holds of it."""
        moved = asyncio.Event()

        def hear(change: ChangeNotification) -> None:
            moved.set()

        interest = await self.feed.follow(self.caller.tenant_id, hear)
        try:
            async with asyncio.timeout(WITHIN_S):
                while not condition(shown := await self.get(task_id)):
                    await moved.wait()
                    moved.clear()
        finally:
            interest.end()
        return shown
