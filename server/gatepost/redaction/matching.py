"""Match known values in their encodings, and the forms of tokens."""

import base64
import binascii
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Protocol

import msgspec

WINDOW_BYTES = 12
"""The bytes of an encoding in the automaton; the rest is compared after a hit."""
COMPARED_BYTES = 1_024
"""The number of bytes whose comparison costs as much as starting one."""
SEARCHED_PER_MISS, MAX_SEARCHED = 32, 131_072
USUAL_DIGITS, MAX_DIGITS = 256, 4_096
"""The number of base64 digits decoded after a hit; the second if a token may be long."""

_DIGITS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_"
_SEXTET = frozenset(_DIGITS)
_BEHIND = re.compile(rb"[A-Za-z0-9+/_-]*=*")
_STANDARD = bytes.maketrans(b"-_", b"+/")


class SecretSpan(msgspec.Struct, frozen=True, order=True):
    """A span to redact, in bytes, with its name."""

    start: int
    end: int
    name: str
    secret: bool = True
    """Whether it is a known value instead of a token's form."""


class SecretMatch(Protocol):
    """A pattern of the automaton, which searches for `window`."""

    window: bytes
    name: str
    doubt: int
    """The cost of a false hit; 0 if a hit by chance is unlikely."""
    effort: int
    """The cost of verifying a hit."""

    def match_at(self, text: bytes, position: int) -> SecretSpan | None:
        """Return the span if the window at *position* is a match, otherwise None."""

    def exact(self, text: bytes, position: int) -> SecretSpan | None:
        """
        Return the exact span of a known value, without the neighbouring bits; None for token forms.
        """


class Literal:
    """One encoding of a secret, byte for byte."""

    doubt = 0
    __slots__ = ("_left", "_offset", "_right", "effort", "length", "name", "whole", "window")

    def __init__(
        self, name: str, pattern: bytes, *, left: bool = False, right: bool = False
    ) -> None:
        self.name = name
        self.whole, self.length = pattern, len(pattern)
        self.effort = _effort(pattern)
        # Beside the hit is a base64 digit that contains bits of the secret and of its neighbour.
        self._left, self._right = left, right
        self._offset, self.window = _window(pattern)

    def exact(self, text: bytes, position: int) -> SecretSpan | None:
        """Return the span, as `SecretMatch` defines it."""
        start = position - self._offset
        if start < 0 or not text.startswith(self.whole, start):
            return None
        return SecretSpan(start, start + len(self.whole), self.name)

    def match_at(self, text: bytes, position: int) -> SecretSpan | None:
        """Return the span, as `SecretMatch` defines it."""
        start = position - self._offset
        if start < 0 or not text.startswith(self.whole, start):
            return None
        end = start + len(self.whole)
        if self._left and start and text[start - 1] in _SEXTET:
            start -= 1
        if self._right and end < len(text) and text[end] in _SEXTET:
            end += 1
        if self._right:
            while end < len(text) and text[end : end + 1] == b"=":
                end += 1
        return SecretSpan(start, end, self.name)


class Hex:
    """A secret in hexadecimal digits of any case; *window* is at *offset* in *whole*."""

    doubt = 0
    __slots__ = ("_offset", "effort", "length", "name", "whole", "window")

    def __init__(self, name: str, pattern: bytes, offset: int, window: bytes) -> None:
        self.name = name
        self.whole, self._offset, self.window = pattern, offset, window
        self.length = len(pattern)
        self.effort = _effort(pattern)

    def match_at(self, text: bytes, position: int) -> SecretSpan | None:
        """Return the span, as `SecretMatch` defines it."""
        start = position - self._offset
        end = start + len(self.whole)
        if start < 0 or text[start:end].lower() != self.whole:
            return None
        return SecretSpan(start, end, self.name)

    exact = match_at


KnownMatch = Literal | Hex
"""The patterns that match a known value, whose encoding has this length."""


def longest_of(marks: Sequence[KnownMatch]) -> int:
    """Return the length of the longest encoding."""
    return max((mark.length for mark in marks), default=0)


