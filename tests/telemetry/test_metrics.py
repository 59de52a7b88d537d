"""What is counted, by which labels, and that a client cannot add labels."""

import inspect
import platform
from typing import get_args

import pytest

from gatepost.execution.failure import FailureKind
from gatepost.telemetry import metric_families
from gatepost.telemetry.metric_families import FAMILIES, ConfiguredLabel
from gatepost.telemetry.metrics import Growth, Meter
from gatepost.telemetry.shared_memory import SharedMetrics
from gatepost.tools.calls.runner import NOT_AUDITED
from gatepost.tools.offers.offer import WORDS
from gatepost_authz import errors
from tests.architecture.source import refusal_codes, source_files
from tests.support.internet import metrics_page
from tests.support.measuring import count_lines

pytestmark = pytest.mark.requirement("P16")


def counting(metrics: SharedMetrics, at: int = 0, tools: tuple[str, ...] = ("echo",)) -> Meter:
    meter = Meter(metrics.of_process(at))
    meter.start(now=1_000.0)
    meter.set_label_values(tools, None)
    return meter


def test_a_call_is_counted_by_tool_and_outcome_with_its_duration() -> None:
    """Sum and buckets are those of the durations."""
    metrics = SharedMetrics()
    meter = counting(metrics)
    for seconds in (0.003, 0.003, 0.4):
        meter.called("tool", "echo", "success", seconds)
    meter.called("tool", "echo", "timeout", 400.0)
    page = metrics_page(metrics)

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
    """A bucket includes its bound."""
    metrics = SharedMetrics()
    counting(metrics).called("tool", "echo", "success", 0.005)

    assert (
        metrics_page(metrics).value("gatepost_tool_call_seconds_bucket", tool="echo", le="0.005")
        == 1
    )


HOSTILE_LABELS = [
    'x"} 1\ngatepost_tool_calls_total{tool="forged',
    "evil\\",
    "a" * 10_000,
    "\x00\ud800",
    "",
    "unknown",
]


@pytest.mark.parametrize("name", HOSTILE_LABELS, ids=range(len(HOSTILE_LABELS)))
def test_a_tool_name_from_a_client_is_never_a_label(name: str) -> None:
    """It neither becomes a label nor forges a line."""
    metrics = SharedMetrics()
    counting(metrics).called("tool", name, "success", 0.1)
    page = metrics_page(metrics)

    assert page.labels("tool") <= {"echo", "other", "unknown"}
    assert page.value("gatepost_tool_call_seconds_count", tool="other") + page.value(
        "gatepost_tool_call_seconds_count", tool="unknown"
    )


def test_a_thousand_unknown_names_are_one_label() -> None:
    """Calls of unknown tools do not grow the memory of the server or of Prometheus."""
    metrics = SharedMetrics()
    meter = counting(metrics)
    before = len(metrics_page(metrics).samples)
    for number in range(1_000):
        meter.called("tool", f"no-such-{number}", "unknown", 0.001)
        meter.called("tool", None, "unknown", 0.001)
    page = metrics_page(metrics)

    assert page.labels("tool") == {"other", "unknown"}
    assert len(page.samples) - before < 50


def test_tools_beyond_the_most_count_as_others() -> None:
    """The number of labels is bounded, also for a server with thousands of tools."""
    metrics = SharedMetrics()
    names = [f"tool_{number:04}" for number in range(metric_families.MAX_TOOLS + 50)]
    meter = counting(metrics, tools=tuple(names))
    for name in names:
        meter.called("tool", name, "success", 0.001)
    page = metrics_page(metrics)

    assert len(page.labels("tool")) == metric_families.MAX_TOOLS + 1
    assert page.value("gatepost_tool_calls_total", tool="other", outcome="success") == 50


def test_tools_that_a_reload_brings_have_labels_and_those_that_left_keep_theirs() -> None:
    """A counter that disappears would look like a reset."""
    metrics = SharedMetrics()
    meter = counting(metrics)
    meter.called("tool", "echo", "success", 0.001)
    meter.called("tool", "later", "success", 0.001)
    meter.set_label_values(["later"], None)
    meter.called("tool", "later", "success", 0.001)
    page = metrics_page(metrics)

    assert page.labels("tool") == {"echo", "later", "other"}


def test_tenants_are_labels_only_if_configured() -> None:
    """Only tenants that the configuration names have a label; all others count as `other`."""
    metrics = SharedMetrics()
    meter = counting(metrics)
    meter.called_for("acme", "success")
    assert metrics_page(metrics).labels("tenant") == set()

    meter.set_label_values(["echo"], ["acme", "globex"])
    for tenant in ("acme", "t-stranger", "acme"):
        meter.called_for(tenant, "success")
    page = metrics_page(metrics)

    assert page.labels("tenant") == {"acme", "other"}
    assert page.value("gatepost_tenant_calls_total", tenant="acme", outcome="success") == 2


