"""The table of docs/telemetry.md, written from the families (run this module to do so)."""

from pathlib import Path

from gatepost.telemetry.family import BUILD, FAMILIES, Closed, Family

PAGE = Path(__file__).resolve().parents[2] / "docs" / "telemetry.md"
MOST_SHOWN = 8
BEGIN, END = "<!-- families -->\n", "<!-- end of families -->\n"


def label(family: Family) -> str:
    """The labels, with their values where these are known beforehand and few."""
    told = []
    for axis in family.axes:
        values = axis.values if isinstance(axis, Closed) and 1 < axis.size <= MOST_SHOWN else ()
        shown = " ".join(f"`{value}`" for value in values)
        told.append(f"`{axis.label}`: {shown}" if shown else f"`{axis.label}`")
    return "; ".join(told)


def table() -> str:
    """One row for each family."""
    rows = [
        f"| `{family.name}` | {family.kind} | {label(family)} | {family.meaning} |\n"
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