def shortest_of(marks: Sequence[KnownMatch], min_length: int) -> int:
    """
    Return the length of the shortest encoding of at least *min_length* bytes; 0 if there is none.
    """
    return min((mark.length for mark in marks if mark.length >= min_length), default=0)


def ends_of(leaf: bytes | None, edge: int, separator: bytes) -> bytes | None:
    """Return a string of a text, if it is long without all but *edge* bytes at both ends."""
    if leaf is None or len(leaf) <= 2 * edge:
        return leaf
    return leaf[:edge] + separator + leaf[len(leaf) - edge :]


@cache
def compiled(form: bytes) -> re.Pattern[bytes]:
    """Return the pattern of a token's form."""
    # Compiled at the first hit of the prefix: all patterns take 15 ms, and most processes need
    # none.
    return re.compile(form)


def max_misses_of(length: int) -> int:
    """
    Return after how many misses of a form a text of that length is searched for the next token.

    A search looks at each byte, so it is faster only if misses are frequent. No other thread runs
    meanwhile, so longer texts are not searched.
    """
    return length // SEARCHED_PER_MISS if length <= MAX_SEARCHED else length


class Shape:
    """A token of a well-known form, found by its prefix; *form* may have a group for it."""

    doubt, effort = 1, 1
    __slots__ = ("_form", "name", "window")

    def __init__(self, name: str, window: bytes, form: bytes) -> None:
        self.name, self.window, self._form = name, window, form

    def match_at(self, text: bytes, position: int) -> SecretSpan | None:
        """Return the span, as `SecretMatch` defines it."""
        match = compiled(self._form).match(text, position)
        if match is None:
            return None
        start, end = match.span(match.lastindex or 0)
        return SecretSpan(start, end, self.name, False)

    def next_start(self, text: bytes, position: int) -> int:
        """Return where the form begins next, from *position* on; the end if it does not."""
        match = compiled(self._form).search(text, position)
        return len(text) if match is None else match.start()

    def exact(self, text: bytes, position: int) -> SecretSpan | None:
        """Return the span, as `SecretMatch` defines it."""
        return None


class BasicCredentials(Shape):
    """A user name and a password in HTTP's Basic scheme; both must match."""

    __slots__ = ()

    def match_at(self, text: bytes, position: int) -> SecretSpan | None:
        """Return the span, as `SecretMatch` defines it."""
        span = super().match_at(text, position)
        if span is None:
            return None
        try:
            decoded = base64.b64decode(text[span.start : span.end], validate=True).decode()
        except ValueError:
            return None
        return span if ":" in decoded and decoded.isprintable() else None


