"""A server in this process, on the event loop of production, whose objects a test can count."""

import gc
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from bench.servers import soak_tools
from bench.traffic import BenchTraffic
from gatepost.mcp import client as mcp_client
from tests.support.server import Server, issuer_settings, running_server


@pytest.fixture(scope="module")
def server(idp: object, working_directory: Path) -> Iterator[Server]:
    """The tools of the soak, with limits, audit and approvals as in production."""
    with pytest.MonkeyPatch.context() as patch:
        # asyncio's own loop keeps a cancelled timer until the time that it was set for.
        patch.setattr(Server, "run", lambda self: uvloop.run(self._serve()))
        patch.setattr(mcp_client, "SIGN_EVERY_S", 0.02)
        # A record that the test's log keeps has a traceback, whose frames keep what a test counts.
        patch.setattr(logging.root.manager, "disable", logging.CRITICAL)
        with running_server(
            idp,  # type: ignore[arg-type]
            [issuer_settings(idp)],  # type: ignore[arg-type]
            tools={"load": [str(Path(soak_tools.__file__))]},
            tenancy={"create_on_first_use": True},
            storage={"database": f"sqlite:///{working_directory}/gatepost.db"},
            approvals={"max_waiting_per_caller": 1000, "max_waiting_per_tenant": 1000},
        ) as running:
            yield running


@pytest.fixture
def traffic(server: Server) -> BenchTraffic:
    """A caller of the server."""
    client = server.client
    return BenchTraffic(("127.0.0.1", client.port), client.authority, client.path, server.token())


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Turn off the garbage collector: only reference counts free objects during the test."""
    gc.collect()
    # The collector does not walk the objects from before the test again and again.
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect()
