"""A Python client's side of what tools ask: a person, a model and the folders it works in."""

from typing import Any

import anyio
from mcp import types
from pydantic import FileUrl

from tests.clients.tasking import Tasks

FORM = {"username": "ann", "email": "ann@example.com"}


class Desk:
    """Answers whatever is asked, and remembers what was."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        """The messages of every elicitation, and the address where one had it."""
        self.logged: list[tuple[str, Any]] = []
        """Level and data of every log message."""
        self.heard: list[Any] = []
        """Every notification."""
        self.steps: list[float] = []
        """Every progress."""
        self._moved = anyio.Event()

    async def filled_in(
        self, context: object, params: types.ElicitRequestParams
    ) -> types.ElicitResult:
        if isinstance(params, types.ElicitRequestURLParams):
            self.asked.append(params.url)
            return types.ElicitResult(action="accept")
        self.asked.append(params.message)
        content = {name: self.value(name) for name in params.requested_schema["properties"]}
        return types.ElicitResult(action="accept", content=content)

    @staticmethod
    def value(name: str) -> Any:
        """What goes into a field of that name."""
        return {**FORM, "confirm": True, "ok": True}.get(name, name.title())

    async def sampled(
        self, context: object, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult:
        content = types.TextContent(type="text", text="Grüß Gott")
        return types.CreateMessageResult(role="assistant", model="m-1", content=content)

    async def folders(self, context: object) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri=FileUrl("file:///work"))])

    async def logs(self, params: types.LoggingMessageNotificationParams) -> None:
        self.logged.append((params.level, params.data))

    async def hears(self, message: Any) -> None:
        self.heard.append(message)
        self._moved.set()

    async def until(self, kind: type) -> None:
        """Return once a notification of that kind has come."""
        while not any(isinstance(message, kind) for message in self.heard):
            self._moved = anyio.Event()
            await self._moved.wait()

    async def step(self, progress: float, total: float | None, message: str | None) -> None:
        self.steps.append(progress)

    async def within_task(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The answer to what a task asks."""
        assert method == "elicitation/create"
        asked = types.ElicitRequestFormParams.model_validate(params)
        answer = await self.filled_in(None, asked)
        return answer.model_dump(by_alias=True, exclude_none=True)

    def tasks(self, *, patient: bool = True) -> Tasks:
        """The extension of tasks with this desk's answers."""
        return Tasks(self.within_task, patient=patient)
