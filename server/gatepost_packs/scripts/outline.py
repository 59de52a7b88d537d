"""Find a script's description and functions by reading it, never by running it."""

import re
from collections.abc import Iterator

import msgspec

MAX_FUNCTIONS = 100
MAX_DESCRIPTION = 500
MAX_PARAMETER = 100

# The time is linear for every input, because each branch decides by its first characters and no two
# overlap. Python's own parser is not used, because deep nesting exhausts its memory or stack.
TOKEN = re.compile(
    r'(?P<long>[rb]{0,2}(?:"""(?:[^"\\]|\\.|"(?!""))*+(?:"""|\Z)|\'\'\'(?:[^\'\\]|\\.|\'(?!\'\'))*+(?:\'\'\'|\Z)))'
    r'|(?P<short>[rb]{0,2}(?:"(?:[^"\\\n]|\\.)*+"?|\'(?:[^\'\\\n]|\\.)*+\'?))'
    r"|(?P<comment>\#[^\n]*)|(?P<line>\n)|(?P<word>\w+)|(?P<other>.)",
    re.DOTALL,
)

COMMENTS = re.compile(r"(?:[ \t]*#[^\n]*(?:\n|\Z))++")


class ScriptFunction(msgspec.Struct, frozen=True):
    """A function at the top level of a script."""

    name: str
    parameters: tuple[str, ...]
    """The parameters as they are written, defaults included."""


class Outline(msgspec.Struct, frozen=True):
    """A script's outline."""

    description: str
    functions: tuple[ScriptFunction, ...]


def outline_of(text: str) -> Outline:
    """Return a script's description and functions; never fails and never runs the script."""
    functions = list(_functions(text))[:MAX_FUNCTIONS]
    return Outline(_description(text), tuple(functions))


def _description(text: str) -> str:
    """Return the comments at its beginning, or its docstring."""
    start = text.lstrip()[: 4 * MAX_DESCRIPTION]
    if comments := COMMENTS.match(start):
        lines = [line.strip().lstrip("#!").strip() for line in comments.group().splitlines()]
        return "\n".join(lines).strip()[:MAX_DESCRIPTION]
    first = TOKEN.match(start)
    if first is None or first.lastgroup not in ("long", "short"):
        return ""
    return first.group().lstrip("rb").strip("\"'").strip()[:MAX_DESCRIPTION]


def _functions(text: str) -> Iterator[ScriptFunction]:
    depth, fresh = 0, True
    tokens = TOKEN.finditer(text)
    for token in tokens:
        piece = token.group()
        if fresh and piece == "def" and depth == 0:
            yield from _function(tokens)
            fresh = False
            continue
        depth = max(depth + _depth_change(token), 0)
        fresh = piece == "\n"


def _function(tokens: Iterator[re.Match[str]]) -> Iterator[ScriptFunction]:
    """Return the rest of a definition, after its `def`."""
    name, pieces, parameters, depth = "", "", list[str](), 0
    for token in tokens:
        piece = token.group()
        if depth == 0 and token.lastgroup == "word" and not name:
            name = piece
            continue
        depth += _depth_change(token)
        if depth == 0 and not piece.isspace():
            break
        if depth == 1 and piece in ("(", ","):
            parameters.append(pieces)
            pieces = ""
        elif token.lastgroup != "comment":
            pieces += " " if piece == "\n" else piece
    shortened = [" ".join(parameter.split())[:MAX_PARAMETER] for parameter in [*parameters, pieces]]
    if name and not name.startswith("_"):
        yield ScriptFunction(name, tuple(filter(None, shortened)))


def _depth_change(token: re.Match[str]) -> int:
    piece = token.group()
    return (piece in "([{") - (piece in ")]}") if len(piece) == 1 else 0
