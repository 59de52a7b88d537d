"""The client of a call that may become a task: its request's until then, its record afterwards."""

import asyncio
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Protocol

from gatepost.tools.client import (
    NOBODY,
    Capabilities,
    Client,
    Clock,
    InputRequest,
    LogLevel,
    MissingCapability,
    Unaccepted,
    Waiting,
    lacking,
    required_by,
)


class Job(Protocol):
    """A task that runs in this process, as its call sees it."""

    async def note(self, message: str) -> None:
        """Say what the task is doing."""

    async def ask(self, requests: Mapping[str, InputRequest]) -> Mapping[str, Mapping[str, Any]]:
        """Wait until the client has answered everything."""


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
        with nullcontext() if self._clock is None else self._clock.held():
            return await self._job.ask(requests)

    async def stand_by(self, waiting: Waiting) -> None:
        """See `Client`."""
        await self._client.stand_by(waiting)

    async def pause(self, retry_after_s: float) -> None:
        """See `Client`."""
        await self._client.pause(retry_after_s)