class EnclosedSecret:
    """A token of that form in base64, *lead* bytes into a group of three."""

    doubt, effort = 20, 1
    __slots__ = ("_form", "_lead", "_max_digits", "name", "window")

    def __init__(
        self, name: str, opening: bytes, lead: int, form: bytes, *, may_be_long: bool
    ) -> None:
        self.name, self._form = name, form
        self._lead, self._max_digits = lead, MAX_DIGITS if may_be_long else USUAL_DIGITS
        self.window = base64_core(opening, lead)[0]

    def match_at(self, text: bytes, position: int) -> SecretSpan | None:
        """Return the span, as `SecretMatch` defines it."""
        begin = position - (self._lead and self._lead + 1)
        match = None if begin < 0 else _BEHIND.match(text, begin, begin + self._max_digits)
        if match is None:
            return None
        digits = match[0].rstrip(b"=")
        digits = digits[: len(digits) - (len(digits) % 4 == 1)].translate(_STANDARD)
        try:
            decoded = base64.b64decode(digits + b"=" * (-len(digits) % 4))
        except binascii.Error:
            return None
        match = compiled(self._form).match(decoded, self._lead)
        if match is None:
            return None
        first, last = match.span(match.lastindex or 0)
        end = begin + -(-last * 4 // 3)
        if last + 2 >= len(decoded) and (tail_match := _BEHIND.match(text, end)):
            end = tail_match.end()
        return SecretSpan(begin + first * 4 // 3, end, self.name, False)

    def exact(self, text: bytes, position: int) -> SecretSpan | None:
        """Return the span, as `SecretMatch` defines it."""
        return None


def base64_core(value: bytes, lead: int) -> tuple[bytes, bool, bool]:
    """
    Return the digits that *value* has in base64 whatever stands around it, *lead* bytes into a
    group of 3, and whether the digit before and the one behind hold bits of it as well.
    """
    digits = base64.b64encode(b"\0" * lead + value)
    first, bits = lead and lead + 1, (lead + len(value)) * 8
    return digits[first : bits // 6], lead > 0, bits % 6 > 0


def _effort(pattern: bytes) -> int:
    return 1 + len(pattern) // COMPARED_BYTES


def _window(pattern: bytes) -> tuple[int, bytes]:
    """Return the part to search for: the more distinctive of the middle and the end."""
    if len(pattern) <= WINDOW_BYTES:
        return 0, pattern
    # The window is not at the beginning, because keys of one service begin alike, and each hit
    # would be compared with all of them.
    last_start, middle = len(pattern) - WINDOW_BYTES, (len(pattern) - WINDOW_BYTES) // 2
    last, middle_window = pattern[last_start:], pattern[middle : middle + WINDOW_BYTES]
    return (
        (last_start, last) if len(set(last)) >= len(set(middle_window)) else (middle, middle_window)
    )


_FREE = rb"(?<![A-Za-z0-9_])"

SHAPES: Sequence[tuple[str, Sequence[bytes], bytes]] = (
    ("GITHUB_TOKEN", (b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_"), rb"gh[pousr]_[A-Za-z0-9]{36,}"),
    ("GITHUB_TOKEN", (b"github_pat_",), rb"github_pat_[A-Za-z0-9_]{22,}"),
    (
        "GITLAB_TOKEN",
        (b"glpat-", b"gldt-", b"glrt-", b"glptt-", b"glcbt-", b"glsoat-"),
        rb"gl(?:pat|dt|rt|ptt|cbt|soat)-[\w-]{20,}",
    ),
    (
        "SLACK_TOKEN",
        (b"xoxa-", b"xoxb-", b"xoxe", b"xoxp-", b"xoxr-", b"xoxs-", b"xapp-"),
        rb"(?:xox[abprs]|xoxe(?:\.xox[bp])?|xapp)-(?=[A-Za-z-]{0,40}+[0-9])[A-Za-z0-9-]{10,}",
    ),
    (
        "SLACK_WEBHOOK",
        (b"hooks.slack.com/",),
        rb"hooks\.slack\.com/(?:services|workflows)/([\w/]{20,})",
    ),
    (
        "AWS_ACCESS_KEY",
        (b"AKIA", b"ASIA"),
        rb"A[KS]IA(?=[A-Z]{0,15}+[2-7])[A-Z2-7]{16}(?![A-Za-z0-9])|A[KS]IAIOSFODNN7EXAMPLE",
    ),
    ("GOOGLE_API_KEY", (b"AIza",), rb"AIza[\w-]{35}(?![\w-])"),
    ("GOOGLE_TOKEN", (b"ya29.",), rb"ya29\.[\w-]{20,}"),
    ("GOOGLE_SECRET", (b"GOCSPX-",), rb"GOCSPX-[\w-]{28}"),
    ("ANTHROPIC_KEY", (b"sk-ant-",), rb"sk-ant-[a-z]++[0-9]++-[\w-]{24,}"),
    (
        "OPENAI_KEY",
        (b"sk-",),
        # Words with hyphens are no keys. Each key below has digits and capitals, or is hexadecimal.
        rb"sk-(?:(?:or-v1-)?[0-9a-f]{32,64}(?![\w-])"
        rb"|(?!ant-)(?=[A-Za-z_-]{0,60}+[0-9])(?=[a-z0-9_-]{0,60}+[A-Z])"
        rb"(?:[a-z]{3,8}-)?[A-Za-z0-9][\w-]{19,})",
    ),
    (
        "STRIPE_KEY",
        (b"sk_live_", b"rk_live_", b"sk_test_", b"rk_test_"),
        rb"[rs]k_(?:live|test)_[A-Za-z0-9]{16,}",
    ),
    ("STRIPE_SECRET", (b"whsec_",), rb"whsec_[A-Za-z0-9+/]{32,}=*"),
    ("NPM_TOKEN", (b"npm_",), rb"npm_[A-Za-z0-9]{36}(?![A-Za-z0-9])"),
    ("PYPI_TOKEN", (b"pypi-AgE",), rb"pypi-AgE[\w-]{50,}"),
    (
        "HUGGINGFACE_TOKEN",
        (b"hf_",),
        rb"hf_(?=[a-z0-9]{0,33}+[A-Z])[A-Za-z0-9]{34,}",
    ),
    ("SENDGRID_KEY", (b"SG.",), rb"SG\.[\w-]{22}\.[\w-]{43}(?![\w-])"),
    ("DIGITALOCEAN_TOKEN", (b"dop_v1_", b"doo_v1_"), rb"do[op]_v1_[0-9a-f]{64}"),
    (
        "JWT",
        (b"eyJ",),
        rb"(?<!-)eyJ[\w-]{8,}\.(?:[\w-]{8,}\.[\w-]{8,}|[\w-]*\.[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,})",
    ),
    (
        "PRIVATE_KEY",
        (b"-----BEGIN ",),
        # The key ends at its end mark or, if the text was cut before that, where it no longer looks
        # like a key.
        rb"-----BEGIN (?:[A-Z0-9 ]{1,20} )?PRIVATE KEY(?: BLOCK)?-----"
        rb"(?:(?:[A-Za-z0-9+/=:,.\\\s\0]|-(?!----)){24,20000}?"
        rb"-----END [A-Z0-9 ]{0,20}PRIVATE KEY(?: BLOCK)?-----"
        rb"|(?:\s|\\[nr])[A-Za-z0-9+/=:,.\\\s-]{24,})",
    ),
    (
        "BEARER_TOKEN",
        (b"Bearer ", b"bearer ", b"BEARER "),
        rb"(?i:bearer) ++((?=[A-Za-z._~+/-]{0,200}+[0-9])(?=[^A-Za-z]{0,200}+[A-Za-z])"
        rb"[A-Za-z0-9._~+/-]{20,}=*)",
    ),
    ("BASIC_CREDENTIALS", (b"Basic ", b"basic "), rb"(?i:basic) ++([A-Za-z0-9+/]{8,}={0,2})"),
)
"""The name, the prefixes and the form of each token; a group in the form is the redacted part."""

_ENCLOSED_BYTES = 4
_HEADERS = (b"eyJhbGciOi", b"eyJ0eXAiOi", b"eyJraWQiOi")
"""The usual prefixes of JWTs; three characters are too few to search for in base64."""


@cache
def token_forms() -> Sequence[SecretMatch]:
    """Return the patterns of all token forms, plain and in base64."""
    return tuple(_shapes())


def _shapes() -> Iterator[SecretMatch]:
    for name, openings, form in SHAPES:
        inner = rb"(?:" + form + rb")"
        pattern = _FREE + inner
        for opening in openings:
            if name == "BASIC_CREDENTIALS":
                yield BasicCredentials(name, opening, pattern)
                continue
            yield Shape(name, opening, pattern)
            if name == "JWT" or len(opening) < _ENCLOSED_BYTES:
                continue
            may_be_long = name == "PRIVATE_KEY"
            yield from (
                EnclosedSecret(name, opening, lead, inner, may_be_long=may_be_long)
                for lead in range(3)
            )
        if name == "JWT":
            for opening in _HEADERS:
                yield from (
                    EnclosedSecret(name, opening, lead, inner, may_be_long=True)
                    for lead in range(3)
                )
