"""Spans to redact: merged, placed in the texts they stand in, and replaced with markers."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from gatepost.redaction.matching import SecretSpan


def merged(spans: Iterable[SecretSpan]) -> list[SecretSpan]:
    """
    Merge overlapping spans; the best of them gives the name.

    A known value is better than a shape, then the longer, then the one that begins first, then
    the name that sorts first: the same text always reads the same.
    """
    merged_spans: list[SecretSpan] = []
    best: list[SecretSpan] = []
    for span in sorted(spans):
        if not merged_spans or span.start >= merged_spans[-1].end:
            merged_spans.append(span)
            best.append(span)
            continue
        if _rank(span) < _rank(best[-1]):
            best[-1] = span
        last, name = merged_spans[-1], best[-1].name
        merged_spans[-1] = SecretSpan(
            last.start, max(last.end, span.end), name, last.secret or span.secret
        )
    return merged_spans


def replaced(text: bytes, spans: Iterable[SecretSpan]) -> bytes:
    """Return the text with a marker for each of these spans, as `merged` returns them."""
    pieces: list[bytes] = []
    position = 0
    for span in spans:
        pieces += text[position : span.start], marker(span.name)
        position = span.end
    return b"".join([*pieces, text[position:]])


def marker(name: str) -> bytes:
    """Return the marker that replaces a secret."""
    return b"[REDACTED:%s]" % name.encode()


def _rank(span: SecretSpan) -> tuple[bool, int, int, str]:
    return not span.secret, span.start - span.end, span.start, span.name


def placed(
    spans: Sequence[SecretSpan], lengths: Sequence[int], separator_size: int = 0
) -> Iterator[list[tuple[int, SecretSpan]]]:
    """
    Return the parts of each span in the texts that were joined with *separator_size* bytes between
    them.
    """
    starts = [0, *accumulate(length + separator_size for length in lengths)]
    for span in spans:
        index = bisect_right(starts, span.start) - 1
        pieces: list[tuple[int, SecretSpan]] = []
        while index < len(lengths) and starts[index] < span.end:
            start, length = starts[index], lengths[index]
            first, last = max(span.start - start, 0), min(span.end - start, length)
            if first < last:
                pieces.append((index, SecretSpan(first, last, span.name, span.secret)))
            index += 1
        yield pieces
