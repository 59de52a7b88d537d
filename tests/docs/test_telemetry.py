"""
docs/telemetry.md names every metric and no other.

`python -m tests.docs.test_telemetry` writes its table.
"""

import re
from pathlib import Path

import yaml

from gatepost.telemetry.exposition import registry_of
from gatepost.telemetry.metric_families import BUILD, FAMILIES, FixedLabel, MetricFamily
from gatepost.telemetry.shared_memory import SharedMetrics

PAGE = Path(__file__).resolve().parents[2] / "docs" / "telemetry.md"
MAX_SHOWN = 8
BEGIN_MARK, END_MARK = "<!-- families -->\n", "<!-- end of families -->\n"


def labels_of(family: MetricFamily) -> str:
    """Return the labels, with their values if these are fixed and few."""
    bodies = []
    for label in family.labels:
        values = (
            label.values if isinstance(label, FixedLabel) and 1 < label.size <= MAX_SHOWN else ()
        )
        labels = " ".join(f"`{value}`" for value in values)
        bodies.append(f"`{label.name}`: {labels}" if labels else f"`{label.name}`")
    return "; ".join(bodies)


def table() -> str:
    """Return the table, with one row for each family."""
    rows = [
        f"| `{family.name}` | {family.kind} | {labels_of(family)} | {family.help} |\n"
        for family in (*FAMILIES, BUILD)
    ]
    return "| name | type | labels | meaning |\n| --- | --- | --- | --- |\n" + "".join(rows)


def page() -> str:
    """Return the page with the expected table."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN_MARK)
    return before + BEGIN_MARK + "\n" + table() + "\n" + END_MARK + rest.partition(END_MARK)[2]


FAMILY_NAMES = {family.name for family in (*FAMILIES, BUILD)}


def test_the_telemetry_page_is_generated_from_the_metrics() -> None:
    """Run `python -m tests.docs.test_telemetry` after a change."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_the_page_lists_exactly_the_metrics_of_a_scrape() -> None:
    """A new metric needs a row."""
    families = {
        metric.name + {"counter": "_total", "info": "_info"}.get(metric.type, "")
        for metric in registry_of(SharedMetrics(), version="1").collect()
    }

    assert families == FAMILY_NAMES


def test_the_alerts_use_existing_metrics() -> None:
    """An alert on a mistyped name never fires."""
    text = PAGE.read_text(encoding="utf-8")
    [block] = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    rules = yaml.safe_load(block)["groups"][0]["rules"]
    names = set(re.findall(r"gatepost_\w+", " ".join(rule["expr"] for rule in rules)))

    assert rules
    assert {name.removesuffix("_bucket") for name in names} <= FAMILY_NAMES


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
