"""Read an author's function and its options, and make the function awaitable."""

import difflib
import inspect
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Set
from datetime import datetime
from functools import partial
from inspect import unwrap
from typing import Any, TypedDict, get_args

from gatepost.execution.threads import in_thread
from gatepost.tools.context.content import Icon
from gatepost.tools.offers.effects import FileWrite
from gatepost.tools.offers.offer import OFFER_NAME, Effects, TaskSupport
from gatepost_authz.challenge import words


class OfferOptions(TypedDict, total=False):
    """The options of tools, resources, prompts and skills."""

    title: str
    """A name to show to users."""
    icons: tuple[Icon, ...]
    """Icons to show to users."""
    scopes: Set[str]
    """The scopes that a caller needs, all of them."""
    timeout_s: float
    """The time limit in seconds; default: the configured one."""
    acr_values: tuple[str, ...]
    """The authentication methods that are strong enough (RFC 9470)."""
    max_age_s: int
    """The longest time since the sign-in, in seconds (RFC 9470)."""


def common_members(kind: str, name: str, pack: str, options: OfferOptions) -> dict[str, Any]:
    """Return the common members of an offer; raises TypeError or ValueError for bad options."""
    return {
        "name": checked_name(kind, name),
        "pack": pack,
        "title": options.get("title"),
        "icons": tuple(options.get("icons", ())),
        "scopes": frozenset(_challenge_words(name, "scopes", options.get("scopes", ()))),
        "acr_values": _challenge_words(name, "acr_values", options.get("acr_values", ())),
        "max_age_s": options.get("max_age_s"),
        "timeout_s": options.get("timeout_s"),
    }


def checked_name(kind: str, name: object) -> str:
    """Return *name* if it is valid; raises ValueError otherwise."""
    if not isinstance(name, str) or not OFFER_NAME.fullmatch(name):
        raise ValueError(f"{kind} name {name!r} must be 1 to 64 of a-z, 0-9 and _")
    return name


def description_of(function: Callable[..., Any], reader: str = "the model") -> str:
    """Return the docstring; raises TypeError if there is none."""
    description = inspect.getdoc(function)
    if not description:
        raise TypeError(f"{function.__name__} needs a docstring: {reader} reads it")
    return description


def awaited(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """
    Return *function* as a coroutine function; a plain function runs in a thread.

    A cancelled call stops waiting for its thread, but the thread runs on.
    """
    if inspect.iscoroutinefunction(function):
        return function
    return partial(in_thread, function)


def _challenge_words(owner: str, option: str, values: Iterable[str]) -> tuple[str, ...]:
    """Return the values, checked for use in a challenge; refuse a single string."""
    if isinstance(values, str):
        raise TypeError(f"{owner}: {option} is a collection of texts, not a text")
    words(values)
    return tuple(values)


OptionType = tuple[Callable[[Any], bool], str]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _are(kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return a check for a collection of such values, which a single string is not."""
    return lambda value: isinstance(value, Set | list | tuple) and all(map(kind, value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


SUPPORT = get_args(TaskSupport)

TEXT: OptionType = (_is_text, "a text")
TEXTS: OptionType = (_are(_is_text), "a collection of texts")
BOOLEAN: OptionType = (lambda value: isinstance(value, bool), "True or False")
WHOLE_NUMBER: OptionType = (_is_whole, "a whole number from 0")

EXPECTED: Mapping[str, OptionType] = {
    "name": TEXT,
    "output_schema": (lambda value: isinstance(value, Mapping), "a JSON Schema as a dictionary"),
    "title": TEXT,
    "icons": (_are(lambda value: isinstance(value, Icon)), "a collection of Icon"),
    "scopes": TEXTS,
    "timeout_s": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    "acr_values": TEXTS,
    "max_age_s": WHOLE_NUMBER,
    "read_only": BOOLEAN,
    "destructive": BOOLEAN,
    "idempotent": BOOLEAN,
    "open_world": BOOLEAN,
    "effects": (lambda value: isinstance(value, Effects), "an Effects"),
    "task_support": (lambda value: value in SUPPORT, f"one of {', '.join(SUPPORT)}"),
    "detaches": BOOLEAN,
    "read_only_form": (callable, "a function"),
    "writes": (lambda value: isinstance(value, FileWrite), "a FileWrite"),
    "untrusted": (
        lambda value: _is_text(value) and bool(value.strip()),
        "a text that is not empty",
    ),
    "approval": BOOLEAN,
    "mime_type": TEXT,
    "size": WHOLE_NUMBER,
    "audience": TEXTS,
    "priority": (_is_number, "a number"),
    "last_modified": (lambda value: isinstance(value, datetime), "a datetime"),
    "ttl_s": (lambda value: _is_number(value) and value >= 0, "a number from 0"),
}
"""The expected type of each option; no other code checks them when a pack loads."""

NULLABLE = frozenset(EXPECTED) - {"scopes", "acr_values", "approval", "detaches", "task_support"}
"""Options that may be None, which is the same as omitting them."""


def check_options(owner: str, options: Mapping[str, Any], allowed: frozenset[str]) -> None:
    """
    Raise TypeError for an option that is unknown or has the wrong type.

    The message names *owner*. Without this check, a misspelt `scopes` or `approval` would leave a
    tool open to every caller.
    """
    for name, value in options.items():
        if name not in allowed:
            similar = difflib.get_close_matches(name, allowed, n=1, cutoff=0.5)
            hint = (
                f"did you mean {similar[0]!r}?"
                if similar
                else f"it can be {', '.join(sorted(allowed))}"
            )
            raise TypeError(f"{owner}: there is no option {name!r}; {hint}")
        fits, expected = EXPECTED[name]
        if not fits(value) and not (value is None and name in NULLABLE):
            raise TypeError(f"{owner}: {name} must be {expected}, not {_excerpt(value)}")


def owner_of(pack: str, kind: str, function: Callable[..., Any]) -> str:
    """Describe a function so that its author finds it: its pack, name, file and line."""
    code = getattr(unwrap(function), "__code__", None)
    location = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    return f"pack {pack}, {kind} {getattr(function, '__name__', function)}{location}"


def check_function(owner: str, function: Any, written: str) -> None:
    """Raise TypeError if *function* is not callable, with a hint how to write the decorator."""
    if not callable(function):
        raise TypeError(f"{owner}: {function!r} is not a function; write {written}")


def _excerpt(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"
