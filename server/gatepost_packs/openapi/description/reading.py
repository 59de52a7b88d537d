"""Turn a description's bytes, YAML or JSON, into JSON of bounded size and depth."""

import math
import re
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

import msgspec
import yaml

MOST_BYTES = 20_000_000
"""Largest description; GitHub's has thirteen million bytes."""
DEPTH = 100
MOST_WEIGHT = 60_000_000
"""Characters of the expanded YAML, aliases included, counting `NODE` for each node."""
NODE = 8

AT_ONCE = 65_536
STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
NO_BRACKETS = bytes(set(range(256)) - STEPS.keys())

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# YAML 1.2's core schema, as OpenAPI asks for it: `on`, `no` and dates are strings.
CONSTANTS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})", re.ASCII)
NUMBER = re.compile(
    r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]{1,3})?", re.ASCII
)


class DescriptionUnreadable(ValueError):
    """The bytes are not a description; the message is a sentence for the author."""


def canonical(data: bytes) -> bytes:
    """Return the description as JSON whose outermost value is an object; raise Unreadable."""
    if len(data) > MOST_BYTES:
        raise DescriptionUnreadable(
            f"The description has {len(data)} bytes; at most {MOST_BYTES} are allowed."
        )
    data = data.removeprefix(b"\xef\xbb\xbf")
    wrong = None
    if data.lstrip()[:1] == b"{":
        try:
            return _checked(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            wrong = DescriptionUnreadable(f"The description is not valid JSON: {error}.")
        except RecursionError:
            raise _too_deep() from None
    try:
        return _encoded(_plain(data))
    except DescriptionUnreadable as error:
        raise wrong or error from None


def _checked(data: bytes) -> bytes:
    data.decode()  # the decoder does not check strings that are not decoded
    data = msgspec.json.format(data, indent=-1)
    msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    if _depth(data) > DEPTH:
        raise _too_deep()
    return data


def _depth(data: bytes) -> int:
    """Return the nesting depth of valid JSON."""
    # The time depends only on the length. One expression over a long string would block the
    # interpreter for seconds.
    bare = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = b"".join(bare.split(b'"')[::2]).translate(None, NO_BRACKETS)
    deepest = depth = 0
    for at in range(0, len(brackets), AT_ONCE):
        levels = [*accumulate(map(STEPS.__getitem__, brackets[at : at + AT_ONCE]), initial=depth)]
        deepest, depth = max(deepest, max(levels)), levels[-1]
    return deepest


def _plain(data: bytes) -> Any:
    try:
        return _Builder().built(yaml.parse(data, Loader=_LOADER))
    except yaml.YAMLError as error:
        place = getattr(error, "problem_mark", None)
        where = f" at line {place.line + 1}" if place is not None else ""
        what = getattr(error, "problem", None) or "it cannot be read"
        raise DescriptionUnreadable(f"The description is not valid YAML{where}: {what}.") from None


def _encoded(value: Any) -> bytes:
    if not isinstance(value, dict):
        raise DescriptionUnreadable(
            "The description must be an object with `openapi` or `swagger` in it."
        )
    try:
        encoded = msgspec.json.encode(value)
    except (UnicodeEncodeError, RecursionError):
        raise DescriptionUnreadable(
            "The description holds text that is not valid Unicode."
        ) from None
    if len(encoded) > 2 * MOST_BYTES:
        raise DescriptionUnreadable(
            "The description is too large after expanding its YAML aliases."
        )
    return encoded


def _too_deep() -> DescriptionUnreadable:
    return DescriptionUnreadable(f"The description is nested deeper than {DEPTH} levels.")


class _Builder:
    """
    Builds the value from the parser's events, without recursion and within bounds.

    An alias counts with the size of its target, so a bomb of aliases is noticed where it would
    expand.
    """

    def __init__(self) -> None:
        self.root: Any = None
        self.documents = 0
        self.weight = 0
        self._open: list[tuple[Any, str | None, int]] = []
        self._key: list[Any] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._takes: dict[type, Callable[[Any], None]] = {
            yaml.ScalarEvent: self._scalar,
            yaml.MappingStartEvent: self._mapping,
            yaml.SequenceStartEvent: self._sequence,
            yaml.MappingEndEvent: self._end,
            yaml.SequenceEndEvent: self._end,
            yaml.AliasEvent: self._alias,
            yaml.DocumentStartEvent: self._document,
        }

    def built(self, events: Iterator[Any]) -> Any:
        takes = self._takes
        for event in events:
            take = takes.get(type(event))
            if take is not None:
                take(event)
        return self.root

    def _document(self, _: Any) -> None:
        self.documents += 1
        if self.documents > 1:
            raise DescriptionUnreadable(
                "The description consists of several YAML documents; give one."
            )

    def _scalar(self, event: Any) -> None:
        _refuse_tag(event)
        text = event.value
        self._weigh(len(text) + NODE)
        expects_key = bool(self._open) and self._awaits_key()
        value = text if expects_key or not event.implicit[0] else _meant(text)
        if event.anchor:
            self._anchors[event.anchor] = value, len(text) + NODE
        self._put(value)

    def _mapping(self, event: Any) -> None:
        self._begin(event, {})

    def _sequence(self, event: Any) -> None:
        self._begin(event, [])

    def _begin(self, event: Any, container: Any) -> None:
        _refuse_tag(event)
        if len(self._open) >= DEPTH:
            raise _too_deep()
        if self._open and self._awaits_key():
            raise DescriptionUnreadable("The description has a list or an object as a key.")
        self._open.append((container, event.anchor, self.weight))
        self._key.append(None)
        self._weigh(NODE)

    def _end(self, _: Any) -> None:
        container, anchor, before = self._open.pop()
        self._key.pop()
        if isinstance(container, dict) and "<<" in container:
            container = _merged(container)
        if anchor:
            self._anchors[anchor] = container, self.weight - before
        self._put(container)

    def _alias(self, event: Any) -> None:
        if event.anchor not in self._anchors:
            raise DescriptionUnreadable(
                f"The description's YAML alias *{event.anchor} has no anchor."
            )
        value, weight = self._anchors[event.anchor]
        self._weigh(weight)
        if self._open and self._awaits_key() and not isinstance(value, str):
            raise DescriptionUnreadable("The description has an alias as a key.")
        self._put(value)

    def _weigh(self, weight: int) -> None:
        self.weight += weight
        if self.weight > MOST_WEIGHT:
            raise DescriptionUnreadable(
                "The description is too large after expanding its YAML aliases."
            )

    def _awaits_key(self) -> bool:
        return isinstance(self._open[-1][0], dict) and self._key[-1] is None

    def _put(self, value: Any) -> None:
        if not self._open:
            self.root = value
            return
        container = self._open[-1][0]
        if isinstance(container, list):
            container.append(value)
        elif self._key[-1] is None:
            self._key[-1] = (value,)
        else:
            container[self._key[-1][0]] = value
            self._key[-1] = None


def _refuse_tag(event: Any) -> None:
    if event.tag is not None:
        raise DescriptionUnreadable(
            f"The description holds the YAML tag {event.tag}; it must be plain YAML."
        )


def _meant(text: str) -> Any:
    if text in CONSTANTS:
        return CONSTANTS[text]
    if not text[0].isdigit() and text[0] not in "+-.":
        return text
    if INTEGER.fullmatch(text):
        return int(text)
    if len(text) < 40 and NUMBER.fullmatch(text) and math.isfinite(number := float(text)):
        return number
    return text


def _merged(container: dict[str, Any]) -> dict[str, Any]:
    """
    Apply YAML 1.1's merge key, which handwritten descriptions use; own members take precedence.
    """
    own = dict(container)
    brought = own.pop("<<")
    merged: dict[str, Any] = {}
    for one in brought if isinstance(brought, list) else [brought]:
        if not isinstance(one, dict):
            raise DescriptionUnreadable(
                "The description merges (`<<`) a value that is not an object."
            )
        merged = {**one, **merged}
    return {**merged, **own}
