"""Run the server: one process, or several on one socket, until a signal ends it."""

import asyncio
import importlib
import logging
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from functools import partial
from types import FrameType

import msgspec
import uvloop
from starlette.routing import Route

from gatepost.app import build_app
from gatepost.check.pack_loading import LoadedPacks
from gatepost.config.settings import Config
from gatepost.http.deadlines import Deadlines
from gatepost.http.file_descriptors import raise_limit
from gatepost.http.flow_control import UnreadLimits
from gatepost.http.routing import Application
from gatepost.runtime import interpreter
from gatepost.runtime.http_server import Certificate, GatepostServer, ListenError, listen_config
from gatepost.runtime.metrics_server import scraped
from gatepost.runtime.process_reports import reporting
from gatepost.runtime.services import Services
from gatepost.runtime.signals import RepeatedSignals, is_pending, note_reloads
from gatepost.runtime.startup import opened
from gatepost.runtime.stores import prepare
from gatepost.runtime.version import version
from gatepost.secrets.keyring import KeyRing, KeyRingError
from gatepost.storage.errors import StoreRefused, StoreUnavailable
from gatepost.telemetry.logs import configure
from gatepost.telemetry.metrics import Meter
from gatepost.telemetry.shared_memory import SharedMetrics
from gatepost.tools.authoring.lifespan import LifespanFailed

_log = logging.getLogger(__name__)

END_S = 6.0
"""How long remaining tasks may run at the end: a little longer than an abandoned tool may."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
Fresh = Callable[[], tuple[Config, LoadedPacks] | None]
"""Reads the configuration again; None if it has errors, which it has reported."""

START_ERRORS = (KeyRingError, LifespanFailed, ListenError, StoreRefused, StoreUnavailable)
"""What may keep a server from serving; the text of each is for the operator."""


def nothing(part: str) -> None:
    """Do nothing after a part of the start."""


class ServerSetup(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a process needs to serve."""

    config: Config
    loaded_packs: LoadedPacks
    keyring: KeyRing
    sock: socket.socket
    reread: Fresh | None = None
    """Called at `reload_signal`; None if there is no file to read again."""
    reload_signal: signal.Signals = signal.SIGHUP
    """With another signal, SIGHUP ends the server. Several workers always reload at SIGHUP."""
    development_issuer: Sequence[Route] = ()
    metrics: socket.socket | None = None
    """The address of `/metrics`; None: it is not served."""
    shared_metrics: SharedMetrics = msgspec.field(default_factory=SharedMetrics)
    """Memory for the metrics of every worker."""
    part_done: Callable[[str], object] = nothing
    """Called with the name of each part of the start after it has run."""


def run(setup: ServerSetup, announce: Callable[[], object]) -> int:
    """
    Serve until SIGTERM or SIGINT and answer the exit code.

    *announce* is called once, when every process accepts connections. Raises START_ERRORS.
    """
    configure(level=setup.config.log.level, form=setup.config.log.format)
    raise_limit()
    interpreter.load_late_modules()
    setup.part_done("log, and imports that the first request would make")
    if setup.config.listen.workers > 1:
        # Logged once and not by each process; every process opens its own connections later.
        asyncio.run(prepare(setup.config.storage))
        metrics = SharedMetrics(setup.config.listen.workers)
        setup = msgspec.structs.replace(setup, shared_metrics=metrics)
        return WorkerProcesses(setup, announce).run()
    work(setup, announce)
    return 0


def work(setup: ServerSetup, on_ready: Callable[[], object], *, number: int = 0) -> None:
    """Serve in this process, which counts in its part of the shared metrics."""
    meter = Meter(setup.shared_metrics.of_process(number))
    meter.start(now=time.time())
    with (
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        _scrapes(setup),
    ):
        runner.run(_serve(setup, on_ready, meter))


def _scrapes(setup: ServerSetup) -> AbstractContextManager[None]:
    """Serve `/metrics` during a block if the configuration asks for it."""
    if setup.metrics is None:
        return nullcontext()
    # Imported here, because a server without `/metrics` does not load the library that writes the
    # page.
    exposition = importlib.import_module("gatepost.telemetry.exposition")
    # Each worker answers for all workers.
    registry = exposition.registry_of(setup.shared_metrics, version=version())
    setup.part_done("/metrics")
    return scraped(exposition.Exposition(registry), setup.metrics)


