"""Conditions of approval rules: CEL expressions that are evaluated at a bounded cost."""

import importlib
import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from gatepost.documents.json_shape import decoded

LIBRARY = "cel"
"""The extra `cel`, imported by name: it is needed only if the configuration has a condition."""
MAX_CHARACTERS = 2_000
MAX_BYTES = 65_536
"""Maximum size of arguments that conditions evaluate."""
MAX_VALUES, MAX_LOOPED_BYTES = 500, 8_192
"""The same for a condition with a loop, which may try a pattern on each value."""
MAX_LOOPS, MAX_SUMS = 3, 20
"""
The most in one condition: `map(x, x + x)` doubles its input, and a chain of them would fill memory.
"""
MAX_PATTERN, MAX_REPEATED = 200, 100
"""
Maximum number of characters of a pattern, and the largest product of its repetitions (`{3,20}`),
which is its number of states.
"""
WRAPS = b"9223372036854775808"
"""The library negates the least integer to itself, so `-arguments.amount > 1` is false for it."""

NOT_EVALUATED = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""The exceptions that the library raises if an expression has no value for these arguments."""

_ASIDE = re.compile(
    r"""//[^\n]*"""
    r"""|[bB]?[rR][bB]?(?:'''.*?'''|\"{3}.*?\"{3}|'[^'\n]*'|"[^"\n]*")"""
    r"""|'''(?:\\.|[^\\])*?'''|\"{3}(?:\\.|[^\\])*?\"{3}"""
    r"""|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*\"""",
    re.S,
)
"""A comment or a string; in a raw string (`r'…'`) a backslash is literal."""
_LOOP = re.compile(r"\.\s*(all|exists|exists_one|existsOne|filter|map)\s*\(")
_MATCHES = "matches"
_PATTERN = re.compile(r"\.\s*matches\s*\(\s*\x00(\d+)\x00\s*\)")
_BRACES, _DIGITS = re.compile(r"\{[^}]*"), re.compile(r"\d{1,9}")
_DISGUISED = re.compile(r"\\[xXuU0-9]|\(\?[a-zA-Z-]*x")


class BadCondition(Exception):
    """A condition that cannot be used; the message says why."""


class NoLibrary(BadCondition):
    """The extra is not installed."""


class ConditionVariables(msgspec.Struct, frozen=True):
    """The variables of a condition for one call."""

    arguments: bytes
    """Raw JSON, as the call sent it."""
    caller: Mapping[str, Any]
    tool: Mapping[str, Any]


class Condition:
    """
    A compiled CEL expression; BadCondition if it is invalid.

    Callers choose the arguments, and evaluation blocks the process. So loops must not be nested,
    and arguments that are too large are not evaluated.
    """

    __slots__ = ("_loops", "_program", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text) > MAX_CHARACTERS:
            raise BadCondition(f"it is longer than {MAX_CHARACTERS} characters")
        bare = _ASIDE.sub(" ", text)
        self._loops = bool(_LOOP.search(bare)) or _MATCHES in bare
        if (why := _costly(bare) or _hard(text)) is not None:
            raise BadCondition(why)
        try:
            library = importlib.import_module(LIBRARY)
        except ModuleNotFoundError:
            raise NoLibrary("conditions need the extra cel: pip install 'gatepost[cel]'") from None
        try:
            self._program = library.compile(text)
        except ValueError as error:
            raise BadCondition(str(error).partition("\n")[0]) from None

    def is_true(self, subject: ConditionVariables) -> bool | None:
        """Return whether the condition is true for the call; None if it cannot be evaluated."""
        arguments = subject.arguments
        if len(arguments) > MAX_BYTES or WRAPS in arguments:
            return None
        if self._loops and (
            len(arguments) > MAX_LOOPED_BYTES or arguments.count(b",") > MAX_VALUES
        ):
            return None
        try:
            value = self._program.execute(
                {
                    "arguments": decoded(arguments),
                    "caller": subject.caller,
                    "tool": subject.tool,
                }
            )
        except NOT_EVALUATED:
            return None
        return value if isinstance(value, bool) else None


def _costly(bare: str) -> str | None:
    """Return why it could cost too much, or None; *bare* has no strings and comments."""
    if any(mark in bare for mark in ("'", '"', "//")):
        return "a text in it does not end as it began"
    loops = _LOOP.findall(bare)
    if _nested(bare):
        return "a loop (all, exists, exists_one, filter, map) is within another"
    if len(loops) > MAX_LOOPS or loops.count("map") > 1:
        return f"it has more than {MAX_LOOPS} loops, or more than one of them is `map`"
    if loops and bare.count("+") > MAX_SUMS:
        return f"it has a loop, and adds more than {MAX_SUMS} times"
    return None


def _hard(text: str) -> str | None:
    """Return why a pattern could cost too much, or None; patterns must be literals."""
    patterns: list[str] = []

    def numbered(match: re.Match[str]) -> str:
        if match[0].startswith("//"):
            return " "
        patterns.append(match[0])
        return f"\0{len(patterns) - 1}\0"

    shape = _ASIDE.sub(numbered, text.replace("\0", " "))
    written = _PATTERN.findall(shape)
    if len(written) != shape.count(_MATCHES):
        return "a pattern of `matches` is not written out as one text"
    for pattern in (patterns[int(at)] for at in written):
        repeated = [
            max(map(int, _DIGITS.findall(braces)), default=1) for braces in _BRACES.findall(pattern)
        ]
        if len(pattern) > MAX_PATTERN or math.prod(repeated) > MAX_REPEATED:
            return "a pattern of `matches` is too long or repeats too often"
        if _DISGUISED.search(pattern):
            return "a pattern of `matches` writes characters as numbers, or has the flag x"
    return None


def _nested(bare: str) -> bool:
    """Return whether a loop contains another loop; *bare* has no strings."""
    for loop in _LOOP.finditer(bare):
        depth, at = 1, loop.end()
        while at < len(bare) and depth:
            depth += {"(": 1, ")": -1}.get(bare[at], 0)
            at += 1
        if _LOOP.search(bare, loop.end(), at):
            return True
    return False
