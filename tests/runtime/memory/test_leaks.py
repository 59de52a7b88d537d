"""What a call leaves behind once it is over, however it ends: nothing."""

import asyncio
import gc
import logging
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from bench.servers import soak_tools
from bench.traffic import OPERATIONS, BenchTraffic
from gatepost.execution.interruption import Interruptible, Stop
from gatepost.http.deadlines import HeadWatch, IdleWatch
from gatepost.http.flow_control import ResponseFlow
from gatepost.http.httptools_protocol import HttptoolsProtocol
from gatepost.mcp import client as mcp_client
from gatepost.mcp.client import StreamClient
from gatepost.mcp.event_stream import SseResponse
from gatepost.mcp.sessions.get_stream import SessionNotifications as OldListener
from gatepost.mcp.subscriptions import ListenStream
from gatepost.mcp.tasks.running_task import RunningTask
from gatepost.mcp.tool_calls import DetachableClient
from gatepost.tools.calls.redacted_call import RedactedCall
from gatepost.tools.offers.offer import Call, CallContext, Outcome
from tests.support.measuring import eventually
from tests.support.server import Server, issuer_settings, running_server

OF_A_CALL = (
    Call,
    CallContext,
    Outcome,
    RedactedCall,
    Interruptible,
    Stop,
    StreamClient,
    SseResponse,
    DetachableClient,
    RunningTask,
)
OF_A_CONNECTION = (HttptoolsProtocol, ResponseFlow, HeadWatch, IdleWatch)
OF_A_STREAM = (ListenStream, OldListener)
LEFT_STREAMS = ("subscriptions", "sessions_left")
"""The operations whose streams keep their connections until the collector comes."""
REPETITIONS = 12
SIZE = 60_000
WITHIN_S = 60.0


@pytest.fixture(scope="module")
def server(idp: object, working_directory: Path) -> Iterator[Server]:
    """Yield a server with the soak's tools, and limits, audit and approvals as in production."""
    with pytest.MonkeyPatch.context() as patch:
        # asyncio's own loop keeps a cancelled timer until the time that it was set for.
        patch.setattr(Server, "run_loop", staticmethod(uvloop.run))
        patch.setattr(mcp_client, "KEEP_ALIVE_S", 0.02)
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
    """Return a caller of the server."""
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


def live_objects(kinds: tuple[type, ...]) -> Counter[str]:
    """Return the live objects of these types, by type."""
    return Counter(
        type(value).__qualname__ for value in gc.get_objects() if isinstance(value, kinds)
    )


def texts() -> int:
    """
    Return how many blocks of memory could contain the text of an argument.

    The sum of all bytes would count what else this process does: a table read for the first time, a
    log record that waits for its thread.
    """
    gathered = tracemalloc.take_snapshot().traces
    return sum(1 for trace in gathered if trace.size >= SIZE)


@pytest.fixture
def traces() -> Iterator[None]:
    """Count the bytes of Python objects during the test."""
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


async def repeat(name: str, traffic: BenchTraffic, times: int) -> None:
    """Do an operation so often, with arguments of that size."""
    for _ in range(times):
        await asyncio.wait_for(OPERATIONS[name](traffic, SIZE), 60)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.usefixtures("no_collector", "traces")
def test_a_finished_call_is_freed_without_the_garbage_collector(
    name: str, traffic: BenchTraffic
) -> None:
    """Its objects, arguments and closed connections may have megabytes."""
    asyncio.run(repeat(name, traffic, 2))
    eventually(lambda: not live_objects(OF_A_CALL), within=WITHIN_S)
    before = texts()
    asyncio.run(repeat(name, traffic, REPETITIONS))

    kinds = OF_A_CALL if name in LEFT_STREAMS else OF_A_CALL + OF_A_CONNECTION
    eventually(lambda: not live_objects(kinds), within=WITHIN_S)
    eventually(lambda: texts() - before < REPETITIONS, within=WITHIN_S)


@pytest.mark.parametrize("name", LEFT_STREAMS)
def test_a_stream_left_by_its_client_is_garbage_collected(name: str, traffic: BenchTraffic) -> None:
    """A listener that refers to itself is freed by the garbage collector."""
    asyncio.run(repeat(name, traffic, REPETITIONS))

    def is_gone() -> bool:
        gc.collect()
        return not live_objects(OF_A_STREAM)

    eventually(is_gone, within=WITHIN_S)
