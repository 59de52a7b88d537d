"""One server per HTTP parser in front of many issuers, for all attacks of a run."""

import asyncio
import io
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gatepost.app import build_app
from gatepost.config.toolbox import load
from gatepost.keyring import KeyRing
from gatepost.listen import Deadlines, FastProtocol, PlainProtocol, Server, bind, listen_config
from gatepost.services import opened
from gatepost.settings import Config
from gatepost.telemetry.access import AccessLog
from tests.attacks import issuers
from tests.attacks.site import Site
from tests.support import witness
from tests.support.idp import Idp

PARSERS = {"httptools": FastProtocol, "h11": PlainProtocol}


class Serving(threading.Thread):
    """Gatepost as `gatepost serve` composes it, on a loop of its own in this process."""

    def __init__(
        self, config: Config, sock: Any, parser: type[asyncio.Protocol], keyring: KeyRing
    ) -> None:
        super().__init__(daemon=True)
        self.config, self.sock, self.parser, self.keyring = config, sock, parser, keyring
        self.lines = io.BytesIO()
        self.ready = threading.Event()
        self.server: Server | None = None

    def run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        toolbox = load(self.config.tools)
        assert toolbox.problems == ()
        async with opened(self.config, toolbox, self.keyring) as services:
            services.log = AccessLog("json", self.lines.write)
            app = build_app(self.config, services)
            settings = listen_config(app, Deadlines(drain_s=5), protocol=self.parser)
            self.server = Server(settings, on_ready=self.ready.set)
            await self.server.serve(sockets=[self.sock])

    def stop(self) -> None:
        assert self.server is not None
        self.server.should_exit = True
        self.join(15)
        assert not self.is_alive()


@contextmanager
def serving(
    idp: Idp, parser: str, *, keyring: KeyRing | None = None, **settings: Any
) -> Iterator[Site]:
    """A running site whose configuration is the attacked one with *settings* changed."""
    sock = bind("127.0.0.1", 0)
    resource = f"http://127.0.0.1:{sock.getsockname()[1]}/mcp"
    tree = {
        "resource": resource,
        "mode": "development",
        "issuers": issuers.configure(idp),
        "tenancy": {"create_on_first_use": False},
        "tools": {"packs": [], "load": [str(Path(witness.__file__))]},
        "scopes": {"obtainable": ["files:read", "files:write"]},
        "limits": {"failures_per_second": 0},
    } | settings
    config = msgspec.convert(tree, Config)
    thread = Serving(config, sock, PARSERS[parser], keyring or KeyRing.ephemeral())
    handler = logging.StreamHandler(io.TextIOWrapper(thread.lines, write_through=True))
    logging.getLogger().addHandler(handler)
    thread.start()
    try:
        assert thread.ready.wait(10)
        yield Site(idp, resource, lambda: thread.lines.getvalue().decode())
    finally:
        thread.stop()
        logging.getLogger().removeHandler(handler)


@pytest.fixture(scope="session", params=PARSERS)
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """Gatepost on uvicorn with this HTTP parser."""
    with Idp() as idp, serving(idp, request.param) as site:
        yield site
