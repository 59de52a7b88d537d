"""A table of HTML as one of Markdown, unless it only lays a page out."""

COLUMNS = 40
CELLS = 100_000
CELL_CHARACTERS = 1_000
"""A longer cell makes its table layout: nobody reads a paragraph in a column."""


class Table:
    """Takes what stands in its cells, as these come."""

    def __init__(self) -> None:
        self._rows: list[list[list[str]]] = []
        self._spread = False

    def row(self) -> None:
        """Begin a row."""
        self._rows.append([])

    def cell(self) -> None:
        """Begin a cell, in a row of its own where none was begun."""
        if not self._rows:
            self.row()
        self._rows[-1].append([])

    def takes(self, text: str) -> bool:
        """Keep what stands in a cell; false for a table that was spread, or before any cell."""
        if self._spread or not self._rows or not self._rows[-1]:
            return False
        self._rows[-1][-1].append(text)
        return True

    def spread(self) -> list[str]:
        """What it holds so far, one after the other; it takes nothing any longer."""
        held = [text for row in self._rows for cell in row for text in cell]
        self._rows.clear()
        self._spread = True
        return held

    def written(self, *, marks: bool) -> str | None:
        """As text; None when it is none that reads as a table."""
        rows = [[_flat(cell) for cell in row[:COLUMNS]] for row in self._rows if row]
        width = max(map(len, rows), default=0)
        if width == 1 or len(rows) * width > CELLS:
            return None
        if any(len(text) > CELL_CHARACTERS for row in rows for text in row):
            return None
        if not marks:
            return "\n".join("\t".join(row) for row in rows)
        lines = [f"| {' | '.join(_padded(row, width))} |" for row in rows]
        if lines:
            lines.insert(1, "|" + " --- |" * width)
        return "\n".join(lines)


def _flat(cell: list[str]) -> str:
    return " ".join(" ".join(cell).split())


def _padded(row: list[str], width: int) -> list[str]:
    return [text.replace("|", "\\|") for text in row] + [""] * (width - len(row))
