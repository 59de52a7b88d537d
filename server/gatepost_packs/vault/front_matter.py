"""
Read the front matter of a note as JSON, and change it in place: YAML between two lines of `---`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import yaml

from gatepost import YamlError, YamlLimits, read_yaml

MAX_BYTES = 64_000
"""Bytes of a front matter; a longer one is text."""
MAX_CHANGED_BYTES = 3 * MAX_BYTES
"""
Bytes of changes as JSON, which is never three times as long as YAML; more cannot fit, and YAML
takes a second for each megabyte.
"""
LIMITS = YamlLimits(size=MAX_BYTES, depth=16, nodes=10_000, weight=1_000_000)
"""Nodes after expanding anchors: nine lines of YAML can mean a billion."""

OPENING = re.compile(r"\ufeff?---[ \t]*\r?\n")
CLOSING = re.compile(r"^---[ \t]*(?:\r?\n|\Z)", re.MULTILINE)
LINE_BREAK = re.compile(r"\r?\n")


class FrontMatter(msgspec.Struct, frozen=True):
    """A note's front matter and its text."""

    values: Mapping[str, Any] | None
    """None if there is none, or it cannot be read."""
    yaml: str
    """The text between the two lines, as it was written."""
    raw: str
    """Everything before the text, with the two lines."""
    body: str
    problem: str | None = None
    """Why the front matter was not read, as a sentence; it is then part of the text."""


class FrontMatterError(ValueError):
    """The front matter is invalid; the message is the end of a sentence about it."""


def split(text: str) -> FrontMatter:
    """Split a note; if its front matter cannot be read, all of it is text."""
    opening = OPENING.match(text)
    closing = CLOSING.search(text, opening.end(), opening.end() + MAX_BYTES) if opening else None
    if opening is None or closing is None:
        return FrontMatter(None, "", "", text)
    front_matter = text[opening.end() : closing.start()]
    try:
        values = values_of(front_matter)
    except FrontMatterError as error:
        return FrontMatter(
            None, front_matter, "", text, f"The front matter {error}, so it is shown as text."
        )
    return FrontMatter(values, front_matter, text[: closing.end()], text[closing.end() :])


def values_of(text: str) -> dict[str, Any]:
    """Return the names and values of a YAML text as JSON has them; raises FrontMatterError."""
    try:
        # Obsidian takes `<<` for a plain name.
        read = read_yaml(text, LIMITS, merges=False, first_line=2)
    except YamlError as error:
        raise FrontMatterError(str(error)) from None
    if read is None:
        return {}
    if not isinstance(read, dict):
        raise FrontMatterError("does not consist of names and values")
    return read


def merged(old: FrontMatter, changes: Mapping[str, Any]) -> str:
    """
    Return the front matter with *changes*: a value replaces, null removes.

    Unchanged lines stay as they were written, comments included. Raises FrontMatterError if the
    values cannot be written, or if the present front matter cannot be read.
    """
    if old.problem is not None:
        raise FrontMatterError(old.problem)
    if len(msgspec.json.encode(changes)) > MAX_CHANGED_BYTES:
        raise FrontMatterError(f"would have more than {MAX_BYTES} bytes")
    before = dict(old.values or {})
    removed = {name for name, value in changes.items() if value is None}
    properties = _writable({k: v for k, v in {**before, **changes}.items() if k not in removed})
    line = "\r\n" if "\r\n" in old.raw else "\n"
    text = _in_place(old.yaml, before, changes)
    if text is None or _reread(text) != properties:
        text = _written(properties)
        if len(text) <= MAX_BYTES and _reread(text) != properties:
            raise FrontMatterError("holds a value that YAML cannot express")
    if not properties and not text.strip():
        return ""
    block = LINE_BREAK.sub(line, f"---\n{text}---\n")
    if len(block.encode()) > MAX_BYTES:
        raise FrontMatterError(f"would have more than {MAX_BYTES} bytes")
    return block


class Dumper(yaml.SafeDumper):
    """Writes text that `read_yaml` reads back: a text that looks like a date needs no quotes."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write every value in full, without anchors."""
        return True


# The library follows YAML 1.1 and quotes what would be no text there: `yes`, `<<`. Readers of 1.1
# then read the same.
Dumper.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rules if tag.rpartition(":")[2] != "timestamp"]
    for first, rules in yaml.SafeDumper.yaml_implicit_resolvers.items()
}
# `1e3` and `-.5` are numbers in YAML 1.2 alone.
Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+\.?[0-9]*)(?:[eE][-+]?[0-9]+)?\Z", re.ASCII),
    list("-+.0123456789"),
)


def _writable(value: Any, depth: int = 0) -> Any:
    """Return a JSON value with its integers beyond 64 bits as text, as they are read again."""
    if depth > LIMITS.depth:
        raise FrontMatterError(f"would be nested deeper than {LIMITS.depth} levels")
    if isinstance(value, Mapping):
        return {key: _writable(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_writable(inner, depth + 1) for inner in value]
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return str(value)
    return value


def _reread(text: str) -> dict[str, Any] | None:
    try:
        return values_of(text)
    except FrontMatterError:
        return None


def _written(values: Mapping[str, Any]) -> str:
    if not values:
        return ""
    return yaml.dump(
        dict(values),
        Dumper=Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        width=1_000_000,
    )


def _in_place(text: str, before: Mapping[str, Any], changes: Mapping[str, Any]) -> str | None:
    """
    Return the text with the lines of changed names replaced; None if a name has no lines of its
    own.
    """
    lines = [f"{line}\n" for line in LINE_BREAK.split(text)]
    if lines and lines[-1] == "\n":
        lines.pop()
    try:
        spans = dict(_spans(text, len(lines)))
    except yaml.YAMLError:
        return None
    if set(spans) != set(before):
        return None
    for name, (start, end) in sorted(spans.items(), key=lambda span: -span[1][0]):
        if name in changes:
            while end > start + 1 and (not lines[end - 1].strip() or lines[end - 1][0] == "#"):
                end -= 1  # the lines before the next name belong to that name
            value = changes[name]
            lines[start:end] = [] if value is None else [_written({name: value})]
    fresh = {k: v for k, v in changes.items() if k not in before and v is not None}
    return "".join(lines) + _written(fresh)


def _spans(text: str, end: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """Return the lines of each name and its value; nothing unless each name begins a line."""
    # The text has been read within the limits, which bound the recursion here.
    root = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    if not isinstance(root, yaml.MappingNode) or root.flow_style:
        return
    starts = [key.start_mark for key, _ in root.value]
    if any(mark.column for mark in starts):
        return
    for at, (key, _) in enumerate(root.value):
        after = starts[at + 1].line if at + 1 < len(starts) else end
        yield key.value, (starts[at].line, after)
