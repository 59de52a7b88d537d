"""What is counted, by which labels, and what a stranger cannot make of it."""

import inspect
import platform
from typing import get_args

import pytest

from gatepost.telemetry import family
from gatepost.telemetry.cells import Board
from gatepost.telemetry.family import FAMILIES, Open
from gatepost.telemetry.metrics import Growth, Meter
from gatepost.tools.api import WORDS
from gatepost.tools.failure import FailureKind
from gatepost.tools.runner import OFF_RECORD
from gatepost_authz import errors
from tests.architecture.source import source_files
from tests.docs.test_errors import refusal_codes
from tests.support.steps import steps
from tests.telemetry.page import page_of

pytestmark = pytest.mark.requirement("P16")


def counting(board: Board, place: int = 0, tools: tuple[str, ...] = ("echo",)) -> Meter:
    meter = Meter(board.slot(place))
    meter.begin(now=1_000.0)
    meter.know(tools, None)
    return meter


def test_a_call_is_counted_by_tool_and_outcome_with_its_duration() -> None:
    """The sum and the buckets are those of the seconds that were told."""
    board = Board()
    meter = counting(board)
    for seconds in (0.003, 0.003, 0.4):
        meter.called("tool", "echo", "success", seconds)
    meter.called("tool", "echo", "timeout", 400.0)
    page = page_of(board)

    assert page.value("gatepost_tool_calls_total", tool="echo", outcome="success") == 3
    assert page.value("gatepost_tool_calls_total", tool="echo", outcome="timeout") == 1
    buckets = {
        bound: page.value("gatepost_tool_call_seconds_bucket", tool="echo", le=bound)
        for bound in ("0.0025", "0.005", "0.5", "300.0", "+Inf")
    }
    assert buckets == {"0.0025": 0, "0.005": 2, "0.5": 3, "300.0": 3, "+Inf": 4}
    assert page.value("gatepost_tool_call_seconds_sum", tool="echo") == pytest.approx(400.406)
    assert page.value("gatepost_tool_call_seconds_count", tool="echo") == 4


def test_a_duration_on_a_bound_belongs_to_its_bucket() -> None:
    """Buckets hold what is less than or equal to their bound."""
    board = Board()
    counting(board).called("tool", "echo", "success", 0.005)

    assert page_of(board).value("gatepost_tool_call_seconds_bucket", tool="echo", le="0.005") == 1


HOSTILE = [
    'x"} 1\ngatepost_tool_calls_total{tool="forged',
    "evil\\",
    "a" * 10_000,
    "\x00\ud800",
    "",
    "unknown",
]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_what_a_client_calls_a_tool_is_never_a_label(name: str) -> None:
    """Neither as a label of its own, nor as a line that it would forge."""
    board = Board()
    counting(board).called("tool", name, "success", 0.1)
    page = page_of(board)

    assert page.labels("tool") <= {"echo", "other", "unknown"}
    assert page.value("gatepost_tool_call_seconds_count", tool="other") + page.value(
        "gatepost_tool_call_seconds_count", tool="unknown"
    )


def test_a_thousand_unknown_names_are_one_label() -> None:
    """Nobody grows our memory, or the collector's, by asking for what there is not."""
    board = Board()
    meter = counting(board)
    before = len(page_of(board).samples)
    for number in range(1_000):
        meter.called("tool", f"no-such-{number}", "unknown", 0.001)
        meter.called("tool", None, "unknown", 0.001)
    page = page_of(board)

    assert page.labels("tool") == {"other", "unknown"}
    assert len(page.samples) - before < 50


def test_tools_beyond_the_most_count_as_others() -> None:
    """A server with thousands of tools does not have thousands of labels."""
    board = Board()
    names = [f"tool_{number:04}" for number in range(family.MOST_TOOLS + 50)]
    meter = counting(board, tools=tuple(names))
    for name in names:
        meter.called("tool", name, "success", 0.001)
    page = page_of(board)

    assert len(page.labels("tool")) == family.MOST_TOOLS + 1
    assert page.value("gatepost_tool_calls_total", tool="other", outcome="success") == 50


def test_tools_that_a_reload_brings_have_labels_and_those_that_left_keep_theirs() -> None:
    """A counter that vanishes would look like one that began anew."""
    board = Board()
    meter = counting(board)
    meter.called("tool", "echo", "success", 0.001)
    meter.know(["later"], None)
    meter.called("tool", "later", "success", 0.001)
    page = page_of(board)

    assert page.labels("tool") == {"echo", "later"}


def test_tenants_are_told_only_where_somebody_asked_for_it() -> None:
    """And then those that the configuration names; strangers are others."""
    board = Board()
    meter = counting(board)
    meter.called_for("acme", "success")
    assert page_of(board).labels("tenant") == set()

    meter.know(["echo"], ["acme", "globex"])
    for tenant in ("acme", "t-stranger", "acme"):
        meter.called_for(tenant, "success")
    page = page_of(board)

    assert page.labels("tenant") == {"acme", "other"}
    assert page.value("gatepost_tenant_calls_total", tenant="acme", outcome="success") == 2


