"""What a script says of itself, and its functions: by looking at it, never by running it."""

import re
from collections.abc import Iterator

import msgspec

MOST_FUNCTIONS = 100
MOST_DESCRIPTION = 500
MOST_PARAMETER = 100

# Linear whatever it meets: each branch decides by its first characters, and none overlaps another.
# Not Python's own parser, which deep nesting takes its memory or its stack.
TOKEN = re.compile(
    r'(?P<long>[rb]{0,2}(?:"""(?:[^"\\]|\\.|"(?!""))*+(?:"""|\Z)|\'\'\'(?:[^\'\\]|\\.|\'(?!\'\'))*+(?:\'\'\'|\Z)))'
    r'|(?P<short>[rb]{0,2}(?:"(?:[^"\\\n]|\\.)*+"?|\'(?:[^\'\\\n]|\\.)*+\'?))'
    r"|(?P<comment>\#[^\n]*)|(?P<line>\n)|(?P<word>\w+)|(?P<other>.)",
    re.DOTALL,
)

COMMENTS = re.compile(r"(?:[ \t]*#[^\n]*(?:\n|\Z))++")


class Function(msgspec.Struct, frozen=True):
    """A function at the top of a script."""

    name: str
    parameters: tuple[str, ...]
    """As they are written, defaults included."""


class Outline(msgspec.Struct, frozen=True):
    """A script from above."""

    description: str
    functions: tuple[Function, ...]


def outline_of(text: str) -> Outline:
    """What a script describes and defines; whatever is in it, this neither fails nor runs it."""
    functions = list(_functions(text))[:MOST_FUNCTIONS]
    return Outline(_description(text), tuple(functions))


def _description(text: str) -> str:
    """The comments it begins with, or its docstring."""
    start = text.lstrip()[: 4 * MOST_DESCRIPTION]
    if comments := COMMENTS.match(start):
        lines = [line.strip().lstrip("#!").strip() for line in comments.group().splitlines()]
        return "\n".join(lines).strip()[:MOST_DESCRIPTION]
    first = TOKEN.match(start)
    if first is None or first.lastgroup not in ("long", "short"):
        return ""
    return first.group().lstrip("rb").strip("\"'").strip()[:MOST_DESCRIPTION]


def _functions(text: str) -> Iterator[Function]:
    depth, fresh = 0, True
    tokens = TOKEN.finditer(text)
    for token in tokens:
        piece = token.group()
        if fresh and piece == "def" and depth == 0:
            yield from _function(tokens)
            fresh = False
            continue
        depth = max(depth + _turn(token), 0)
        fresh = piece == "\n"


def _function(tokens: Iterator[re.Match[str]]) -> Iterator[Function]:
    """The rest of a definition, after its `def`."""
    name, pieces, parameters, depth = "", "", list[str](), 0
    for token in tokens:
        piece = token.group()
        if depth == 0 and token.lastgroup == "word" and not name:
            name = piece
            continue
        depth += _turn(token)
        if depth == 0 and not piece.isspace():
            break
        if depth == 1 and piece in ("(", ","):
            parameters.append(pieces)
            pieces = ""
        elif token.lastgroup != "comment":
            pieces += " " if piece == "\n" else piece
    shown = [" ".join(one.split())[:MOST_PARAMETER] for one in [*parameters, pieces]]
    if name and not name.startswith("_"):
        yield Function(name, tuple(filter(None, shown)))


def _turn(token: re.Match[str]) -> int:
    piece = token.group()
    return (piece in "([{") - (piece in ")]}") if len(piece) == 1 else 0