@asynccontextmanager
async def _opened(setup: ServerSetup, meter: Meter) -> AsyncIterator[Services]:
    """Open the services of a process that serves, and so reports about itself."""
    opening = opened(setup.config, setup.loaded_packs, setup.keyring, meter)
    async with opening as services, reporting(services):
        yield services


async def _serve(setup: ServerSetup, on_ready: Callable[[], object], meter: Meter) -> None:
    config = setup.config
    async with _opened(setup, meter) as services:
        setup.part_done("stores and services")
        current = Application(
            build_app(config, services, development_issuer=setup.development_issuer)
        )

        tls = tls_of(config)
        setup.part_done("application and TLS")
        one_by_one = asyncio.Lock()
        reloads: set[asyncio.Task[None]] = set()

        async def reload(read: Fresh) -> None:
            async with one_by_one:
                # In a thread, because documents of the configuration are fetched by URL, and calls
                # must not wait for that.
                changed = await asyncio.to_thread(read)
                if changed is None:
                    _log.error("reload_refused", extra={"reason": "the configuration has problems"})
                    return
                if not await taken_up(services, *changed):
                    return
                renew(tls, changed[0])
                current.replace(
                    build_app(changed[0], services, development_issuer=setup.development_issuer)
                )
                services.warm()
                _log.info("configuration_reloaded")

        def begin(read: Fresh) -> None:
            task = asyncio.create_task(reload(read))
            reloads.add(task)
            task.add_done_callback(reloads.discard)

        server = GatepostServer(
            listen_config(current, deadlines(config), tls=tls.context if tls else None),
            on_ready=partial(_on_ready, setup, services, on_ready),
            on_leave=services.leave,
            leave_s=config.leave_s,
            on_drain=lambda: services.drain(config.listen.drain_s),
            reload=partial(begin, setup.reread) if setup.reread is not None else None,
            reload_signal=setup.reload_signal,
        )
        await server.serve(sockets=[setup.sock])
        await wait_for_cancelled(server.server_state.tasks)
    await end_tasks()


def _on_ready(setup: ServerSetup, services: Services, on_ready: Callable[[], object]) -> None:
    on_ready()
    # The development issuer is this very process, so the first call fetches its keys. The ready
    # line stays the last line that `gatepost dev` prints by itself.
    if not setup.development_issuer:
        services.warm()


async def taken_up(services: Services, config: Config, loaded_packs: LoadedPacks) -> bool:
    """Apply a configuration to the services; False if one of its packs cannot start."""
    try:
        await services.lifespans.start(loaded_packs.packs)
    except LifespanFailed as failed:
        _log.error("reload_refused", extra={"reason": str(failed)})
        return False
    services.keyring.reread()
    services.apply(config, loaded_packs)
    services.lifespans.keep_only(loaded_packs.packs)
    return True


async def wait_for_cancelled(requests: Collection[asyncio.Task[None]]) -> None:
    """
    Wait for requests that the end of the drain has cancelled.

    What their tools have done is put on record before the database closes.
    """
    if requests:
        await asyncio.wait(set(requests), timeout=END_S)


async def end_tasks() -> None:
    """
    Cancel the tasks that are left; end the process where some of them go on.

    A task that a tool has started may take every cancellation for an error to be tried again, and
    Python waits for all tasks without limit.
    """
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if not tasks:
        return
    _, unfinished = await asyncio.wait(tasks, timeout=END_S)
    for task in unfinished:
        _log.error("task_not_ended", extra={"task": _name_of(task)})
    if unfinished:
        logging.shutdown()
        os._exit(1)


def _name_of(task: "asyncio.Task[object]") -> str:
    return str(getattr(task.get_coro(), "__qualname__", task.get_name()))


def deadlines(config: Config) -> Deadlines:
    """Return the deadlines of connections from the settings."""
    return Deadlines(
        head_s=config.limits.header_timeout_s,
        drain_s=config.listen.drain_s,
        max_head_bytes=config.limits.max_header_bytes,
        unread=UnreadLimits(
            process_bytes=config.limits.unread_bytes,
            caller_bytes=config.limits.unread_bytes_per_caller,
            bytes_per_s=config.limits.read_bytes_per_second,
        ),
    )


def tls_of(config: Config) -> Certificate | None:
    """Return the TLS context, or None if the server does not serve TLS."""
    listen = config.listen
    return Certificate(listen.tls_certificate, listen.tls_key) if listen.tls_key else None


