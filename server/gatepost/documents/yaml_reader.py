"""Read YAML of others as JSON values, within bounds."""

import math
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable
from typing import Any, Literal

import msgspec
import yaml

NODE_WEIGHT = 8
"""What each value weighs beside its characters."""

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

CONSTANTS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)", re.ASCII)
NUMBER = re.compile(
    r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]{1,3})?", re.ASCII
)
NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
LONGEST_NUMBER = 40
"""Characters; anything longer is text."""
LARGEST = 1 << 63
"""The first integer that JSON readers of 64 bits do not take."""

TAG_DIRECTIVE = re.compile(r"(?:\A\ufeff?|[\n\r\x85\u2028\u2029])%TAG")
"""The parser compares each one with all before it, in one call that lets no other thread run."""

Inexact = Literal["text", "nearest", "refused"]


class YamlError(ValueError):
    """A YAML text cannot be read; the message is the end of a sentence about it."""


class YamlLimits(msgspec.Struct, frozen=True):
    """Maximum size of a YAML text; a larger one is refused before it is built."""

    size: int
    """Bytes, or characters of a `str`."""
    depth: int
    """Lists and mappings within one another."""
    nodes: int
    """Values and keys, with those of aliases counted at each alias."""
    weight: int
    """Characters, with those of aliases likewise, and `NODE_WEIGHT` for each node."""


def read_yaml(
    text: bytes | str,
    limits: YamlLimits,
    *,
    inexact: Inexact = "text",
    merges: bool = True,
    first_line: int = 1,
) -> Any:
    """
    Return the value of one YAML document as JSON values; None for an empty one.

    YAML 1.2's core schema applies: `on`, dates and `0x10` are text, and so are numbers with zeros
    in front. Keys are text as they were written. Tags, keys that stand twice, keys that are lists
    or mappings, and a second document are refused. `<<` merges mappings (*merges*), otherwise it is
    a plain key.

    *inexact* says what becomes of a value that JSON cannot express: an integer of more than 64
    bits, `.nan` and `.inf`, a number as a key. It is text as it was written; or the integer is the
    nearest double; or it is refused. A number of more than 40 characters, or with an exponent of
    more than three digits, is always text. *first_line* is the number of the first line, for
    messages. Raises YamlError.
    """
    if len(text) > limits.size:
        raise YamlError(f"is longer than {limits.size} bytes")
    builder = _Builder(limits, inexact, merges=merges)
    try:
        decoded = text if isinstance(text, str) else _decoded(text)
        if "%TAG" in decoded and TAG_DIRECTIVE.search(decoded):
            raise YamlError("has a %TAG line, which is not supported")
        return builder.built(decoded)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        position = f" at line {mark.line + first_line}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "it cannot be read"
        raise YamlError(f"is not valid YAML{position}: {problem}") from None
    except UnicodeError:
        raise YamlError("holds text that is not valid Unicode") from None


def _decoded(text: bytes) -> str:
    """Return the text in the encoding that its first bytes name (YAML 1.2 section 5.2)."""
    return text.decode("utf-16" if text[:2] in (BOM_UTF16_LE, BOM_UTF16_BE) else "utf-8-sig")


