"""What calls and requests leave behind is counted a moment later, for many of them at once."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from gatepost.config.toolbox import load
from gatepost.counting import SETTLED, Counting, Tally
from gatepost.keyring import KeyRing
from gatepost.services import opened
from gatepost.settings import Config, StorageSettings, ToolsSettings
from gatepost.telemetry.access import AccessLog, Row
from gatepost.telemetry.answers import Answers
from gatepost.telemetry.cells import Board
from gatepost.telemetry.metrics import Meter
from gatepost.tools.api import Call, Failure
from gatepost.tools.registry import Unknown
from tests.support.mcp import a_caller
from tests.support.steps import calls
from tests.support.waiting import eventually
from tests.telemetry.page import Page, page_of

pytestmark = pytest.mark.requirement("P16")
WITHIN_S = 10
CALLS, REQUESTS = "gatepost_tool_calls_total", "gatepost_http_requests_total"


def counted(board: Board, tenants: list[str] | None = None) -> Meter:
    meter = Meter(board.slot(0))
    meter.begin(now=1.0)
    meter.know(["echo"], tenants)
    return meter


async def come(condition: Callable[[], object]) -> None:
    """Return once it holds; the loop goes on meanwhile."""
    await asyncio.to_thread(eventually, condition, within=WITHIN_S)


def a_call(name: str = "echo", arguments: bytes = b"{}", **changes: Any) -> Call:
    return Call(caller=a_caller(), name=name, arguments=arguments, request_id="r", **changes)


def row(path: str = "/mcp", status: int = 200) -> Row:
    return (1.7e9, "POST", path, status, 0.002, "id-1", None, "127.0.0.1", None)


async def test_calls_are_counted_by_how_they_ended() -> None:
    """Each once, whatever else ends in the same moment."""
    board = Board()
    meter = counted(board, ["acme"])
    counting = Counting(meter, Tally(meter), None)
    endings = [None, None, Failure("denied", "No."), Unknown("ecko")]
    for ending in endings:
        name = "ecko" if isinstance(ending, Unknown) else "echo"
        assert counting.ended(a_call(name), 0.0, [], ending) is SETTLED
    counting.ended(a_call("note://1", kind="document"), 0.0, [], None)
    await come(lambda: page_of(board).value(CALLS, tool="echo", outcome="success") > 0)
    counting.ended(a_call(), 0.0, [], None)
    await come(lambda: page_of(board).value(CALLS, tool="echo", outcome="success") > 2)
    page = page_of(board)

    assert page.value(CALLS, tool="echo", outcome="success") == 3
    assert page.value(CALLS, tool="echo", outcome="denied") == 1
    assert page.value(CALLS, tool="unknown", outcome="unknown") == 1
    assert page.value("gatepost_offer_calls_total", kind="document", outcome="success") == 1
    assert page.value("gatepost_tenant_calls_total", tenant="acme", outcome="success") == 3


async def test_a_call_that_ends_costs_one_step_into_the_count() -> None:
    """All else is done for many of them together."""
    meter = counted(Board())
    counting = Counting(meter, Tally(meter), None)
    counting.ended(a_call(), 0.0, [], None)

    made = calls(lambda: counting.ended(a_call(), 0.0, [], None))
    assert [name for name in made if name.startswith(("Counting.", "Meter."))] == ["Counting.ended"]


async def test_what_ends_with_the_server_is_counted() -> None:
    """Calls, requests and what was dropped: none is too late for a last look at the numbers."""
    board = Board()
    tools = ToolsSettings(packs=("demo",))
    config = Config(
        resource="http://127.0.0.1:1/mcp",
        mode="development",
        tools=tools,
        storage=StorageSettings(database="memory:"),
    )
    meter = Meter(board.slot(0))
    meter.begin(now=1.0)
    toolbox = load(tools, config.packs, config.network)
    async with opened(config, toolbox, KeyRing.ephemeral(), meter) as services:
        services.log.counts = Answers(meter, lambda path: "mcp")
        await services.runner.run(a_call(arguments=b'{"text":"hello"}'))
        services.log.append(row())
        services.redaction.found += 1
    page = page_of(board)

    assert page.value(CALLS, tool="echo", outcome="success") == 1
    assert page.value(REQUESTS, route="mcp", status="2xx") == 1
    assert page.value("gatepost_redactions_total") == 1


@asynccontextmanager
async def answering(
    board: Board, write: Callable[[bytes], object], *, enabled: bool = True
) -> AsyncIterator[AccessLog]:
    """A log whose rows are counted, all under one route."""
    log = AccessLog("json", write, enabled=enabled)
    log.counts = Answers(counted(board), lambda path: "mcp" if path == "/mcp" else "other")
    yield log
    await log.aclose()


def requests(page: Page) -> list[float]:
    """Those of the endpoint, well and badly answered, and all others."""
    labels = [("mcp", "2xx"), ("mcp", "4xx"), ("other", "4xx")]
    return [page.value(REQUESTS, route=route, status=status) for route, status in labels]


def so_many(board: Board, number: int) -> bool:
    """Whether that is how many requests were counted, all of them well answered."""
    return requests(page_of(board)) == [number, 0, 0]


@pytest.mark.parametrize("enabled", [True, False])
async def test_requests_are_counted_whether_lines_are_written_or_not(enabled: bool) -> None:
    """From the row that each leaves, by its route and its status."""
    board, lines = Board(), list[bytes]()
    async with answering(board, lines.append, enabled=enabled) as log:
        for one in (row(), row(), row(status=401), row("/wp-login.php", 404)):
            log.append(one)
        await come(lambda: requests(page_of(board)) == [2, 1, 1])
        log.append(row())

    assert requests(page_of(board)) == [3, 1, 1]
    seconds = page_of(board).value("gatepost_http_request_seconds_sum", route="mcp")
    assert seconds == pytest.approx(0.008)
    assert b"".join(lines).count(b"\n") == (5 if enabled else 0)


async def test_requests_are_counted_while_nobody_reads_the_log() -> None:
    """Once each, however long their lines wait."""
    board, lines, reading = Board(), list[bytes](), threading.Event()

    def write(data: bytes) -> None:
        reading.wait(WITHIN_S)
        lines.append(data)

    async with answering(board, write) as log:
        for number in range(3):
            log.append(row())
            await come(partial(so_many, board, number + 1))
        reading.set()

    assert so_many(board, 3)
    assert b"".join(lines).count(b"\n") == 3