def test_processes_are_told_together_and_a_successor_counts_on() -> None:
    """What one counted stays when it dies; gauges are those of who is there."""
    board = Board(2)
    first, second = counting(board), counting(board, 1, ("other_tool", "echo"))
    first.called("tool", "echo", "success", 0.1)
    second.called("tool", "echo", "success", 0.1)
    first.put(family.TASKS, 3)
    second.put(family.TASKS, 4)
    before = page_of(board)

    successor = counting(board, 1, ("another", "echo"))
    successor.called("tool", "echo", "success", 0.1)
    successor.called("tool", "another", "success", 0.1)
    after = page_of(board)

    assert before.value("gatepost_tool_calls_total", tool="echo", outcome="success") == 2
    assert before.value("gatepost_tasks_running") == 7
    assert after.value("gatepost_tool_calls_total", tool="echo", outcome="success") == 3
    assert after.value("gatepost_tasks_running") == 3
    assert after.value("gatepost_workers") == 2
    grown = after.counters()
    assert all(grown[key] >= value for key, value in before.counters().items())


def test_every_outcome_reason_and_kind_has_its_label() -> None:
    """What is not in the lists would be told as `other`."""
    gate = {one for one in vars(errors).values() if inspect.isclass(one)}
    named = {one.__name__ for one in gate if one.__module__ == errors.__name__} - {"AuthError"}
    edge = [path for path in source_files() if "/edge/" in str(path)]
    codes = set().union(*(refusal_codes(path) for path in edge))

    assert set(get_args(FailureKind)) <= set(family.OUTCOMES)
    assert set(family.GATE_REASONS) == named
    assert codes | {"internal_error", "unavailable"} == set(family.EDGE_REASONS)
    assert set(get_args(family.CallKind)) == set(WORDS) - OFF_RECORD - {"tool"}


def test_only_first_labels_are_names_and_names_are_base_units() -> None:
    """As the reading of the cells wants it, and as Prometheus names things."""
    for one in FAMILIES:
        assert not any(isinstance(axis, Open) for axis in one.axes[1:])
        assert one.name.endswith("_total") == (one.kind == "counter")
        assert one.kind != "histogram" or one.name.endswith("_seconds")
        assert list(one.bounds) == sorted(one.bounds)


def test_counting_many_costs_little_more_than_counting_one() -> None:
    """However many tools there are; what ends in one moment is counted together."""
    small, large = counting(Board()), counting(Board(), 0, tuple(f"t{n}" for n in range(400)))
    one, thousand = (0.1,), (0.1,) * 1_000

    few = steps(lambda: small.called("tool", "echo", "success", *one))
    many = steps(lambda: large.called("tool", "t399", "success", *thousand))
    assert few == many < 30
    assert steps(lambda: small.answered("mcp", 200, *thousand)) < 30


def test_many_are_told_as_each_for_itself_would_be() -> None:
    """In the same buckets and with the same sum."""
    together, apart = Board(), Board()
    seconds = [0.0, 0.001, 0.0011, 0.3, 0.3, 400.0]
    counting(together).called("tool", "echo", "success", *seconds)
    counting(together).answered("mcp", 200, *seconds)
    for one in seconds:
        counting(apart).called("tool", "echo", "success", one)
        counting(apart).answered("mcp", 200, one)

    assert page_of(together).counters() == pytest.approx(page_of(apart).counters())


@pytest.mark.parametrize(
    ("status", "label"), [(200, "2xx"), (302, "3xx"), (404, "4xx"), (503, "5xx"), (0, "none")]
)
def test_an_answer_is_counted_by_the_class_of_its_status(status: int, label: str) -> None:
    """Nobody needs a label for each of them."""
    board = Board()
    counting(board).answered("mcp", status, 0.1)

    assert page_of(board).value("gatepost_http_requests_total", route="mcp", status=label) == 1


def test_a_number_that_begins_anew_grows_from_nothing() -> None:
    """What a reload replaces counts from 0 again, and the counter goes on."""
    growth = Growth()

    assert [growth.since(now) for now in (5, 7, 7, 2)] == [5, 2, 0, 2]


def test_times_and_gauges_are_told_in_their_units() -> None:
    """Seconds are seconds, and what is below nothing is nothing."""
    board = Board()
    meter = counting(board)
    meter.put(family.KEY_AGE, 12.5)
    meter.observe(family.AUDIT_SECONDS, 0.004)
    meter.put(family.TASKS, -1)
    page = page_of(board)

    assert page.value("gatepost_key_age_seconds") == pytest.approx(12.5)
    assert page.value("gatepost_audit_commit_seconds_sum") == pytest.approx(0.004)
    assert page.value("gatepost_tasks_running") == 0
    assert page.value("process_start_time_seconds") == pytest.approx(1_000.0)
    assert page.value("gatepost_build_info", version="1.2.3", python=platform.python_version()) == 1
