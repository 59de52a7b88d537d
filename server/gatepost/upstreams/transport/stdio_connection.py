"""Connect to a stdio server; its program runs while it is used."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from itertools import count
from typing import Any, NamedTuple

from gatepost.background import TaskSet
from gatepost.sandbox.confined_service import ConfinedService
from gatepost.upstreams.connection import (
    NO_OPTIONS,
    ConnectionFailure,
    RequestOptions,
    ServerDescription,
    UpstreamError,
    UpstreamExchange,
    UpstreamNotification,
    UpstreamResult,
)
from gatepost.upstreams.transport import era, outgoing
from gatepost.upstreams.transport.concurrency import UpstreamConcurrency
from gatepost.upstreams.transport.era import KnownEra
from gatepost.upstreams.transport.failures import invalid
from gatepost.upstreams.transport.outgoing import PreparedRequest
from gatepost.upstreams.transport.stderr_log import StderrLog
from gatepost.upstreams.transport.stdio_exchange import StdioExchange
from gatepost.upstreams.transport.stdio_process import (
    StdioProcess,
    capabilities_for,
    ended_before,
    request_once,
)
from gatepost.upstreams.transport.stdio_program import ProgramServices, confined, environment
from gatepost.upstreams.upstream_server import StdioProgram, UpstreamServer

PROBE_S, HANDSHAKE_S = 15.0, 30.0
STABLE_S = 60.0
"""A program that ran this long begins again with the shortest pause."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0

log = logging.getLogger(__name__)


class IntroducedProcess(NamedTuple):
    """A program that has answered, and what it said of itself."""

    process: StdioProcess
    description: ServerDescription


