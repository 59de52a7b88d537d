"""Arguments as a bounded tree of values for the pages."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Literal

import msgspec

from gatepost.documents.exact_json import ExactNumber, compact, decoded, quoted

NodeKind = Literal["text", "number", "flag", "null", "object", "list", "table", "raw"]

_OTHER = re.compile(r"-?[0-9][0-9.eE+-]*|true|false|null|")

MAX_NODES = 1_500
MAX_DEPTH = 12
MAX_TEXT = 100_000
"""Maximum number of characters of all texts of a tree; the rest can be downloaded."""
LONG_LINES, LONG_TEXT = 14, 1_200
"""Lines and characters from which a text is collapsed."""
HEAD_LINES = 8
MAX_COLUMNS, MAX_CELL = 8, 80
"""Limits of a list that is shown as a table; other lists are shown as trees."""
SUMMARY_CHARACTERS = 120
DECODED_BYTES = 2_000
"""The largest object or list of which a summary shows the beginning in the form of the pages."""

_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One value with its name, which is a member's name or a position in a list."""

    name: str
    kind: NodeKind
    text: str = ""
    nodes: tuple["Node", ...] = ()
    size: int = 0
    """Number of characters of a text, or of members of an object or list, shown or not."""
    missing: int = 0
    """How many of them are not shown."""
    columns: tuple[str, ...] = ()
    """The columns of a table. Its nodes are rows; a row has a node for each column it fills."""

    @property
    def is_long(self) -> bool:
        """Return whether the page collapses the text."""
        return len(self.text) > LONG_TEXT or self.text.count("\n") >= LONG_LINES

    @property
    def head(self) -> str:
        """Return the beginning of a long text."""
        return "\n".join(self.text[:LONG_TEXT].split("\n")[:HEAD_LINES])

    @property
    def lines(self) -> int:
        """Return the number of lines of the text."""
        return self.text.count("\n") + 1

    @property
    def is_block(self) -> bool:
        """Return whether the text needs more than one line."""
        return len(self.text) > 72 or "\n" in self.text

    @property
    def is_ambiguous(self) -> bool:
        """Return whether the text looks like a value of another type."""
        return self.kind == "text" and bool(_OTHER.fullmatch(self.text))

    @property
    def cells(self) -> Mapping[str, "Node"]:
        """Return the nodes of a table row by column."""
        return {node.name: node for node in self.nodes}

    @property
    def is_whole(self) -> bool:
        """Return whether the node shows everything."""
        return not self.missing and all(node.is_whole for node in self.nodes)


def tree(value: Any) -> Node:
    """Return the value as a node with at most `MAX_NODES` nodes and `MAX_TEXT` characters."""
    return _TreeReader().node(value, "", 0)


def read(encoded: bytes) -> Node:
    """Return a JSON document as a node; text that is not JSON as a text node."""
    try:
        return tree(decoded(encoded))
    except (ValueError, RecursionError):
        text = encoded.decode(errors="replace")
        return _TreeReader().text(text, "", "raw")


class _TreeReader:
    def __init__(self) -> None:
        self._nodes, self._text = MAX_NODES, MAX_TEXT

    def node(self, value: Any, name: str, depth: int) -> Node:
        self._nodes -= 1
        match value:
            case None:
                return Node(name=name, kind="null", text="null")
            case bool():
                return Node(name=name, kind="flag", text="true" if value else "false")
            case ExactNumber() | int() | float():
                return self.text(str(value), name, "number")
            case str():
                return self.text(value, name, "text")
        if depth >= MAX_DEPTH:
            return self.text(compact(value), name, "raw")
        return self._members(value, name, depth)

    def text(self, text: str, name: str, kind: NodeKind) -> Node:
        visible = text[: max(self._text, 0)]
        self._text -= len(visible)
        return Node(
            name=name, kind=kind, text=visible, size=len(text), missing=len(text) - len(visible)
        )

    def _members(self, value: Any, name: str, depth: int) -> Node:
        has_names = isinstance(value, Mapping)
        members = (
            value.items() if has_names else ((str(at), item) for at, item in enumerate(value, 1))
        )
        nodes: list[Node] = []
        for key, inner in members:
            if self._nodes <= 0:
                break
            nodes.append(self.node(inner, key, depth + 1))
        columns = () if has_names else columns_of(value)
        return Node(
            name=name,
            kind="object" if has_names else "table" if columns else "list",
            columns=columns,
            nodes=tuple(nodes),
            size=len(value),
            missing=len(value) - len(nodes),
        )


def columns_of(items: Sequence[Any]) -> tuple[str, ...]:
    """Return the columns of a list of small, similar objects; empty for other lists."""
    names: dict[str, None] = {}
    for item in items:
        if not isinstance(item, Mapping) or not item or not all(map(_is_cell, item.values())):
            return ()
        names.update(dict.fromkeys(item))
        if len(names) > MAX_COLUMNS:
            return ()
    return tuple(names)


def _is_cell(value: Any) -> bool:
    if isinstance(value, ExactNumber) or not isinstance(value, str):
        return not isinstance(value, Mapping | list)
    return len(value) <= MAX_CELL and "\n" not in value


def laid_out(value: Any, indent: str = "") -> str:
    """Return a value as indented JSON for editing."""
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


def summary(encoded: bytes, max_members: int = 3) -> list[tuple[str, str]]:
    """Return the names and the beginnings of the first arguments, for a list."""
    try:
        members = _decode_members(encoded).items()
        return [(name, _beginning(bytes(raw))) for name, raw in islice(members, max_members)]
    except (ValueError, RecursionError):
        return []


def _beginning(encoded: bytes) -> str:
    """Return the beginning of a value; to write fifty long ones anew would take seconds."""
    if len(encoded) > DECODED_BYTES and not encoded.startswith(b'"'):
        return encoded[:SUMMARY_CHARACTERS].decode(errors="ignore")
    value = decoded(encoded)
    return (value if isinstance(value, str) else compact(value))[:SUMMARY_CHARACTERS]
