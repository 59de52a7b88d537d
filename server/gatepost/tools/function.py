"""An author's function: named, described, and awaited whether it is a coroutine or not."""

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Set
from functools import partial
from typing import Any, TypedDict

from gatepost.tools.content import Icon
from gatepost.tools.thread import in_thread
from gatepost_authz.challenge import words

NAME = re.compile(r"[a-z0-9_]{1,64}", re.ASCII)
"""The grammar of every name of ours: safe in headers, metrics, URLs and every client."""


class Options(TypedDict, total=False):
    """What an author may say about anything that is offered."""

    title: str
    """A name for people."""
    icons: tuple[Icon, ...]
    """Pictures for people."""
    scopes: Set[str]
    """All that a caller needs."""
    timeout_s: float
    """Seconds it may run; default: the configured one."""
    acr_values: tuple[str, ...]
    """Sign-ins that are strong enough (RFC 9470)."""
    max_age_s: int
    """Seconds since the sign-in, at most (RFC 9470)."""


def settled(kind: str, name: str, pack: str, options: Options) -> dict[str, Any]:
    """The members that every offer has, from its options; TypeError or ValueError says why not."""
    return {
        "name": named(kind, name),
        "pack": pack,
        "title": options.get("title"),
        "icons": tuple(options.get("icons", ())),
        "scopes": frozenset(_words(name, "scopes", options.get("scopes", ()))),
        "acr_values": _words(name, "acr_values", options.get("acr_values", ())),
        "max_age_s": options.get("max_age_s"),
        "timeout_s": options.get("timeout_s"),
    }


def named(kind: str, name: str) -> str:
    """*name*, if it is one; raises ValueError."""
    if not NAME.fullmatch(name):
        raise ValueError(f"{kind} name {name!r} must be 1 to 64 of a-z, 0-9 and _")
    return name


def description_of(function: Callable[..., Any], reader: str = "the model") -> str:
    """The docstring; TypeError when there is none."""
    description = inspect.getdoc(function)
    if not description:
        raise TypeError(f"{function.__name__} needs a docstring: {reader} reads it")
    return description


def awaited(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """
    *function* as something to await; a plain one runs in a thread.

    A cancelled call stops waiting for its thread; the thread itself runs on.
    """
    if inspect.iscoroutinefunction(function):
        return function
    return partial(in_thread, function)


def _words(owner: str, option: str, values: Iterable[str]) -> tuple[str, ...]:
    """Values that a challenge can name; a text alone would be taken for its letters."""
    if isinstance(values, str):
        raise TypeError(f"{owner}: {option} is a collection of texts, not a text")
    words(values)
    return tuple(values)
