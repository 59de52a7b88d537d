"""Clean the texts of upstreams: remove invisible characters, bound lengths, and report both."""

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from gatepost.tools.schemas.raw_schema import DATA
from gatepost.upstreams.compiled_schemas import compiled

MAX_TITLE = 256
MAX_DESCRIPTION = 8_192
MAX_SCHEMA_TEXT = 2_048
MAX_VALUE = 8_192
"""Maximum number of characters of a text that must not be changed, such as a value of an `enum`."""
MAX_DEPTH = 64
MAX_SHOWN = 200
"""Maximum number of characters of an upstream's key that a reason quotes."""

TEXTS = {"title": MAX_TITLE, "description": MAX_SCHEMA_TEXT, "$comment": MAX_SCHEMA_TEXT}
"""The keywords of a schema that only describe, with their most characters."""
SCHEMA_MAP_KEYWORDS = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
)
"""Keywords whose value is an object of schemas by names that the tool's author chose."""

# Default-ignorable characters that are not format characters, and blanks that are invisible.
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\uffa0\ufe00-\ufe0f"
    "\U000e0000-\U000e0fff]"
)
_HIDDEN = frozenset({"Cf", "Cc", "Cs", "Co", "Cn"})
_JOINER, _EMOJI_STYLE = "\u200d", "\ufe0f"
_LINES = re.compile("\r\n|[\r\u2028\u2029\x85]")


class Unusable(ValueError):
    """A definition cannot be offered; the message is the reason, and quotes no hidden text."""


def cleaned(text: str, max_chars: int) -> tuple[str, tuple[str, ...]]:
    """Cut a text to *max_chars*, without invisible characters; also return the report."""
    report: list[str] = []
    # Invisible characters could make a text of any size short, so the size is bounded first.
    if len(text) > max_chars * 4:
        text = text[: max_chars * 4]
        report.append("shortened")
    text = _LINES.sub("\n", text)
    if not _is_plain(text):
        visible = "".join(char for at, char in enumerate(text) if not _is_hidden(text, at))
        if visible != text:
            report.append("invisible characters removed")
            text = visible
    if len(text) > max_chars:
        text = text[: max_chars - 1] + "…"
        report.append("shortened")
    return text, tuple(dict.fromkeys(report))


def visible_line(text: str) -> str:
    """Return an untrusted text as a reason or a page may show it: one short visible line."""
    return " ".join(cleaned(text, MAX_SHOWN)[0].split())


def is_visible(text: str) -> bool:
    """Return whether a name has no invisible character, line break or tab."""
    return text.isprintable() and cleaned(text, MAX_VALUE) == (text, ())


def cleaned_schema(schema: Any) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """
    Return a schema with clean texts, and the report; raises Unusable.

    Names of properties, values and patterns are never changed, because the tool would not
    understand the changed ones.
    """
    if not isinstance(schema, Mapping):
        raise Unusable("the schema is not an object")
    check_depth(schema)
    report: set[str] = set()
    safe_schema = _schema(schema, report)
    return safe_schema, tuple(sorted(report))


def usable_input(schema: Mapping[str, Any]) -> None:
    """Raise Unusable unless a schema describes an object and can check arguments."""
    if schema.get("type") != "object":
        raise Unusable("its input schema does not have the type object")
    usable(schema, "input")


def usable(schema: Mapping[str, Any], kind: str) -> None:
    """Raise Unusable unless a schema can check values."""
    try:
        compiled(schema)
    except (ValueError, TypeError, AttributeError, RecursionError) as problem:
        raise Unusable(f"its {kind} schema cannot be used: {visible_line(str(problem))}") from None


def check_depth(value: Any) -> None:
    """Raise Unusable for a value that is nested too deeply."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for node in level for inner in _inside(node)]
        if not level:
            return
    raise Unusable(f"it is nested more than {MAX_DEPTH} levels deep")


def check_exact(value: Any, subject: str) -> None:
    """Raise Unusable if a value holds a text that cleaning would change."""
    if isinstance(value, str):
        if cleaned(value, MAX_VALUE) != (value, ()):
            raise Unusable(f"{subject} holds invisible characters or is too long")
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            _check_key(key, subject)
            check_exact(inner, subject)
    elif isinstance(value, list | tuple):
        for inner in value:
            check_exact(inner, subject)


def _schema(node: Any, report: set[str]) -> Any:
    if isinstance(node, list):
        return [_schema(inner, report) for inner in node]
    if not isinstance(node, Mapping):
        check_exact(node, "a value of its schema")
        return node
    safe_schema: dict[str, Any] = {}
    for key, value in node.items():
        _check_key(key, "a name in its schema")
        if key in TEXTS and isinstance(value, str):
            safe_schema[key], removed = cleaned(value, TEXTS[key])
            report.update(f"schema: {removal}" for removal in removed)
        elif key in DATA:
            check_exact(value, f"`{key}` of its schema")
            safe_schema[key] = value
        elif key in SCHEMA_MAP_KEYWORDS and isinstance(value, Mapping):
            for name in value:
                _check_key(name, "a name in its schema")
            safe_schema[key] = {name: _schema(inner, report) for name, inner in value.items()}
        else:
            safe_schema[key] = _schema(value, report)
    return safe_schema


def _check_key(key: Any, subject: str) -> None:
    if not isinstance(key, str) or not is_visible(key):
        raise Unusable(f"{subject} has invisible characters or is too long")


def _inside(node: Any) -> list[Any]:
    if isinstance(node, Mapping):
        return list(node.values())
    return list(node) if isinstance(node, list | tuple) else []


def _is_plain(text: str) -> bool:
    """Return whether a text has no character that has to be looked at alone."""
    line = text.replace("\n", " ").replace("\t", " ")
    return line.isprintable() and not _BLANK.search(line)


def _is_hidden(text: str, at: int) -> bool:
    char = text[at]
    if char in "\n\t" or " " <= char <= "~":
        return False
    if char == _EMOJI_STYLE:
        return not (at and unicodedata.category(text[at - 1]) in {"So", "Sm", "Po", "Nd"})
    if char == _JOINER:
        return not (_is_emoji(text, at - 1) and _is_emoji(text, at + 1))
    return bool(_BLANK.match(char)) or unicodedata.category(char) in _HIDDEN


def _is_emoji(text: str, at: int) -> bool:
    if at >= 1 and text[at] == _EMOJI_STYLE:
        at -= 1
    # Skin colours are modifier symbols.
    return 0 <= at < len(text) and unicodedata.category(text[at]) in {"So", "Sk"}
