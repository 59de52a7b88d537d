"""The client of a call that may become a task: its request's until then, its record afterwards."""

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from gatepost.mcp.vigil import watched
from gatepost.mcp.visit import Visit
from gatepost.tools.asking import UrlElicitation
from gatepost.tools.client import (
    NOBODY,
    PAGES,
    Capabilities,
    Client,
    Clock,
    InputRequest,
    LogLevel,
    MissingCapability,
    Unaccepted,
    Waiting,
    held,
    lacking,
    pending,
    required_by,
    told,
)

VISIT = "gatepost:visit"
"""The key of a page where somebody else decides; no tool can ask by it (`asking.KEY`)."""


class Job(Protocol):
    """A task that runs in this process, as its call sees it."""

    async def note(self, message: str) -> None:
        """Say what the task is doing."""

    async def ask(self, requests: Mapping[str, InputRequest]) -> Mapping[str, Mapping[str, Any]]:
        """Wait until the client has answered everything."""

    async def wait(self, message: str, *, untouched: bool) -> None:
        """Keep that it waits, and whether nothing of the call has begun."""

    async def go_on(self) -> None:
        """Keep that the call begins now, if it had not."""


class Errand:
    """
    Passes everything on to the request's own client until the call detaches.

    From then on progress becomes the task's status message, questions wait in its record, and log
    messages have nobody to go to (K-18).
    """

    def __init__(self, client: Client, capabilities: Capabilities | None = None) -> None:
        self.capabilities = client.capabilities if capabilities is None else capabilities
        self.turn = asyncio.Event()
        """Set when the call wants to be a task, or is over."""
        self.heard: list[tuple[Mapping[str, InputRequest], Mapping[str, Any]]] = []
        """What was asked before the call became a task, and answered."""
        self.untouched = False
        """Whether the call waits for a decision before anything of it has begun."""
        self._client = client
        self._job: Job | None = None
        self._clock: Clock | None = None
        self._accepted = asyncio.Event()
        self._refused = False

    def accept(self, job: Job) -> None:
        """Go on as *job*, which is durable."""
        # What belongs to the request is let go with it: its stream, and the connection behind.
        self._client = NOBODY
        self._job = job
        self._accepted.set()

    def refuse(self) -> bool:
        """Let a call end that waits to be a task, or will (Unaccepted); False when it waits not."""
        if self._job is not None:
            return False
        self._refused = True
        self._accepted.set()
        return self.turn.is_set()

    def go_on(self) -> None:
        """Let a call run to its end that waits to be a task, or will."""
        self._accepted.set()

    async def detach(self) -> None:
        """See `Client`; returns once somebody accepts the task."""
        if self._job is None:
            self.turn.set()
            await self._accepted.wait()
            if self._refused:
                raise Unaccepted

    def timed(self, clock: Clock) -> None:
        """See `Client`."""
        self._clock = clock
        self._client.timed(clock)

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """See `Client`."""
        if self._job is None:
            await self._client.progress(progress, total, message)
            return
        reached = f"{progress:g}" if total is None else f"{progress:g} of {total:g}"
        await self._job.note(reached if message is None else message)

    async def log(self, level: LogLevel, data: Any, logger: str | None) -> None:
        """See `Client`."""
        await self._client.log(level, data, logger)

    async def request(
        self, requests: Mapping[str, InputRequest]
    ) -> Mapping[str, Mapping[str, Any]]:
        """See `Client`."""
        if self._job is None:
            answers = await self._client.request(requests)
            self.heard.append((requests, answers))
            return answers
        if missing := lacking(self.capabilities, required_by(requests)):
            raise MissingCapability(missing)
        with held(self._clock):
            return await self._job.ask(requests)

    async def stand_by(self, waiting: Waiting) -> None:
        """
        See `Client`; the call becomes a task, whose record shows the page to a client that opens
        pages. Whether its person went there, and what it says of that, changes nothing.
        """
        # Its clock is made when its tool begins, so without one nothing was done yet.
        untouched = self._clock is None
        if self._job is None:
            self.untouched = untouched
            await self.detach()
        if self._job is None:
            await self._client.stand_by(waiting)
            return
        page = self._page(waiting)
        await self._job.wait(told(waiting), untouched=untouched)
        with held(self._clock):
            if page is None:
                async with watched(waiting) as over:
                    await over
            else:
                await self._show(self._job, waiting, page)
        await self._job.go_on()

    def _page(self, waiting: Waiting) -> InputRequest | None:
        if not waiting.url or lacking(self.capabilities, PAGES):
            return None
        return UrlElicitation(waiting.message, waiting.url).request

    async def _show(self, job: Job, waiting: Waiting, page: InputRequest) -> None:
        visit = Visit(waiting, page, _answer(job, page))
        try:
            async with watched(visit) as over:
                await over
        finally:
            await visit.close()
        if visit.declined:
            raise pending(waiting)

    async def pause(self, retry_after_s: float) -> None:
        """See `Client`."""
        await self._client.pause(retry_after_s)


async def _answer(job: Job, page: InputRequest) -> Mapping[str, Any]:
    return (await job.ask({VISIT: page}))[VISIT]
