"""Arguments as a person reads them: a tree of plain values, within bounds that are told."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from gatepost.approvals.verbatim import Number, compact, decoded, quoted

NodeKind = Literal["text", "number", "flag", "null", "object", "list", "table", "raw"]

_OTHER = re.compile(r"-?[0-9][0-9.eE+-]*|true|false|null|")

MOST_NODES = 1_500
MOST_DEPTH = 12
MOST_TEXT = 100_000
"""Characters of all texts of one tree together; what is beyond is told, and can be downloaded."""
LONG_LINES, LONG_TEXT = 14, 1_200
"""From where on a text is collapsed."""
HEAD_LINES = 8
MOST_COLUMNS, MOST_CELL = 8, 80
"""Of a list that is shown as a table: what is wider or longer is a tree."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One value with its name (a member's, or its place in a list)."""

    name: str
    kind: NodeKind
    text: str = ""
    nodes: tuple["Node", ...] = ()
    size: int = 0
    """Of a text its characters, of an object or a list its members; all of them, shown or not."""
    missing: int = 0
    """How many of them are not shown."""
    columns: tuple[str, ...] = ()
    """Of a table, whose nodes are its rows; a row has a node for each column it fills."""

    @property
    def is_long(self) -> bool:
        """Whether a page shows only its beginning at first."""
        return len(self.text) > LONG_TEXT or self.text.count("\n") >= LONG_LINES

    @property
    def head(self) -> str:
        """The beginning of a long text."""
        return "\n".join(self.text[:LONG_TEXT].split("\n")[:HEAD_LINES])

    @property
    def lines(self) -> int:
        """How many lines its text has."""
        return self.text.count("\n") + 1

    @property
    def is_block(self) -> bool:
        """Whether its text needs more room than a line."""
        return len(self.text) > 72 or "\n" in self.text

    @property
    def is_ambiguous(self) -> bool:
        """Whether a text reads like a value of another kind."""
        return self.kind == "text" and bool(_OTHER.fullmatch(self.text))

    @property
    def cells(self) -> Mapping[str, "Node"]:
        """Of a table's row its nodes by column."""
        return {node.name: node for node in self.nodes}

    @property
    def is_whole(self) -> bool:
        """Whether it shows everything that is in it."""
        return not self.missing and all(node.is_whole for node in self.nodes)


def tree(value: Any, name: str = "") -> Node:
    """The value as a node, of at most `MOST_NODES` and `MOST_TEXT`."""
    return _Reader().node(value, name, 0)


def read(encoded: bytes) -> Node:
    """A JSON document as a node; one that is none as its text."""
    try:
        return tree(decoded(encoded))
    except (ValueError, RecursionError):
        text = encoded.decode(errors="replace")
        return _Reader().text(text, "", "raw")


class _Reader:
    def __init__(self) -> None:
        self._nodes, self._text = MOST_NODES, MOST_TEXT

    def node(self, value: Any, name: str, depth: int) -> Node:
        self._nodes -= 1
        match value:
            case None:
                return Node(name=name, kind="null", text="null")
            case bool():
                return Node(name=name, kind="flag", text="true" if value else "false")
            case Number() | int() | float():
                return self.text(str(value), name, "number")
            case str():
                return self.text(value, name, "text")
        if depth >= MOST_DEPTH:
            return self.text(compact(value), name, "raw")
        return self._members(value, name, depth)

    def text(self, text: str, name: str, kind: NodeKind) -> Node:
        told = text[: max(self._text, 0)]
        self._text -= len(told)
        return Node(name=name, kind=kind, text=told, size=len(text), missing=len(text) - len(told))

    def _members(self, value: Any, name: str, depth: int) -> Node:
        named = isinstance(value, Mapping)
        members = value.items() if named else ((str(at), one) for at, one in enumerate(value, 1))
        nodes: list[Node] = []
        for key, inner in members:
            if self._nodes <= 0:
                break
            nodes.append(self.node(inner, key, depth + 1))
        columns = () if named else columns_of(value)
        return Node(
            name=name,
            kind="object" if named else "table" if columns else "list",
            columns=columns,
            nodes=tuple(nodes),
            size=len(value),
            missing=len(value) - len(nodes),
        )


def columns_of(items: Sequence[Any]) -> tuple[str, ...]:
    """The columns of a list that is a table: small flat objects, all much alike; else none."""
    names: dict[str, None] = {}
    for item in items:
        if not isinstance(item, Mapping) or not item or not all(map(_is_cell, item.values())):
            return ()
        names.update(dict.fromkeys(item))
        if len(names) > MOST_COLUMNS:
            return ()
    return tuple(names)


def _is_cell(value: Any) -> bool:
    if isinstance(value, Number) or not isinstance(value, str):
        return not isinstance(value, Mapping | list)
    return len(value) <= MOST_CELL and "\n" not in value


def laid_out(value: Any, indent: str = "") -> str:
    """A value as JSON over several lines, for a person to edit."""
    inner = indent + "  "
    if isinstance(value, Mapping) and value:
        members = (f"{inner}{quoted(k)}: {laid_out(v, inner)}" for k, v in value.items())
        return f"{{\n{_lines(members)}\n{indent}}}"
    if isinstance(value, list) and value:
        items = (inner + laid_out(v, inner) for v in value)
        return f"[\n{_lines(items)}\n{indent}]"
    return compact(value)


def _lines(parts: Iterable[str]) -> str:
    return ",\n".join(parts)


def summary(encoded: bytes, most: int = 3) -> list[tuple[str, str]]:
    """The first arguments, each as a name and the beginning of its value, for a list."""
    try:
        value = decoded(encoded)
    except ValueError:
        return []
    if not isinstance(value, Mapping):
        return []
    told: list[tuple[str, str]] = []
    for name, inner in list(value.items())[:most]:
        text = inner if isinstance(inner, str) else compact(inner)
        told.append((name, text[:120]))
    return told
