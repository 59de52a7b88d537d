"""docs/telemetry.md names every metric that there is, and no other."""

import re

import yaml

from gatepost.telemetry.exposition import registry_of
from gatepost.telemetry.metric_families import BUILD, FAMILIES
from gatepost.telemetry.shared_memory import SharedMetrics
from tests.docs.telemetry_page import PAGE, page

NAMED = {family.name for family in (*FAMILIES, BUILD)}


def test_the_table_is_what_is_told() -> None:
    """After a change: `python -m tests.docs.telemetry_page`."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_the_registry_tells_these_families_and_no_others() -> None:
    """Whoever reads the page knows what a scrape brings."""
    told = {
        metric.name + {"counter": "_total", "info": "_info"}.get(metric.type, "")
        for metric in registry_of(SharedMetrics(), version="1").collect()
    }

    assert told == NAMED


def test_the_alerts_are_about_metrics_that_exist() -> None:
    """An alert on a name that was mistyped never fires."""
    text = PAGE.read_text(encoding="utf-8")
    [block] = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    rules = yaml.safe_load(block)["groups"][0]["rules"]
    names = set(re.findall(r"gatepost_\w+", " ".join(rule["expr"] for rule in rules)))

    assert rules
    assert {name.removesuffix("_bucket") for name in names} <= NAMED
