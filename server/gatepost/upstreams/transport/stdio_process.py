"""Run one stdio server: its pipes, and the requests that wait for its answers."""

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from gatepost.background import TaskSet
from gatepost.mcp.pipes import LineReader, LineTooLong
from gatepost.sandbox.confined_service import ConfinedService, ServiceEnded
from gatepost.upstreams.connection import (
    ConnectionFailure,
    UpstreamError,
    UpstreamNotification,
    UpstreamResult,
)
from gatepost.upstreams.transport import outgoing
from gatepost.upstreams.transport.announcements import Announcements
from gatepost.upstreams.transport.attribution import owner_of
from gatepost.upstreams.transport.failures import broken, invalid
from gatepost.upstreams.transport.incoming import (
    InvalidMessage,
    ReceivedMessage,
    UpstreamResponse,
    received_messages,
)
from gatepost.upstreams.transport.reader import (
    CHANGE_NOTIFICATIONS,
    AnswerItself,
    judged_request,
)
from gatepost.upstreams.transport.stderr_log import StderrLog

MAX_LINE = 16_000_000
"""Maximum number of bytes of one message; no request asks for more."""


class MessageReceiver(Protocol):
    """A request that waits for messages."""

    def receive(self, message: ReceivedMessage, size: int) -> None:
        """Take a message of *size* bytes."""

    def fail(self, failure: ConnectionFailure) -> None:
        """Take note that no more messages come."""


class StdioProcess:
    """Reads the output of a program, and gives each message to the request it belongs to."""

    def __init__(self, server: str, service: ConfinedService, errors: StderrLog) -> None:
        self.server, self._service, self._errors = server, service, errors
        self.log_level: str | None = None
        self.announcements = Announcements()
        self.end_event = asyncio.Event()
        self._running: dict[int, MessageReceiver] = {}
        self._background_tasks = TaskSet()
        self._tasks = (
            asyncio.create_task(self._read()),
            asyncio.create_task(self._read_errors()),
        )

    @property
    def pid(self) -> int:
        """Return the id of its first process."""
        return self._service.pid

    def begin(self, identity: int, receiver: MessageReceiver) -> None:
        """Register a request before it is sent; raises ConnectionFailure if the program ended."""
        if self.end_event.is_set():
            raise ended_before(self.server)
        self._running[identity] = receiver

    def finish(self, identity: int) -> None:
        """Give no more messages to a request."""
        self._running.pop(identity, None)

    async def send(self, message: bytes) -> None:
        """Write one message; raises ConnectionFailure."""
        try:
            await self._service.write(message + b"\n")
        except ServiceEnded:
            raise broken(self.server) from None

    def send_in_background(self, message: bytes) -> None:
        """Write a message in the background, and ignore how that ends."""

        async def written() -> None:
            try:
                await self.send(message)
            except ConnectionFailure:
                return

        self._background_tasks.start(written())

    async def end(self) -> None:
        """End the program with everything that it started."""
        for task in self._background_tasks:
            task.cancel()
        await self._service.end()
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        self._close()

    async def _read(self) -> None:
        lines = LineReader(MAX_LINE)
        try:
            while part := await self._service.read():
                for line in lines.split(part):
                    await self._line(line)
                await asyncio.sleep(0)
        finally:
            self._close()

    async def _read_errors(self) -> None:
        while part := await self._service.read_errors():
            self._errors.take(part)
            await asyncio.sleep(0)
        self._errors.end()

    def _close(self) -> None:
        self.end_event.set()
        failure = broken(self.server)
        for receiver in list(self._running.values()):
            receiver.fail(failure)
        self._running.clear()
        self.announcements.end(failure)

    async def _line(self, line: bytes | LineTooLong) -> None:
        if isinstance(line, LineTooLong):
            self._only_fails("sent a message that is larger than is read")
            return
        if b'"jsonrpc"' not in line:
            return  # programs print other things by mistake, also in JSON
        try:
            messages = await received_messages(line, batches=True)
        except InvalidMessage as problem:
            self._only_fails(str(problem))
            return
        for message in messages:
            self._take(message, len(line))

    def _only_fails(self, problem: str) -> None:
        """Fail the only request; with several, the one it was for ends by its clock."""
        if len(self._running) == 1:
            (receiver,) = self._running.values()
            receiver.fail(invalid(self.server, problem))

    def _take(self, message: ReceivedMessage, size: int) -> None:
        if isinstance(message, UpstreamResponse):
            identity = message.id
            if isinstance(identity, str) and identity.isdecimal() and len(identity) < 20:
                identity = int(identity)
            owner = self._running.get(identity) if isinstance(identity, int) else None
            if owner is not None:
                owner.receive(message, size)
            return
        if isinstance(message, UpstreamNotification) and message.method in CHANGE_NOTIFICATIONS:
            self.announcements.publish(message)
            return
        owner_id = owner_of(message, self._running.keys())
        if owner_id is not None:
            self._running[owner_id].receive(message, size)
        elif not isinstance(message, UpstreamNotification):
            judgement = judged_request(message, has_requests=False)
            if isinstance(judgement, AnswerItself):
                self.send_in_background(outgoing.response(judgement.id, judgement.answer))


class SingleAnswer:
    """Waits for the response to one request, and ignores everything else."""

    def __init__(self) -> None:
        self.outcome: asyncio.Future[UpstreamResult | UpstreamError] = (
            asyncio.get_running_loop().create_future()
        )

    def receive(self, message: ReceivedMessage, size: int) -> None:
        """Take the response."""
        if isinstance(message, UpstreamResponse) and not self.outcome.done():
            self.outcome.set_result(message.outcome)

    def fail(self, failure: ConnectionFailure) -> None:
        """Take note that no response comes."""
        if not self.outcome.done():
            self.outcome.set_exception(failure)


async def request_once(
    process: StdioProcess, identity: int, body: bytes, within_s: float
) -> UpstreamResult | UpstreamError:
    """Send a small request and return its response; raises ConnectionFailure or TimeoutError."""
    answer = SingleAnswer()
    process.begin(identity, answer)
    try:
        async with asyncio.timeout(within_s):
            await process.send(body)
            return await answer.outcome
    finally:
        process.finish(identity)
        answer.outcome.cancel()


def ended_before(server: str) -> ConnectionFailure:
    """Return the failure of a request whose program ended before it was sent."""
    return ConnectionFailure(
        "unreachable",
        f"The program of the MCP server {server} has ended. Nothing was sent.",
        retry_after_s=1,
    )


def capabilities_for(allow: tuple[str, ...]) -> Mapping[str, Any]:
    """
    Return the client capabilities that are declared when a process starts.

    A process has one handshake for all callers. What a caller's client cannot do is refused when
    the server asks for it.
    """
    capabilities: dict[str, Any] = {}
    if "elicitation" in allow:
        capabilities["elicitation"] = {"form": {}, "url": {}}
    if "sampling" in allow:
        capabilities["sampling"] = {}
    if "roots" in allow:
        capabilities["roots"] = {}
    return capabilities
