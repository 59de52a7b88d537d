"""Every open stream receives what a server sends to all of them, and says so when it does not."""

from collections.abc import Iterator

import pytest
from starlette.applications import Starlette

from bench.client_streams import ClientStreams, Stuck, room_for
from bench.listen import ListenCost, render, request
from bench.servers.sse import routes
from bench.workload import BenchEndpoint
from tests.support.issuers import AsgiServer


@pytest.fixture
def server() -> Iterator[AsgiServer]:
    running = AsgiServer(Starlette(routes=routes)).start()
    yield running
    running.stop()


def post(port: int, path: str) -> bytes:
    return request(BenchEndpoint(port, path), "subscriptions/listen", {}, "token")


def test_the_bench_measures_a_notification_on_every_open_stream(server: AsgiServer) -> None:
    """It returns one arrival time for each stream, in order."""
    with ClientStreams(server.port) as streams, ClientStreams(server.port) as caller:
        streams.join(20, lambda _: post(server.port, "/listen"), b"acknowledged", limit_s=10)
        caller.join(1, lambda _: post(server.port, "/announce"), b"announced", limit_s=10)
        moments = streams.hear(b"list_changed", limit_s=10)

        assert len(moments) == 20
        assert moments == sorted(moments)
        with pytest.raises(Stuck, match="20 of 20"):
            streams.hear(b"never", limit_s=0.1)


def test_too_few_file_descriptors_are_reported_before_the_run() -> None:
    """Otherwise the run would fail in the middle."""
    room_for(1)
    with pytest.raises(Stuck, match="open files"):
        room_for(2**62)


def test_the_report_has_a_row_with_ratios_for_each_server() -> None:
    """Each ratio compares with the same server's calls without streams."""
    p99 = {"without": 1000.0, "idle": 1500.0, "announced": 2000.0}
    report = render(
        [ListenCost("sse", 10, p99_us=p99), ListenCost("gatepost", 10, 2048.0, 4096.0, p99_us=p99)]
    )

    assert report.splitlines()[0].startswith("10 streams")
    assert report.splitlines()[-1].split() == [
        *("gatepost", "2.0", "4.0", "-", "-", "-", "1.00", "1.50", "2.00")
    ]
