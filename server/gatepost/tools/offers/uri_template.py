"""URI templates for resources, with `{x}`, `{+x}` and `{?x,y}` of RFC 6570."""

import re
from collections.abc import Mapping
from urllib.parse import quote, unquote_to_bytes

import msgspec

MAX_CHARACTERS = 2048
"""The longest URI that is accepted; browsers and proxies have about the same limit."""

URI = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*:(?:[A-Za-z0-9\-._~:/?@!$&'()*+,;=]++|%[0-9A-Fa-f]{2})*+", re.ASCII
)
"""
The grammar of RFC 3986 without fragments, which only clients use.

Possessive, so that a URI that does not match takes no longer than one that does.
"""

_EXPRESSION = re.compile(r"\{([^{}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SAFE_CHARACTERS = {False: "", True: "/!$&'()*+,;=:@"}
"""The characters that are not escaped in a variable, by `Variable.spans_segments`."""
_ASCII_ESCAPES = {
    spans: str.maketrans({chr(code): quote(chr(code), safe=safe) for code in range(128)})
    for spans, safe in _SAFE_CHARACTERS.items()
}
_SEGMENT = r"(?!\.\.?(?:/|\Z))[^/\\\x00-\x1f\x7f-\x9f]++"
_VALUE = {False: re.compile(_SEGMENT), True: re.compile(f"{_SEGMENT}(?:/{_SEGMENT})*+")}
"""The decoded values that `UriTemplate.match` accepts, by `Variable.spans_segments`."""


class Variable(msgspec.Struct, frozen=True):
    """One variable of the path, and the literal text that follows it."""

    name: str
    spans_segments: bool
    """Whether it may have several segments (`{+x}`)."""
    suffix: str


class UriTemplate:
    """
    A URI with variables, matched from the left without backtracking.

    Values are decoded once and are safe to use as names. No value has a control character. No
    segment of the path is `.`, `..` or empty, or has a backslash. Only a literal `/` separates
    segments, never `%2F`. Raises ValueError for a template that could match a URI in several ways.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        path, query = _split(text)
        pieces = _EXPRESSION.split(path)
        self.head = pieces[0]
        self.path = tuple(
            Variable(expression.removeprefix("+"), expression.startswith("+"), following)
            for expression, following in zip(pieces[1::2], pieces[2::2], strict=True)
        )
        self.query = query
        self.names = (*(variable.name for variable in self.path), *query)
        self._check(pieces[::2])
        self.weight = sum(map(len, pieces[::2]))
        """The number of literal characters; if several templates match, the largest number wins."""

    def _check(self, literals: list[str]) -> None:
        if invalid := [name for name in self.names if not _NAME.fullmatch(name)]:
            raise ValueError(
                f"{self.text}: {{{invalid[0]}}} is not {{x}}, {{+x}} or a final {{?x,y}}"
            )
        if len(set(self.names)) != len(self.names):
            raise ValueError(f"{self.text}: a variable stands there twice")
        # Each on its own, because an escape must not continue in a value.
        if not URI.fullmatch(self.head) or not all(URI.fullmatch(f"x:{part}") for part in literals):
            raise ValueError(f"{self.text}: not a URI; it begins with a scheme, as in report://")
        if any("?" in literal for literal in literals):
            raise ValueError(f"{self.text}: write the query as {{?x,y}}")
        if any(not variable.suffix for variable in self.path[:-1]):
            raise ValueError(f"{self.text}: two variables touch, so they cannot be told apart")
        if any(variable.spans_segments for variable in self.path[:-1]):
            raise ValueError(f"{self.text}: {{+x}} is the last variable of the path")

    def match(self, uri: str) -> dict[str, str] | None:
        """Return the decoded values of the variables; None if *uri* does not match."""
        return self.match_valid(uri) if uri.startswith(self.head) and is_uri(uri) else None

    def match_valid(self, uri: str) -> dict[str, str] | None:
        """Return the same for a valid URI that begins with `head`."""
        path, mark, query = uri.partition("?")
        values = _queried(query, self.query) if mark else {}
        if values is None:
            return None
        at = len(self.head)
        for variable in self.path:
            last = variable is self.path[-1]
            end = len(path) - len(variable.suffix) if last else path.find(variable.suffix, at)
            if end <= at or not path.startswith(variable.suffix, end):
                return None
            value = _segments(path[at:end]) if variable.spans_segments else _segment(path[at:end])
            if value is None:
                return None
            values[variable.name] = value
            at = end + len(variable.suffix)
        return values if at == len(path) else None

    def expand(self, values: Mapping[str, object]) -> str:
        """Return the URI with these values; raises ValueError if it would not match them again."""
        texts = {name: str(value) for name, value in values.items()}
        if len(texts) == len(self.names) == len(self.path) == 1 and self.names[0] in texts:
            return self._expand_single(texts[self.names[0]])
        uri = self.head
        for variable in self.path:
            uri += _quoted(texts.get(variable.name, ""), variable) + variable.suffix
        pairs = [f"{name}={quote(texts[name], safe='')}" for name in self.query if name in texts]
        uri += f"?{'&'.join(pairs)}" if pairs else ""
        if self.match(uri) != texts:
            raise ValueError(f"{self.text} cannot name {texts}")
        return uri

    def _expand_single(self, value: str) -> str:
        """Return the same for a template with one variable, without matching the URI again."""
        (variable,) = self.path
        uri = self.head + _quoted(value, variable) + variable.suffix
        # With one variable, whatever is between the literal parts is its value.
        if len(uri) > MAX_CHARACTERS or not _VALUE[variable.spans_segments].fullmatch(value):
            raise ValueError(f"{self.text} cannot name {value}")
        return uri


def is_uri(text: str) -> bool:
    """Return whether *text* is a valid URI of a resource."""
    return len(text) <= MAX_CHARACTERS and URI.fullmatch(text) is not None


def _quoted(value: str, variable: Variable) -> str:
    """Escape a value for its place in the path."""
    spans = variable.spans_segments
    if value.isascii():
        return value.translate(_ASCII_ESCAPES[spans])  # a fifth of the time
    return quote(value, safe=_SAFE_CHARACTERS[spans])


def _split(text: str) -> tuple[str, tuple[str, ...]]:
    path, mark, query = text.partition("{?")
    if not mark:
        return path, ()
    names, closed, after = query.partition("}")
    if not closed or after:
        raise ValueError(f"{text}: {{?x,y}} ends a template")
    return path, tuple(names.split(","))


def _queried(query: str, names: tuple[str, ...]) -> dict[str, str] | None:
    values: dict[str, str] = {}
    for pair in query.split("&"):
        name, mark, raw = pair.partition("=")
        value = _decoded(raw)
        if not mark or name not in names or name in values or value is None:
            return None
        values[name] = value
    return values


def _segments(raw: str) -> str | None:
    segments = [_segment(part) for part in raw.split("/")]
    return None if None in segments else "/".join(filter(None, segments))


def _segment(raw: str) -> str | None:
    """Decode one segment; None if it is unsafe, for instance with an encoded slash."""
    value = None if "/" in raw else _decoded(raw)
    if not value or value in (".", "..") or "/" in value or "\\" in value:
        return None
    return value


def _decoded(raw: str) -> str | None:
    """Decode a part of a valid URI; None if it is no text, or has control characters."""
    if "%" not in raw:
        return raw  # nearly every part, and a URI has control characters only in escapes
    try:
        # Decoded once: a value that was encoded twice stays encoded.
        value = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        return None
    return None if _CONTROL.search(value) else value
