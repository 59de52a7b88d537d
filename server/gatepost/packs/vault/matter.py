"""The front matter of a note: YAML between two lines of `---`, read as JSON, changed in place."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import yaml

MOST_BYTES = 64_000
"""Of a front matter; a longer one is text."""
MOST_DEPTH = 16
MOST_NODES = 10_000
"""Values in it once its anchors are followed: nine lines of YAML can mean a billion."""

OPENING = re.compile(r"\ufeff?---[ \t]*\r?\n")
CLOSING = re.compile(r"^---[ \t]*(?:\r?\n|\Z)", re.MULTILINE)
LINE_BREAK = re.compile(r"\r?\n")


class Matter(msgspec.Struct, frozen=True):
    """What stands before a note's text, and the text."""

    values: Mapping[str, Any] | None
    """None: there is none that can be read."""
    yaml: str
    """Between the two lines, as it was written."""
    raw: str
    """All that stands before the text, the two lines included."""
    body: str
    problem: str | None = None
    """Why the front matter was not read, as a sentence; it is part of the text then."""


class Unreadable(ValueError):
    """A front matter that is none; the message is the end of a sentence about it."""


def split(text: str) -> Matter:
    """Take a note apart; one whose front matter cannot be read is all text."""
    opening = OPENING.match(text)
    closing = CLOSING.search(text, opening.end(), opening.end() + MOST_BYTES) if opening else None
    if opening is None or closing is None:
        return Matter(None, "", "", text)
    inside = text[opening.end() : closing.start()]
    try:
        values = values_of(inside)
    except Unreadable as error:
        return Matter(None, inside, "", text, f"The front matter {error}, so it is shown as text.")
    return Matter(values, inside, text[: closing.end()], text[closing.end() :])


def values_of(text: str) -> dict[str, Any]:
    """The names and values that a YAML text says, as JSON has them; raises Unreadable."""
    try:
        _vet(text)
        read = yaml.load(text, Loader=Loader)  # noqa: S506  # a SafeLoader without dates
        plain = _Plain().of({} if read is None else read)
    except yaml.YAMLError as error:
        place = getattr(error, "problem_mark", None)
        where = f" (line {place.line + 2})" if place is not None else ""
        raise Unreadable(f"is not YAML{where}") from None
    except (ValueError, TypeError, OverflowError) as error:
        told = str(error) if isinstance(error, Unreadable) else "holds a value that is none"
        raise Unreadable(told) from None
    if not isinstance(plain, dict):
        raise Unreadable("is not names and values")
    return plain


def merged(old: Matter, changes: Mapping[str, Any]) -> str:
    """
    The front matter with *changes* made to it: a value replaces, null removes.

    What is not changed stays as it was written, comments included. Raises Unreadable when the
    values cannot be written, and when there is one that cannot be read.
    """
    if old.problem is not None:
        raise Unreadable(old.problem)
    before = dict(old.values or {})
    gone = {name for name, value in changes.items() if value is None}
    wanted = _Plain().of({k: v for k, v in {**before, **changes}.items() if k not in gone})
    line = "\r\n" if "\r\n" in old.raw else "\n"
    text = _in_place(old.yaml, before, changes)
    if text is None or _reread(text) != wanted:
        text = _written(wanted)
        if _reread(text) != wanted:
            raise Unreadable("holds a value that YAML cannot say")
    if not wanted and not text.strip():
        return ""
    whole = LINE_BREAK.sub(line, f"---\n{text}---\n")
    if len(whole.encode()) > MOST_BYTES:
        raise Unreadable(f"would have more than {MOST_BYTES} bytes")
    return whole


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # C where there is one
    """YAML's JSON part: a date stays the text that its author wrote."""


class Dumper(yaml.SafeDumper):
    """Writes what Loader reads: a text that looks like a date needs no quotes."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write everything out where it stands."""
        return True


# Nor is `<<` more than a name: eight lines of mappings that take in one another ten times over are
# a hundred million entries before anything of ours sees them. Other readers take it for more, so
# it is written with quotes.
for _kind, _left_out in ((Loader, {"timestamp", "merge"}), (Dumper, {"timestamp"})):
    _kind.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in rules if tag.rpartition(":")[2] not in _left_out]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _vet(text: str) -> None:
    """
    Look at the parts one by one before anything is made of them.

    The fast loader recurses in C, where thousands of brackets overflow the stack and end the
    process; and what a tag asks for is made by whatever it names.
    """
    depth = 0
    for event in yaml.parse(text, Loader=Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MOST_DEPTH:
            raise Unreadable(f"is deeper than {MOST_DEPTH} levels")
        tag = getattr(event, "tag", None)
        if tag not in (None, "!"):
            raise Unreadable(f"has a tag ({tag[:40]}), which is not read")


class _Plain:
    """Turns what YAML said into JSON, with a bound on how much that may become."""

    def __init__(self) -> None:
        self._left = MOST_NODES

    def of(self, value: Any, depth: int = 0) -> Any:
        self._left -= 1
        if self._left < 0 or depth > MOST_DEPTH:
            raise Unreadable("says more than a front matter should")
        if isinstance(value, Mapping):
            return {_name(key): self.of(inner, depth + 1) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.of(inner, depth + 1) for inner in value]
        if isinstance(value, float) and not math.isfinite(value):
            return str(value)
        if isinstance(value, int) and abs(value) >= 1 << 63:
            return str(value)
        if isinstance(value, str | int | float | bool | None):
            return value
        raise Unreadable(f"holds a {type(value).__name__}, which JSON cannot say")


def _name(key: Any) -> str:
    if isinstance(key, str):
        return key
    return yaml.safe_dump(key).splitlines()[0]


def _reread(text: str) -> dict[str, Any] | None:
    try:
        return values_of(text)
    except Unreadable:
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
    """The same text with the lines of what changes replaced; None where it has no such lines."""
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
                end -= 1  # what stands before the next name belongs to that
            value = changes[name]
            lines[start:end] = [] if value is None else [_written({name: value})]
    fresh = {k: v for k, v in changes.items() if k not in before and v is not None}
    return "".join(lines) + _written(fresh)


def _spans(text: str, end: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """From which line to which each name and its value go; nothing unless each begins one."""
    root = yaml.compose(text, Loader=Loader)
    if not isinstance(root, yaml.MappingNode) or root.flow_style:
        return
    starts = [key.start_mark for key, _ in root.value]
    if any(mark.column for mark in starts):
        return
    for at, (key, _) in enumerate(root.value):
        after = starts[at + 1].line if at + 1 < len(starts) else end
        yield _name(_key_of(key)), (starts[at].line, after)


def _key_of(node: Any) -> Any:
    return yaml.load(yaml.serialize(node), Loader=Loader)  # noqa: S506  # see values_of
