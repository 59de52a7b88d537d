"""Calls and requests are counted in batches, shortly after they end."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from msgspec import UNSET

from gatepost.check.pack_loading import load
from gatepost.config.settings import Config, StorageSettings, ToolsSettings
from gatepost.runtime.call_metrics import CallBatch, CountingRecorder
from gatepost.runtime.startup import opened
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.commit import NO_COMMIT
from gatepost.telemetry.access import AccessLog, AccessRow, RequestMetrics, RpcTarget
from gatepost.telemetry.metrics import Meter
from gatepost.telemetry.shared_memory import SharedMetrics
from gatepost.tools.calls.registry import Unknown
from gatepost.tools.offers.offer import Call, Failure
from tests.support.endpoint import a_caller
from tests.support.internet import MetricsPage, metrics_page
from tests.support.measuring import eventually, functions_called

pytestmark = pytest.mark.requirement("P16")
WITHIN_S = 10
CALLS, REQUESTS = "gatepost_tool_calls_total", "gatepost_http_requests_total"


def started_meter(metrics: SharedMetrics, tenants: list[str] | None = None) -> Meter:
    meter = Meter(metrics.of_process(0))
    meter.start(now=1.0)
    meter.set_label_values(["echo"], tenants)
    return meter


async def wait_until(condition: Callable[[], object]) -> None:
    """Wait for the condition without blocking the event loop."""
    await asyncio.to_thread(eventually, condition, within=WITHIN_S)


def a_call(name: str = "echo", arguments: bytes = b"{}", **changes: Any) -> Call:
    return Call(caller=a_caller(), name=name, arguments=arguments, request_id="r", **changes)


def row(path: str = "/mcp", status: int = 200, rpc: RpcTarget | None = None) -> AccessRow:
    return (1.7e9, "POST", path, status, 0.002, "id-1", None, "127.0.0.1", None, rpc)


async def test_calls_are_counted_by_how_they_ended() -> None:
    """Each call counts once, also if other calls end at the same moment."""
    metrics = SharedMetrics()
    meter = started_meter(metrics, ["acme"])
    counting = CountingRecorder(meter, CallBatch(meter), None)
    endings = [None, None, Failure("denied", "No."), Unknown("ecko")]
    for ending in endings:
        name = "ecko" if isinstance(ending, Unknown) else "echo"
        assert counting.record_end(a_call(name), 0.0, [], ending) is NO_COMMIT
    counting.record_end(a_call("note://1", kind="document"), 0.0, [], None)
    await wait_until(lambda: metrics_page(metrics).value(CALLS, tool="echo", outcome="success") > 0)
    counting.record_end(a_call(), 0.0, [], None)
    await wait_until(lambda: metrics_page(metrics).value(CALLS, tool="echo", outcome="success") > 2)
    page = metrics_page(metrics)

    assert page.value(CALLS, tool="echo", outcome="success") == 3
    assert page.value(CALLS, tool="echo", outcome="denied") == 1
    assert page.value(CALLS, tool="unknown", outcome="unknown") == 1
    assert page.value("gatepost_offer_calls_total", kind="document", outcome="success") == 1
    assert page.value("gatepost_tenant_calls_total", tenant="acme", outcome="success") == 3


async def test_an_ended_call_costs_one_function_call() -> None:
    """The rest is done for the whole batch."""
    meter = started_meter(SharedMetrics())
    counting = CountingRecorder(meter, CallBatch(meter), None)
    counting.record_end(a_call(), 0.0, [], None)

    calls_made = functions_called(lambda: counting.record_end(a_call(), 0.0, [], None))
    own = [name for name in calls_made if name.startswith(("CountingRecorder.", "Meter."))]
    assert own == ["CountingRecorder.record_end"]


async def test_a_stop_counts_the_last_batch() -> None:
    """Calls, requests and dropped lines count, also if they end just before a stop."""
    metrics = SharedMetrics()
    tools = ToolsSettings(packs=("demo",))
    config = Config(
        resource="http://127.0.0.1:1/mcp",
        mode="development",
        tools=tools,
        storage=StorageSettings(database="memory:"),
    )
    meter = Meter(metrics.of_process(0))
    meter.start(now=1.0)
    toolbox = load(tools, config.packs, config.network)
    async with opened(config, toolbox, KeyRing.ephemeral(), meter) as services:
        services.request_metrics.apply(lambda path: "mcp")
        await services.runner.run(a_call(arguments=b'{"text":"hello"}'))
        services.log.append(row())
        services.redaction.redacted_outcomes += 1
    page = metrics_page(metrics)

    assert page.value(CALLS, tool="echo", outcome="success") == 1
    assert page.value(REQUESTS, route="mcp", status="2xx") == 1
    assert page.value("gatepost_redactions_total") == 1


@asynccontextmanager
async def counting_log(
    metrics: SharedMetrics, write: Callable[[bytes], object], *, enabled: bool = True
) -> AsyncIterator[AccessLog]:
    """Open an access log whose rows are counted by route."""
    counts = RequestMetrics(
        started_meter(metrics), lambda path: "mcp" if path == "/mcp" else "other"
    )
    log = AccessLog("json", write, enabled=enabled, counts=counts)
    yield log
    await log.aclose()


def requests(page: MetricsPage) -> list[float]:
    """Return the requests of the endpoint with 2xx and with 4xx, and the other 4xx."""
    labels = [("mcp", "2xx"), ("mcp", "4xx"), ("other", "4xx")]
    return [page.value(REQUESTS, route=route, status=status) for route, status in labels]


def are_counted(metrics: SharedMetrics, number: int) -> bool:
    """Return whether so many requests of the endpoint were counted, all with 2xx."""
    return requests(metrics_page(metrics)) == [number, 0, 0]


@pytest.mark.parametrize("enabled", [True, False])
async def test_requests_are_counted_whether_lines_are_written_or_not(enabled: bool) -> None:
    """A request is counted by route and status from its row of the access log."""
    metrics, lines = SharedMetrics(), list[bytes]()
    async with counting_log(metrics, lines.append, enabled=enabled) as log:
        for written_row in (row(), row(), row(status=401), row("/wp-login.php", 404)):
            log.append(written_row)
        await wait_until(lambda: requests(metrics_page(metrics)) == [2, 1, 1])
        log.append(row())

    assert requests(metrics_page(metrics)) == [3, 1, 1]
    seconds = metrics_page(metrics).value("gatepost_http_request_seconds_sum", route="mcp")
    assert seconds == pytest.approx(0.008)
    assert b"".join(lines).count(b"\n") == (5 if enabled else 0)


async def test_a_request_that_ends_after_the_log_was_closed_is_written() -> None:
    """If a stop does not wait for a request, the request still gets its line and raises nothing."""
    lines, failures = list[bytes](), list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
    metrics = SharedMetrics()
    async with counting_log(metrics, lines.append) as log:
        log.append(row())
    log.append(row())
    await wait_until(lambda: bool(failures) or are_counted(metrics, 2))

    assert failures == []
    assert b"".join(lines).count(b"\n") == 2


async def test_requests_are_counted_while_the_log_is_not_read() -> None:
    """Each request counts once, however long its line waits."""
    metrics, lines, reading = SharedMetrics(), list[bytes](), threading.Event()

    def write(data: bytes) -> None:
        reading.wait(WITHIN_S)
        lines.append(data)

    async with counting_log(metrics, write) as log:
        for number in range(3):
            log.append(row())
            await wait_until(partial(are_counted, metrics, number + 1))
        reading.set()

    assert are_counted(metrics, 3)
    assert b"".join(lines).count(b"\n") == 3


async def test_refusals_of_one_batch_are_searched_for_secrets_once() -> None:
    """Refusals of one batch mostly have the same path, which is searched only once."""
    searched, lines = list[str](), list[bytes]()

    def clean(tenant: str | None, text: str) -> str:
        searched.append(text)
        return text.replace("SECRET", "[REDACTED]")

    log = AccessLog("json", lines.append, clean=clean)
    for path in ("/mcp", "/SECRET") * 50:
        log.append(row(path, 401))
    await log.aclose()

    assert sorted(searched) == ["/SECRET", "/mcp", "POST"]
    assert b"".join(lines).count(b"/[REDACTED]") == 50
    assert b"SECRET" not in b"".join(lines)


async def test_a_line_names_what_the_server_lists_and_redacts_what_a_client_chose() -> None:
    """A name is short and without secrets; a URI that the server does not list may be arguments."""
    lines = list[bytes]()
    log = AccessLog(
        "json", lines.append, clean=lambda tenant, text: text.replace("SECRET", "[REDACTED]")
    )
    log.apply({"tools/call", "resources/read", "echo", "note://1"})
    named: list[tuple[RpcTarget, str | None]] = [
        (("tools/call", "echo", UNSET), "echo"),
        (("tools/call", "my-SECRET", UNSET), "my-[REDACTED]"),
        (("tools/call", "a" * 900, UNSET), "a" * 128),
        (("tools/call", "a" * 1001, UNSET), "(too long)"),
        (("tools/call", "echo", "note://1"), "echo"),
        (("tools/list", UNSET, UNSET), None),
        (("resources/read", UNSET, "note://1"), "note://1"),
        (("resources/read", "echo", "note://1"), "note://1"),
        (("resources/read", UNSET, "crm://customers/alice"), None),
    ]
    for rpc, _ in named:
        log.append(row(rpc=rpc))
    await log.aclose()
    logged_lines = [json.loads(line) for line in b"".join(lines).splitlines()]

    assert [(record["rpc_method"], record.get("name")) for record in logged_lines] == [
        (rpc[0], name) for rpc, name in named
    ]