class _Builder:
    """
    Builds the value from the parser's events, without recursion and within bounds.

    The library's own loaders recurse, in C as well: thousands of brackets would end the process.
    They also build a bomb of aliases or merges before anyone can count it. Here an alias counts
    with the size of its target, so a bomb is noticed where it would expand.
    """

    def __init__(self, limits: YamlLimits, inexact: Inexact, *, merges: bool) -> None:
        self._limits = limits
        self._inexact: Inexact = inexact
        self._merges = merges
        self._root: Any = None
        self._documents = 0
        self._nodes = 0
        self._weight = 0
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[Any, int, int]] = {}
        self._handlers: dict[type, Callable[[Any], None]] = {
            yaml.ScalarEvent: self._scalar,
            yaml.MappingStartEvent: self._mapping,
            yaml.SequenceStartEvent: self._sequence,
            yaml.MappingEndEvent: self._end,
            yaml.SequenceEndEvent: self._end,
            yaml.AliasEvent: self._alias,
            yaml.DocumentStartEvent: self._document,
        }

    def built(self, text: str) -> Any:
        handlers = self._handlers
        for event in yaml.parse(text, Loader=_LOADER):
            take = handlers.get(type(event))
            if take is not None:
                take(event)
        return self._root

    def _document(self, _: Any) -> None:
        self._documents += 1
        if self._documents > 1:
            raise YamlError("consists of several YAML documents; give one")

    def _scalar(self, event: Any) -> None:
        if event.tag is not None:
            raise _tagged(event)
        text = event.value
        is_plain = event.implicit[0]
        weight = len(text) + NODE_WEIGHT
        self._count(1, weight)
        if not is_plain and not text.isascii():
            text.encode()  # half a surrogate pair can be written as an escape
        if event.anchor:
            self._anchors[event.anchor] = self._value(text, is_plain=is_plain), 1, weight
        opened = self._open[-1] if self._open else None
        if opened is not None and opened.awaits_key:
            self._key(opened, text, is_plain=is_plain)
        else:
            self._put(self._value(text, is_plain=is_plain))

    def _value(self, text: str, *, is_plain: bool) -> Any:
        return _resolved(text, self._inexact) if is_plain else text

    def _key(self, opened: "_Open", text: str, *, is_plain: bool) -> None:
        if (
            is_plain
            and self._inexact == "refused"
            and not isinstance(_resolved(text, "refused"), str)
        ):
            raise YamlError(f"has the key {text[:40]}, which is not text")
        opened.begin_key(text, merge=is_plain and self._merges and text == "<<")

    def _mapping(self, event: Any) -> None:
        self._begin(event, {})

    def _sequence(self, event: Any) -> None:
        self._begin(event, [])

    def _begin(self, event: Any, container: Any) -> None:
        if event.tag is not None:
            raise _tagged(event)
        if len(self._open) >= self._limits.depth:
            raise YamlError(f"is nested deeper than {self._limits.depth} levels")
        if self._open and self._open[-1].awaits_key:
            raise YamlError("has a list or an object as a key")
        self._open.append(_Open(container, event.anchor, self._nodes, self._weight))
        self._count(1, NODE_WEIGHT)

    def _end(self, _: Any) -> None:
        opened = self._open.pop()
        value = opened.finished()
        if opened.anchor:
            self._anchors[opened.anchor] = (
                value, self._nodes - opened.nodes, self._weight - opened.weight,
            )  # fmt: skip
        self._put(value)

    def _alias(self, event: Any) -> None:
        if event.anchor not in self._anchors:
            raise YamlError(f"has the YAML alias *{event.anchor[:40]}, which has no anchor")
        value, nodes, weight = self._anchors[event.anchor]
        self._count(nodes, weight)
        opened = self._open[-1] if self._open else None
        if opened is None or not opened.awaits_key:
            self._put(value)
        elif isinstance(value, str):
            opened.begin_key(value, merge=False)
        else:
            raise YamlError("has an alias as a key")

    def _count(self, nodes: int, weight: int) -> None:
        self._nodes += nodes
        self._weight += weight
        if self._weight > self._limits.weight or self._nodes > self._limits.nodes:
            raise YamlError("is too large with its YAML aliases expanded")

    def _put(self, value: Any) -> None:
        if self._open:
            self._open[-1].put(value)
        else:
            self._root = value


class _Open:
    """A list or mapping whose end has not been read."""

    __slots__ = (
        "_container",
        "_is_list",
        "_key",
        "_merged",
        "anchor",
        "awaits_key",
        "nodes",
        "weight",
    )

    def __init__(self, container: Any, anchor: str | None, nodes: int, weight: int) -> None:
        self._container = container
        self._is_list = isinstance(container, list)
        self._key: str | None = None
        """None beside a value that is to be merged."""
        self._merged: Any = None
        self.anchor = anchor
        self.awaits_key = not self._is_list
        self.nodes = nodes
        self.weight = weight

    def begin_key(self, key: str, *, merge: bool) -> None:
        if (self._merged is not None) if merge else key in self._container:
            raise YamlError(f"has the key {key[:40]!r} twice")
        self._key = None if merge else key
        self.awaits_key = False

    def put(self, value: Any) -> None:
        if self._is_list:
            self._container.append(value)
            return
        if self._key is None:
            self._merged = value if isinstance(value, list) else [value]
        else:
            self._container[self._key] = value
        self.awaits_key = True

    def finished(self) -> Any:
        """Apply the merge key, which people use in what they write; own members take precedence."""
        if self._merged is None:
            return self._container
        merged: dict[str, Any] = {}
        for mapping in self._merged:
            if not isinstance(mapping, dict):
                raise YamlError("merges (`<<`) a value that is not an object")
            # A new dictionary for each would make a long list of mappings cost its square.
            for key, value in mapping.items():
                merged.setdefault(key, value)
        return {**merged, **self._container}


def _tagged(event: Any) -> YamlError:
    return YamlError(f"has the YAML tag {event.tag[:40]}, which is not read")


def _resolved(text: str, inexact: Inexact) -> Any:
    """Return the value of a plain scalar."""
    if text in CONSTANTS:
        return CONSTANTS[text]
    if not text[0].isdigit() and text[0] not in "+-.":
        return text
    if len(text) < LONGEST_NUMBER:
        if INTEGER.fullmatch(text):
            number: int | float = int(text)
            if -LARGEST <= number < LARGEST:
                return number
            if inexact == "nearest":
                return float(number)
        elif NUMBER.fullmatch(text) and math.isfinite(number := float(text)):
            return number
    if inexact == "refused" and (NUMBER.fullmatch(text) or NOT_FINITE.fullmatch(text)):
        raise YamlError(f"holds {text[:40]}, which JSON cannot express")
    return text
