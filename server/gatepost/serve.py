"""Run the server: one process, or several on one socket, until a signal ends it."""

import asyncio
import importlib
import logging
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from functools import partial

import msgspec
import uvloop

from gatepost.app import build_app
from gatepost.check.pack_loading import LoadedPacks
from gatepost.config.settings import Config
from gatepost.http.deadlines import Deadlines
from gatepost.http.file_descriptors import raise_limit
from gatepost.http.flow_control import UnreadLimits
from gatepost.http.routing import Application
from gatepost.runtime import interpreter
from gatepost.runtime.http_server import Certificate, GatepostServer, listen_config
from gatepost.runtime.metrics_server import scraped
from gatepost.runtime.other_processes import reporting_others
from gatepost.runtime.process_reports import reporting
from gatepost.runtime.reload import settings_without_effect
from gatepost.runtime.server_setup import RereadConfiguration, ServerSetup
from gatepost.runtime.services import Services
from gatepost.runtime.startup import opened
from gatepost.runtime.stores import prepare
from gatepost.runtime.version import version
from gatepost.runtime.worker_processes import WorkerProcesses
from gatepost.telemetry.logs import configure
from gatepost.telemetry.metrics import Meter
from gatepost.telemetry.shared_memory import SharedMetrics
from gatepost.tools.authoring.lifespan import LifespanFailed

_log = logging.getLogger(__name__)

END_S = 6.0
"""How long remaining tasks may run at the end: a little longer than an abandoned tool may."""


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
        return WorkerProcesses(setup, announce, work).run()
    work(setup, announce)
    return 0


def work(setup: ServerSetup, on_ready: Callable[[], object], number: int = 0) -> None:
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
    async with (
        opening as services,
        reporting(services),
        reporting_others(services.records, setup.config),
    ):
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

        async def reload(read: RereadConfiguration) -> None:
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
                if ignored := settings_without_effect(config, changed[0]):
                    _log.warning("restart_needed", extra={"settings": ", ".join(ignored)})

        def begin(read: RereadConfiguration) -> None:
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
