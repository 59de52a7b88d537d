"""Finds secrets that are split over the quoted strings of a text: JSON, a `repr`, a log line."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from gatepost.redaction.automaton import Redactor, merged, replaced
from gatepost.redaction.matching import SecretSpan
from gatepost.redaction.readings import layers, portions, readings

LEAST_SPLIT = 8
"""The minimum length of a secret that is searched for across members."""
SEPARATOR = b"\0"
"""A byte that occurs in no token and no secret."""

_QUOTING = b"\"'\\%&"
_MARKS = _QUOTING + b"\r\n"
"""A text without any of these has no quotation mark, nor an escape that may stand for one."""
SHORT_BYTES = 1024
"""Up to here it costs less to look for all of them at once than to read the text's layers."""
PROMPT_BYTES, PROMPT_MARKS = 16_384, 2_000
"""
What takes at most some ten milliseconds to redact: bytes, and how many of them may be quotation
marks, escapes or line breaks. Each of those may cost fifty times as much as another byte.
"""

_NUMBER = rb"(-?[0-9][0-9.eE+-]*)"
_LEAVES = (
    (b'"', re.compile(rb'"([^"]*)"(\s*:)?|' + _NUMBER)),
    (b"'", re.compile(rb"'([^']*)'(\s*:)?|" + _NUMBER)),
)
"""Matches strings (also names) and numbers, without backtracking."""


class QuotedLeaf(NamedTuple):
    """A string or a number of a text, and the place of its content."""

    start: int
    end: int
    is_name: bool
    is_number: bool


def is_prompt(text: bytes, *, of_caller: bool = False) -> bool:
    """
    Return whether a text can be redacted on the event loop, whatever it consists of.

    *of_caller*: some of the secrets are the caller's, who may have chosen them to cost time.
    """
    if len(text) <= SHORT_BYTES:
        return True
    if of_caller or len(text) > PROMPT_BYTES:
        return False
    return len(text) - len(text.translate(None, _MARKS)) <= PROMPT_MARKS


def is_unquoted(text: bytes) -> bool:
    """Return whether nothing in a text is in quotation marks, in whatever way they are written."""
    return text.translate(None, _QUOTING) == text


def quoted(text: bytes, redactor: Redactor) -> list[SecretSpan]:
    """Return the spans of secrets that are split over the strings of *text*, unordered."""
    found: list[SecretSpan] = []
    if redactor.plain:
        return found
    if len(text) <= SHORT_BYTES and is_unquoted(text):
        return found  # most answers
    ways = None
    for depth, layer in enumerate(layers(text)):
        for quote, form in _LEAVES:
            if layer.count(quote) < 2:
                continue
            spans = _split(layer, quote, form, redactor, 0)
            if depth or quote == b"'":
                # Behind a quotation mark that begins an outer string, and behind an apostrophe,
                # what seems to be between strings is the strings.
                spans += _split(layer, quote, form, redactor, layer.index(quote) + 1)
            for span in spans:
                ways = ways or readings(text)
                start, end = ways[depth].source(span.start, span.end)
                found.append(SecretSpan(start, end, span.name))
    return found


def cleaned_text(text: str, redactor: Redactor) -> str:
    """Return *text* redacted, including split secrets, or the same object if there are none."""
    plain = text.encode(errors="surrogatepass")
    over = quoted(plain, redactor)
    if not over:
        return redactor.clean(text)
    spans = merged([*redactor.spans(plain), *over])
    return replaced(plain, spans).decode(errors="replace")


def placed(
    spans: Sequence[SecretSpan], lengths: Sequence[int], apart: int = 0
) -> Iterator[list[tuple[int, SecretSpan]]]:
    """
    Return the parts of each span in the texts that were joined with *apart* bytes between them.
    """
    starts = [0, *accumulate(length + apart for length in lengths)]
    for span in spans:
        place = bisect_right(starts, span.start) - 1
        pieces: list[tuple[int, SecretSpan]] = []
        while place < len(lengths) and starts[place] < span.end:
            start, length = starts[place], lengths[place]
            first, last = max(span.start - start, 0), min(span.end - start, length)
            if first < last:
                pieces.append((place, SecretSpan(first, last, span.name, span.secret)))
            place += 1
        yield pieces


def _split(
    layer: bytes, quote: bytes, form: re.Pattern[bytes], redactor: Redactor, begin: int
) -> list[SecretSpan]:
    """Return the same for one decoding of the text, from *begin* on."""
    masked = layer
    if b"\\" in layer:
        # As long as before, so that each quotation mark left is one and stands where it stood.
        masked = layer.replace(b"\\\\", b"\0\0").replace(b"\\" + quote, b"\0\0")
    elif not redactor.values(SEPARATOR.join(_joined(form, layer[begin:]))):
        return []  # nearly always, at a fraction of what the rest takes
    leaves = [
        QuotedLeaf(each.start(3), each.end(3), False, True)
        if each[3]
        else QuotedLeaf(each.start(1), each.end(1), each[2] is not None, False)
        for each in form.finditer(masked, begin)
    ]
    found: list[SecretSpan] = []
    values = [leaf for leaf in leaves if not leaf.is_name]
    strings = [leaf for leaf in leaves if not leaf.is_number]
    for view in ([leaf for leaf in values if not leaf.is_number], strings, values):
        spans = redactor.values(b"".join([layer[leaf.start : leaf.end] for leaf in view]))
        spans = [span for span in spans if span.end - span.start >= LEAST_SPLIT]
        for pieces in placed(spans, [leaf.end - leaf.start for leaf in view]):
            if all(view[nth].is_number for nth, _ in pieces):
                continue  # numbers beside each other mean nothing together
            for nth, piece in pieces:
                start = view[nth].start
                found.append(SecretSpan(start + piece.start, start + piece.end, piece.name))
    return found


def _joined(form: re.Pattern[bytes], text: bytes) -> list[bytes]:
    """Yield the orders in which a reader may join the leaves."""
    texts: list[bytes] = []
    with_names: list[bytes] = []
    with_numbers: list[bytes] = []
    for pieces in portions(form, text):
        leaves = [*zip(pieces[1::4], pieces[2::4], pieces[3::4], strict=True)]
        values = [each for each in leaves if not each[1]]
        texts.append(b"".join([text or b"" for text, _, _ in values]))
        with_names.append(b"".join([text or b"" for text, _, _ in leaves]))
        with_numbers.append(b"".join([text or number or b"" for text, _, number in values]))
    views = [b"".join(texts)]
    for view in (with_names, with_numbers):
        if sum(map(len, view)) > len(views[0]):
            views.append(b"".join(view))
    return views