def test_processes_are_added_up_and_a_successor_counts_on() -> None:
    """The counts of a process remain when it dies; its gauges start again."""
    metrics = SharedMetrics(2)
    first, second = counting(metrics), counting(metrics, 1, ("other_tool", "echo"))
    first.called("tool", "echo", "success", 0.1)
    second.called("tool", "echo", "success", 0.1)
    first.set(metric_families.TASKS, 3)
    second.set(metric_families.TASKS, 4)
    before = metrics_page(metrics)

    successor = counting(metrics, 1, ("another", "echo"))
    successor.called("tool", "echo", "success", 0.1)
    successor.called("tool", "another", "success", 0.1)
    after = metrics_page(metrics)

    assert before.value("gatepost_tool_calls_total", tool="echo", outcome="success") == 2
    assert before.value("gatepost_tasks_running") == 7
    assert after.value("gatepost_tool_calls_total", tool="echo", outcome="success") == 3
    assert after.value("gatepost_tasks_running") == 3
    assert after.value("gatepost_workers") == 2
    grown = after.counters()
    assert all(grown[key] >= value for key, value in before.counters().items())


def test_every_outcome_reason_and_kind_has_its_label() -> None:
    """Values outside the lists would count as `other`."""
    gate = {class_ for class_ in vars(errors).values() if inspect.isclass(class_)}
    named = {class_.__name__ for class_ in gate if class_.__module__ == errors.__name__} - {
        "AuthError"
    }
    edge = [path for path in source_files() if "/gatepost/http/" in str(path)]
    codes = refusal_codes(edge)

    assert set(get_args(FailureKind)) <= set(metric_families.OUTCOMES)
    assert set(metric_families.GATE_REASONS) == named
    assert codes | {"internal_error", "unavailable"} == set(metric_families.EDGE_REASONS)
    assert set(get_args(metric_families.CallKind)) == set(WORDS) - NOT_AUDITED - {"tool"}


def test_only_first_labels_are_configured_and_names_have_base_units() -> None:
    """The reader relies on the first, and Prometheus asks for the second."""
    for family in FAMILIES:
        assert not any(isinstance(label, ConfiguredLabel) for label in family.labels[1:])
        assert family.name.endswith("_total") == (family.kind == "counter")
        assert family.kind != "histogram" or family.name.endswith("_seconds")
        assert list(family.buckets) == sorted(family.buckets)


def test_counting_many_costs_little_more_than_counting_one() -> None:
    """The cost depends neither on the number of tools nor on the number of calls in a batch."""
    small = counting(SharedMetrics())
    large = counting(SharedMetrics(), tools=tuple(f"t{n}" for n in range(400)))
    single, thousand = (0.1,), (0.1,) * 1_000

    few = count_lines(lambda: small.called("tool", "echo", "success", *single))
    many = count_lines(lambda: large.called("tool", "t399", "success", *thousand))
    assert few == many < 30
    assert count_lines(lambda: small.answered("mcp", 200, *thousand)) < 30


def test_a_batch_counts_like_its_single_calls() -> None:
    """Buckets and sum are the same as for single calls."""
    together, apart = SharedMetrics(), SharedMetrics()
    seconds = [0.0, 0.001, 0.0011, 0.3, 0.3, 400.0]
    counting(together).called("tool", "echo", "success", *seconds)
    counting(together).answered("mcp", 200, *seconds)
    for duration in seconds:
        counting(apart).called("tool", "echo", "success", duration)
        counting(apart).answered("mcp", 200, duration)

    assert metrics_page(together).counters() == pytest.approx(metrics_page(apart).counters())


@pytest.mark.parametrize(
    ("status", "label"), [(200, "2xx"), (302, "3xx"), (404, "4xx"), (503, "5xx"), (0, "none")]
)
def test_an_answer_is_counted_by_the_class_of_its_status(status: int, label: str) -> None:
    """There is one label value for each class, not for each status."""
    metrics = SharedMetrics()
    counting(metrics).answered("mcp", status, 0.1)

    assert (
        metrics_page(metrics).value("gatepost_http_requests_total", route="mcp", status=label) == 1
    )


def test_a_reset_number_grows_from_zero() -> None:
    """A part that a reload replaces counts from 0, and the counter continues."""
    growth = Growth()

    assert [growth.since(now) for now in (5, 7, 7, 2)] == [5, 2, 0, 2]


def test_times_and_gauges_have_their_units() -> None:
    """Durations are in seconds, and a gauge is never negative."""
    metrics = SharedMetrics()
    meter = counting(metrics)
    meter.set(metric_families.KEY_AGE, 12.5)
    meter.observe(metric_families.AUDIT_SECONDS, 0.004)
    meter.set(metric_families.TASKS, -1)
    page = metrics_page(metrics)

    assert page.value("gatepost_key_age_seconds") == pytest.approx(12.5)
    assert page.value("gatepost_audit_commit_seconds_sum") == pytest.approx(0.004)
    assert page.value("gatepost_tasks_running") == 0
    assert page.value("process_start_time_seconds") == pytest.approx(1_000.0)
    assert page.value("gatepost_build_info", version="1.2.3", python=platform.python_version()) == 1