def renew(tls: Certificate | None, config: Config) -> None:
    """Take up the certificate that is there now; whether TLS is spoken is settled at the start."""
    listen = config.listen
    if tls is None or not listen.tls_key:
        return
    try:
        tls.renew(listen.tls_certificate, listen.tls_key)
    except (OSError, ssl.SSLError) as error:
        # The certificate was valid a moment ago, when the configuration was checked: it is being
        # written.
        _log.error("certificate_not_reloaded", extra={"error": type(error).__name__})


class WorkerProcesses:
    """
    Several processes on one socket; each is a whole server.

    They share only the socket and the objects that were loaded before the fork. Sessions are signed
    ids that each of them accepts. A process that dies is replaced, unless it dies before it serves.
    """

    def __init__(self, setup: ServerSetup, announce: Callable[[], object]) -> None:
        self._setup = setup
        self._announce = announce
        self._waiting_for: dict[int, int] = {}
        self._members: dict[int, int] = {}
        """Each process and its part of the shared metrics."""
        self._stopping, self._signals = False, RepeatedSignals()
        self._is_reloading = self._is_reload_wanted = False

    def run(self) -> int:
        """Fork, announce, and look after the members until all have ended."""
        before = [signal.signal(number, self._pass_on) for number in SIGNALS]
        if any(map(is_pending, before)):
            self._renew()
        started = [self._fork(worker) for worker in range(self._setup.config.listen.workers)]
        serving = [self._serves(pid) for pid in started]
        if not all(serving):
            self._stop(signal.SIGTERM)
        elif not self._stopping:
            self._announce()
        failed = False
        while self._members:
            pid, status = os.wait()
            worker = self._members.pop(pid)
            failed = failed or (self._stopping and os.waitstatus_to_exitcode(status) != 0)
            if not self._stopping:
                _log.error("worker_replaced")
                if not self._serves(self._fork(worker)):
                    failed = True
                    self._stop(signal.SIGTERM)
        return 1 if failed else 0

    def _fork(self, worker: int) -> int:
        reader, tell = os.pipe()
        sys.stdout.flush()
        # A signal that arrives now is passed on to the new member too.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            self._become_member(tell, worker)
        os.close(tell)
        self._members[pid] = worker
        self._waiting_for[pid] = reader
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        return pid

    def _become_member(self, tell: int, worker: int) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        note_reloads()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        code = 1
        try:
            work(self._setup, lambda: os.write(tell, b"."), number=worker)
            code = 0
        except START_ERRORS as error:
            _log.error("worker_not_started", extra={"reason": str(error)})
        finally:
            if sys.exc_info()[0] is not None:
                _log.critical("worker_failed", exc_info=True)
            # Not sys.exit, because the parent's open work must not be finished twice.
            os._exit(code)

    def _serves(self, pid: int) -> bool:
        """Wait until the member says that it accepts connections; False when it ended instead."""
        reader = self._waiting_for.pop(pid)
        with os.fdopen(reader, "rb") as pipe:
            return pipe.read(1) == b"."

    def _pass_on(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self._renew()
            self._signal(number)
        # A member that has served takes a signal for the end, even while it closes its stores.
        elif not self._signals.is_repeated():
            self._stop(number)

    def _renew(self) -> None:
        """
        Take up what the members take up: with the settings of the start, a member that is forked
        later would accept issuers that are long removed.
        """
        self._is_reload_wanted = True
        if self._is_reloading:
            return  # a further signal: the reload that it has interrupted reads once more
        self._is_reloading = True
        try:
            while self._is_reload_wanted:
                self._is_reload_wanted = False
                self._take_up(self._setup.reread() if self._setup.reread is not None else None)
        finally:
            self._is_reloading = False

    def _take_up(self, changed: tuple[Config, LoadedPacks] | None) -> None:
        if changed is not None:
            self._setup.keyring.reread()
            self._setup = msgspec.structs.replace(
                self._setup, config=changed[0], loaded_packs=changed[1]
            )

    def _stop(self, number: int) -> None:
        self._stopping = True
        # A socket listens as long as one process has it. Clients would wait for a server that is
        # gone, instead of connecting to another one.
        self._setup.sock.close()
        self._signal(number)

    def _signal(self, number: int) -> None:
        for pid in tuple(self._members):
            with suppress(ProcessLookupError):  # `run` is about to take note of its end
                os.kill(pid, number)
