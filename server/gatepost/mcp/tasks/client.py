"""The client of a call that may become a task: first of the request, then of the task's record."""

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from gatepost.mcp.client import watched
from gatepost.mcp.sessions.approval_url import ApprovalUrl
from gatepost.tools.client import (
    NO_CLIENT,
    PAGES,
    Capabilities,
    Client,
    InputRequest,
    LoggingLevel,
    MissingCapability,
    Unaccepted,
    Waiting,
    lacking,
    pending,
    required_by,
)
from gatepost.tools.elicitation import UrlElicitation
from gatepost.tools.redacted_call import has_tool_started

OPEN_PAGE = "gatepost:page"
"""The key of the approval page; a tool cannot ask with this key."""


class StartedTask(Protocol):
    """What a call can do with its task, which runs in this process."""

    async def note(self, message: str) -> None:
        """Set the status message of the task."""

    async def ask(self, requests: Mapping[str, InputRequest]) -> Mapping[str, Mapping[str, Any]]:
        """Ask the client and return its answers when all are there."""

    async def wait(self, message: str, *, unstarted: bool) -> None:
        """Record that the task waits, and whether nothing of the call has started."""

    async def go_on(self) -> None:
        """Record that the call starts now, unless it already has."""

    async def keep(self, state: bytes) -> None:
        """Record the state with which another run continues; does not return if it is stopped."""

    @property
    def handed_over(self) -> bool:
        """Return whether another run continues the call."""


class TaskClient:
    """
    Passes everything on to the client of the request until the call detaches.

    From then on progress becomes the task's status message, requests for input wait in its
    record, and log messages are dropped (K-18).
    """

    def __init__(
        self, client: Client, capabilities: Capabilities | None = None, *, kept: bytes = b""
    ) -> None:
        self.client_name = client.client_name
        self.capabilities = client.capabilities if capabilities is None else capabilities
        self.state = kept
        """The state with which another run continues the call; empty if it would start again."""
        self.detaching = asyncio.Event()
        """Set when the call wants to become a task or is over."""
        self.answered: list[tuple[Mapping[str, InputRequest], Mapping[str, Any]]] = []
        """The requests for input before the call became a task, and their answers."""
        self.unstarted = False
        """Whether the call waits for a decision and its tool has not started."""
        self._client = client
        self._task: StartedTask | None = None
        self._accepted = asyncio.Event()
        self._refused = False

    def accept(self, running_task: StartedTask) -> None:
        """Continue as *running_task*, which is durable."""
        # This releases the request's stream and its connection.
        self._client = NO_CLIENT
        self._task = running_task
        self._accepted.set()

    def refuse(self) -> bool:
        """
        End the call with Unaccepted when it waits to become a task.

        Return whether it waits already; False also if it is a task.
        """
        if self._task is not None:
            return False
        self._refused = True
        self._accepted.set()
        return self.detaching.is_set()

    def go_on(self) -> None:
        """Let a call that waits to become a task run to its end."""
        self._accepted.set()

    async def detach(self, *, state: bytes = b"") -> None:
        """Ask to become a task; return when the task is accepted, raise Unaccepted if refused."""
        if self._task is None:
            self.state = state
            self.detaching.set()
            await self._accepted.wait()
            if self._refused:
                raise Unaccepted
        if self._task is not None and state:
            await self._task.keep(state)

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Send progress to the client, or set the task's status message."""
        if self._task is None:
            await self._client.progress(progress, total, message)
            return
        reached = f"{progress:g}" if total is None else f"{progress:g} of {total:g}"
        await self._task.note(reached if message is None else message)

    async def log(self, level: LoggingLevel, data: Any, logger: str | None) -> None:
        """Send a log message to the request's client, if there still is one."""
        await self._client.log(level, data, logger)

    @property
    def kept(self) -> bytes:
        """Return the state that the run before kept."""
        return self.state or self._client.kept

    @property
    def handed_over(self) -> bool:
        """Return whether another run of the task continues the call."""
        return self._task is not None and self._task.handed_over

    async def request(
        self, requests: Mapping[str, InputRequest], *, state: bytes = b""
    ) -> Mapping[str, Mapping[str, Any]]:
        """Ask the client, or put the requests for input into the task's record."""
        if self._task is None:
            answers = await self._client.request(requests, state=state)
            self.answered.append((requests, answers))
            return answers
        if missing := lacking(self.capabilities, required_by(requests)):
            raise MissingCapability(missing)
        return await self._task.ask(requests)

    async def stand_by(self, waiting: Waiting) -> None:
        """
        Turn the call into a task and wait for a decision.

        The task's record shows the page to a client that opens pages. The client's answer does
        not matter, unless it declines.
        """
        unstarted = not has_tool_started()
        if self._task is None:
            self.unstarted = unstarted
            await self.detach()
        if self._task is None:
            await self._client.stand_by(waiting)
            return
        page = self._page(waiting)
        await self._task.wait(waiting.told, unstarted=unstarted)
        if page is None:
            async with watched(waiting) as over:
                await over
        else:
            await self._show(self._task, waiting, page)
        await self._task.go_on()

    def _page(self, waiting: Waiting) -> InputRequest | None:
        if not waiting.url or lacking(self.capabilities, PAGES):
            return None
        return UrlElicitation(waiting.message, waiting.url).request

    async def _show(self, running_task: StartedTask, waiting: Waiting, page: InputRequest) -> None:
        approval_url = ApprovalUrl(waiting, page, _answer(running_task, page))
        try:
            async with watched(approval_url) as over:
                await over
        finally:
            await approval_url.close()
        if approval_url.declined:
            raise pending(waiting)

    async def pause(self, retry_after_s: float) -> None:
        """Close the request's connection, if there still is one."""
        await self._client.pause(retry_after_s)


async def _answer(running_task: StartedTask, page: InputRequest) -> Mapping[str, Any]:
    return (await running_task.ask({OPEN_PAGE: page}))[OPEN_PAGE]
