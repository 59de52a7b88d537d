"""What is wrong with arguments, as a sentence that a model can act on."""

from collections.abc import Sequence
from typing import Any

import jsonschema_rs
import msgspec

from gatepost.tools.api import SecretPath

SHOWN_CHARACTERS = 40
# A model that has to guess among more than this needs another tool, not a longer list.
SHOWN_CHOICES = 50
LONGEST_SENTENCE = 400

_encode = msgspec.json.encode


class Hidden:
    """
    Which arguments hold secrets, by the first step to each.

    What is wrong with one of them, or with the arguments as a whole, is told without their values:
    a message goes into answers and logs.
    """

    def __init__(self, paths: Sequence[SecretPath]) -> None:
        self._first = frozenset(path[0] for path in paths)

    def holds(self, where: Sequence[Any]) -> bool:
        """Whether what is at that place must not be shown."""
        if not self._first:
            return False
        return not where or where[0] in self._first or None in self._first


NOTHING_HIDDEN = Hidden(())


def mistake(
    error: jsonschema_rs.ValidationError, hidden: Hidden = NOTHING_HIDDEN
) -> tuple[str, str]:
    """The argument at fault (empty: none alone) and the sentence, which names what is allowed."""
    kind = error.kind.as_dict()
    where = list(error.instance_path)
    name = error.kind.name
    if name == "required":
        field = path_of([*where, kind["property"]])
        return field, f"`{field}` is required."
    if name in ("additionalProperties", "unevaluatedProperties"):
        fields = [path_of([*where, extra]) for extra in kind["unexpected"][:SHOWN_CHOICES]]
        known = ", ".join(f"`{field}`" for field in fields)
        return fields[0], f"{known} cannot be given here."
    field = path_of(where)
    subject = f"`{field}`" if field else "The arguments"
    if name == "enum":
        choices = [_encode(option).decode() for option in kind["options"][:SHOWN_CHOICES]]
        more = ", …" if len(kind["options"]) > SHOWN_CHOICES else ""
        sentence = f"{subject} should be one of: {', '.join(choices)}{more}"
    elif name == "const":
        sentence = f"{subject} should be {_encode(kind['expected_value']).decode()}"
    elif name == "type":
        sentence = f"{subject} should be of type {' or '.join(kind['types'])}"
    elif hidden.holds(where):
        return field, f"{subject} does not satisfy `{name}`."
    else:
        # The library's own words quote the value, however long it is.
        text = error.message
        shown = text if len(text) <= LONGEST_SENTENCE else f"…{text[-LONGEST_SENTENCE:]}"
        return field, f"{subject}: {shown}."
    return field, f"{sentence}{'' if hidden.holds(where) else got(error.instance)}."


def got(value: Any) -> str:
    """What was sent instead, when it is short enough to help."""
    if isinstance(value, str | int | float | bool):
        text = _encode(value) if not isinstance(value, int) else str(value).encode()
        if len(text) <= SHOWN_CHARACTERS:
            return f" (got {text.decode()})"
    return ""


def path_of(parts: Sequence[Any]) -> str:
    """`rows`, 0, `amount` → `rows[0].amount`."""
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text
