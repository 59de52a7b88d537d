"""Which elements are open, however carelessly a page closes them, in constant time a step."""

from collections import defaultdict

DEPTH = 400
"""Elements within elements; deeper ones are not there, and their text belongs to the deepest."""

VOID = frozenset(
    {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param"}
    | {"source", "track", "wbr"}
)
CELLS = frozenset({"td", "th", "caption"})
ROWS = frozenset({"tr", "tbody", "thead", "tfoot"})
FORMATTING = frozenset({"a", "b", "code", "em", "font", "i", "s", "small", "span", "strong", "u"})
BLOCKS = frozenset(
    {"address", "article", "aside", "blockquote", "body", "center", "dd", "details", "div", "dl"}
    | {"dt", "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5"}
    | {"h6", "header", "hr", "html", "li", "main", "menu", "nav", "ol", "p", "pre", "section"}
    | {"summary", "table", "ul"}
)

# What a start tag closes before it opens (HTML standard, section 13.1.2.4), and past what it
# does not look.
IMPLIED = {
    "li": (("li",), ("ul", "ol", "menu", "table")),
    "dt": (("dt", "dd"), ("dl", "table")),
    "dd": (("dt", "dd"), ("dl", "table")),
    "td": (("td", "th", "caption"), ("table",)),
    "th": (("td", "th", "caption"), ("table",)),
    "tr": (("td", "th", "tr", "caption"), ("table",)),
    "tbody": (("td", "th", "tr", "caption", "thead", "tbody"), ("table",)),
    "tfoot": (("td", "th", "tr", "caption", "thead", "tbody"), ("table",)),
    "a": (("a",), ("table", "li", "td", "th")),
    "body": (("head",), ()),
}
IN_P = ("td", "th", "li", "blockquote", "table", "template", "object", "svg")


class Stack:
    """The names of the open elements, outermost first."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._places: dict[str, list[int]] = defaultdict(list)

    def __len__(self) -> int:
        return len(self._names)

    @property
    def top(self) -> str:
        """The innermost; empty when nothing is open."""
        return self._names[-1] if self._names else ""

    def holds(self, *names: str) -> bool:
        """Whether one of these is open."""
        return any(self._places.get(name) for name in names)

    def open(self, name: str) -> bool:
        """Open an element, unless it can hold nothing or everything is too deep."""
        if name in VOID or len(self._names) >= DEPTH:
            return False
        self._places[name].append(len(self._names))
        self._names.append(name)
        return True

    def implied(self, name: str) -> list[str]:
        """Close what a start tag closes; the names, innermost first."""
        closed = self.close("p", IN_P) if name in BLOCKS else []
        if name in IMPLIED:
            closes, barriers = IMPLIED[name]
            for other in closes:
                closed += self.close(other, barriers)
        return closed

    def ended(self, name: str) -> list[str]:
        """Close what an end tag closes; the names, innermost first."""
        if name in CELLS or name in ROWS:
            barriers: tuple[str, ...] = ("table", "template")
        elif name in FORMATTING:
            barriers = ("td", "th", "li", "blockquote", "table", "ul", "ol")
        else:
            barriers = ("template",) if name == "table" else ("td", "th", "caption", "template")
        return self.close(name, barriers)

    def close(self, name: str, barriers: tuple[str, ...] = ()) -> list[str]:
        """Close the innermost *name* and all in it, unless something of *barriers* is nearer."""
        places = self._places.get(name)
        if not places or any(self._top(other) > places[-1] for other in barriers):
            return []
        return self.down_to(places[-1])

    def down_to(self, depth: int) -> list[str]:
        """Close what is deeper than *depth*; the names, innermost first."""
        closed = self._names[depth:][::-1]
        del self._names[depth:]
        for name in closed:
            self._places[name].pop()
        return closed

    def _top(self, name: str) -> int:
        places = self._places.get(name)
        return places[-1] if places else -1