class StdioConnection:
    """
    Starts the program at first use, and ends it after an idle time.

    A program that ends by itself fails its requests, and the next use starts it again. Each time it
    ends soon after its start, the pause before the next start doubles.
    """

    def __init__(
        self,
        server: UpstreamServer,
        program: StdioProgram,
        services: ProgramServices,
        known_era: KnownEra,
        concurrency: UpstreamConcurrency,
    ) -> None:
        self.users = 0
        """The requests that use it now."""
        self._server, self._program, self._services = server, program, services
        self._known_era, self._concurrency = known_era, concurrency
        self._introduced: IntroducedProcess | None = None
        self._starting: asyncio.Task[IntroducedProcess] | None = None
        self._ending = TaskSet()
        self._idle: asyncio.TimerHandle | None = None
        self._pause_s = 0.0
        self._not_before = self._started_at = 0.0
        self._closed = False
        self._ids = count(1)

    async def describe(self) -> ServerDescription:
        """Return what the server says of itself (`UpstreamConnection`)."""
        async with self._used():
            return (await self._running()).description

    @asynccontextmanager
    async def exchange(
        self, method: str, params: Mapping[str, Any], options: RequestOptions = NO_OPTIONS
    ) -> AsyncIterator[UpstreamExchange]:
        """Send a request, and end its exchange with the block (`UpstreamConnection`)."""
        async with self._used():
            await self._concurrency.acquire(options.caller)
            try:
                process, description = await self._running()
                await self._level(process, description, method, options)
                request = self._prepared(description, method, params, options)
                exchange = StdioExchange(process, self._concurrency, request)
                try:
                    yield exchange
                finally:
                    await exchange.aclose()
            finally:
                self._concurrency.release(options.caller)

    @asynccontextmanager
    async def notifications(
        self, uris: Sequence[str] = ()
    ) -> AsyncIterator[AsyncIterator[UpstreamNotification]]:
        """
        Follow the server's changes for as long as its program runs (`UpstreamConnection`).

        Following does not keep an idle program running. Its end is a failure of the iteration.
        """
        async with self._used():
            process, description = await self._running()
            if description.era == "modern":
                await self._listen(process, uris)
            elif uris:
                for uri in uris:
                    body = outgoing.message("resources/subscribe", {"uri": uri}, next(self._ids))
                    await process.send(body)
        with process.announcements.following() as queue:
            async with aclosing(aiter(queue)) as notifications:
                yield notifications

    async def aclose(self) -> None:
        """End the program with its whole tree (`UpstreamConnection`)."""
        self._closed = True
        if self._idle is not None:
            self._idle.cancel()
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        self._retire()
        await self._ending.wait()

    @asynccontextmanager
    async def _used(self) -> AsyncIterator[None]:
        self.users += 1
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        try:
            yield
        finally:
            self.users -= 1
            if not self.users and not self._closed:
                loop = asyncio.get_running_loop()
                self._idle = loop.call_later(self._program.idle_s, self._stop_idle)

    def _stop_idle(self) -> None:
        if not self.users and self._introduced is not None:
            log.info(
                "upstream_idle",
                extra={"upstream": self._server.name, "tenant": self._server.tenant},
            )
            self._retire()

    def _retire(self) -> None:
        """End the program in the background."""
        ending, self._introduced = self._introduced, None
        if ending is not None:
            self._ending.start(ending.process.end())

    async def _running(self) -> IntroducedProcess:
        """Return the running program, started if needed; raises ConnectionFailure."""
        if self._closed:
            raise ended_before(self._server.name)
        if self._introduced is not None and self._introduced.process.end_event.is_set():
            self._crashed()
        if self._introduced is not None:
            return self._introduced
        if self._starting is None:
            wait_s = self._not_before - asyncio.get_running_loop().time()
            if wait_s > 0:
                raise ConnectionFailure(
                    "unreachable",
                    f"The program of the MCP server {self._server.name} ended soon after its "
                    "start, and is started again after a pause.",
                    retry_after_s=wait_s,
                )
            self._starting = asyncio.create_task(self._start())
            self._starting.add_done_callback(self._started)
        try:
            return await asyncio.shield(self._starting)
        except asyncio.CancelledError:
            if self._closed:
                raise ended_before(self._server.name) from None
            raise

    def _started(self, task: asyncio.Task[IntroducedProcess]) -> None:
        self._starting = None
        if not task.cancelled() and task.exception() is not None:
            self._wait_longer()

    def _crashed(self) -> None:
        log.warning(
            "upstream_ended", extra={"upstream": self._server.name, "tenant": self._server.tenant}
        )
        if asyncio.get_running_loop().time() - self._started_at > STABLE_S:
            self._pause_s = 0.0
        else:
            self._wait_longer()
        self._retire()

    def _wait_longer(self) -> None:
        self._not_before = asyncio.get_running_loop().time() + self._pause_s
        self._pause_s = min(max(self._pause_s * 2, FIRST_PAUSE_S), LONGEST_PAUSE_S)

    async def _start(self) -> IntroducedProcess:
        process = await self._launched()
        try:
            description = await self._discovered(process)
            if description is None and process.end_event.is_set():
                # The program does not survive a request before the handshake.
                await process.end()
                process = await self._launched()
            if description is None:
                description = await self._initialized(process)
        except TimeoutError:
            await process.end()
            raise ConnectionFailure(
                "unreachable",
                f"The MCP server {self._server.name} did not introduce itself in time. Nothing was "
                "sent.",
                retry_after_s=5,
            ) from None
        except (ConnectionFailure, asyncio.CancelledError):
            await process.end()
            raise
        self._known_era.era = description.era
        self._introduced = IntroducedProcess(process, description)
        return self._introduced

    async def _launched(self) -> StdioProcess:
        server, services = self._server, self._services
        env = await environment(server, self._program, services)
        self._started_at = asyncio.get_running_loop().time()
        try:
            program = await asyncio.to_thread(confined, server, self._program, env)
            service = await ConfinedService.start(program)
        except OSError:
            raise ConnectionFailure(
                "unreachable", f"The program of the MCP server {server.name} cannot be started."
            ) from None
        return StdioProcess(
            server.name, service, StderrLog(server.name, server.tenant, services.redacted)
        )

    async def _discovered(self, process: StdioProcess) -> ServerDescription | None:
        """Return the description of a modern server; None if it needs a handshake."""
        if self._known_era.era == "session":
            return None
        identity = next(self._ids)
        params = {"_meta": outgoing.modern_meta({})}
        body = outgoing.message("server/discover", params, identity)
        try:
            discovered = era.of_discovery(await request_once(process, identity, body, PROBE_S))
        except TimeoutError:
            return None  # it waits for `initialize`
        except ConnectionFailure as failed:
            if failed.reason not in {"invalid", "outcome_unknown"}:
                raise
            return None
        if discovered == "incompatible":
            raise invalid(self._server.name, "speaks no revision of MCP that this gate speaks")
        return discovered if isinstance(discovered, ServerDescription) else None

    async def _initialized(self, process: StdioProcess) -> ServerDescription:
        name = self._server.name
        capabilities = capabilities_for(self._server.allow)
        revision: str | None = era.HANDSHAKE_REVISIONS[0]
        outcome: UpstreamResult | UpstreamError | None = None
        while revision is not None and not isinstance(outcome, UpstreamResult):
            identity = next(self._ids)
            body = outgoing.initialize(identity, revision, capabilities)
            try:
                outcome = await request_once(process, identity, body, HANDSHAKE_S)
            except ConnectionFailure as failed:
                raise ConnectionFailure(
                    "invalid" if failed.reason == "invalid" else "unreachable",
                    f"The program of the MCP server {name} ended before it answered `initialize`.",
                    retry_after_s=5,
                ) from None
            first = revision == era.HANDSHAKE_REVISIONS[0]
            refused = isinstance(outcome, UpstreamError) and first
            revision = era.second_offer(outcome, revision) if refused else None  # type: ignore[arg-type]
        description = era.of_handshake(outcome) if isinstance(outcome, UpstreamResult) else None
        if description is None:
            raise invalid(name, "answered neither `server/discover` nor `initialize` as MCP has it")
        await process.send(outgoing.message("notifications/initialized", {}))
        return description

    async def _level(
        self,
        process: StdioProcess,
        description: ServerDescription,
        method: str,
        options: RequestOptions,
    ) -> None:
        """Set the log level of a session, which the modern era says with each request."""
        level = options.log_level
        needs_level = (
            level is not None and level != process.log_level and method != "logging/setLevel"
        )
        if not needs_level or description.era == "modern":
            return
        if "logging" in description.capabilities:
            identity = next(self._ids)
            body = outgoing.message("logging/setLevel", {"level": level}, identity)
            process.log_level = level
            await process.send(body)

    async def _listen(self, process: StdioProcess, uris: Sequence[str]) -> None:
        filters: dict[str, Any] = {
            "toolsListChanged": True,
            "promptsListChanged": True,
            "resourcesListChanged": True,
        }
        if uris:
            filters["resourceSubscriptions"] = list(uris)
        params = {"notifications": filters, "_meta": outgoing.modern_meta({})}
        await process.send(outgoing.message("subscriptions/listen", params, next(self._ids)))

    def _prepared(
        self,
        description: ServerDescription,
        method: str,
        params: Mapping[str, Any],
        options: RequestOptions,
    ) -> PreparedRequest:
        return PreparedRequest(
            next(self._ids), method, params, options, description.era, description.revision
        )
