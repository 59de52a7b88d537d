"""The table of docs/telemetry.md, written from the families (run this module to do so)."""

from pathlib import Path

from gatepost.telemetry.metric_families import BUILD, FAMILIES, FixedLabel, MetricFamily

PAGE = Path(__file__).resolve().parents[2] / "docs" / "telemetry.md"
MOST_SHOWN = 8
BEGIN, END = "<!-- families -->\n", "<!-- end of families -->\n"


def labels_of(family: MetricFamily) -> str:
    """The labels, with their values where these are known beforehand and few."""
    told = []
    for label in family.labels:
        values = (
            label.values if isinstance(label, FixedLabel) and 1 < label.size <= MOST_SHOWN else ()
        )
        shown = " ".join(f"`{value}`" for value in values)
        told.append(f"`{label.name}`: {shown}" if shown else f"`{label.name}`")
    return "; ".join(told)


def table() -> str:
    """One row for each family."""
    rows = [
        f"| `{family.name}` | {family.kind} | {labels_of(family)} | {family.help} |\n"
        for family in (*FAMILIES, BUILD)
    ]
    return "| name | type | labels | meaning |\n| --- | --- | --- | --- |\n" + "".join(rows)


def page() -> str:
    """The page with the table as it must be."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + "\n" + table() + "\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
