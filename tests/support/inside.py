"""Gatepost as `gatepost serve` composes it, on a loop of its own in this process."""

import asyncio
import io
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from socket import socket

from starlette.types import ASGIApp

from gatepost.app import build_app
from gatepost.check.pack_loading import Toolbox
from gatepost.config.settings import Config
from gatepost.http.deadlines import Deadlines
from gatepost.http.httptools_protocol import HttptoolsProtocol
from gatepost.runtime.server import GatepostServer, listen_config
from gatepost.runtime.services import Services, opened
from gatepost.secrets.keyring import KeyRing
from gatepost.telemetry.access import AccessLog
from gatepost.telemetry.metrics import Meter
from gatepost.telemetry.shared_memory import SharedMetrics

START_S, STOP_S = 10, 15


class Inside(threading.Thread):
    """
    A running server that a test can look into: its services, and everything it logs.

    *prepare* may change the services before they serve.
    """

    services: Services
    loop: asyncio.AbstractEventLoop | None = None

    def __init__(
        self,
        config: Config,
        toolbox: Toolbox,
        sock: socket,
        *,
        parser: type[asyncio.Protocol] = HttptoolsProtocol,
        keyring: KeyRing | None = None,
        prepare: Callable[[Services], object] | None = None,
        build: Callable[[Config, Services], ASGIApp] = build_app,
    ) -> None:
        super().__init__(daemon=True)
        self.config, self.toolbox, self.sock, self.parser = config, toolbox, sock, parser
        self.keyring = keyring or KeyRing.ephemeral()
        self._prepare = prepare
        self.shared_metrics = SharedMetrics()
        self._build = build
        self.lines = io.BytesIO()
        self.ready = threading.Event()
        self.server: GatepostServer | None = None

    def run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        meter = Meter(self.shared_metrics.slot(0))
        meter.start(now=time.time())
        async with opened(self.config, self.toolbox, self.keyring, meter) as services:
            self.services = services
            services.log = AccessLog("json", self.lines.write, clean=services.redaction.clean)
            if self._prepare is not None:
                self._prepare(services)
            app = self._build(self.config, services)
            settings = listen_config(app, Deadlines(drain_s=5), protocol=self.parser)
            self.server = GatepostServer(
                settings, on_ready=self.ready.set, on_drain=services.streams.close
            )
            await self.server.serve(sockets=[self.sock])

    def log(self) -> str:
        """Everything the server has written so far."""
        return self.lines.getvalue().decode()

    @contextmanager
    def running(self) -> Iterator["Inside"]:
        """Serve for the time of a block; starting and stopping are bounded."""
        handler = logging.StreamHandler(io.TextIOWrapper(self.lines, write_through=True))
        logging.getLogger().addHandler(handler)
        self.start()
        try:
            assert self.ready.wait(START_S), "the server did not start in time"
            yield self
        finally:
            if self.server is not None:
                self.server.should_exit = True
            self.join(STOP_S)
            logging.getLogger().removeHandler(handler)
            assert not self.is_alive(), "the server did not stop in time"
