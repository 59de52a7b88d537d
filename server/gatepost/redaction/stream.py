"""Redact a stream of messages, including secrets split over consecutive messages."""

from gatepost.redaction.json_document import cleaned
from gatepost.redaction.matching import SecretSpan
from gatepost.redaction.redactor import (
    MIN_SPLIT,
    SHORT_BYTES,
    Redactor,
    cleaned_text,
    is_unquoted,
    quoted,
)
from gatepost.redaction.spans import merged, replaced

HELD_BYTES = 8192
"""The number of earlier bytes that are searched again with each message."""


class RedactedStream:
    """
    One stream of messages.

    Each message is sent immediately. If a secret is split over several messages, the first parts
    are already sent, and the last part is redacted.
    """

    def __init__(self) -> None:
        self._before = b""

    def passes(self, message: str, redactor: Redactor) -> bool:
        """
        Return whether a short message is sent as it is, as nearly all are.

        One search then finds neither a secret nor the end of one that began earlier.
        """
        if len(message) > SHORT_BYTES:
            return False
        encoded = message.encode("utf-8", "surrogatepass")
        joined = self._before + encoded
        if redactor.is_plain_and_clear(joined) or (
            is_unquoted(encoded) and redactor.surely_clear(joined)
        ):
            self._before = joined[-HELD_BYTES:]
            return True
        return False

    def text(self, message: str, redactor: Redactor) -> str:
        """Return the redacted message, or the same object if nothing is redacted."""
        encoded = message.encode(errors="surrogatepass")
        joined = self._before + encoded
        overlapping = self._over(encoded, redactor)
        self._before = joined[-HELD_BYTES:]
        if not overlapping:
            return cleaned_text(message, redactor)
        return replaced(
            encoded, merged([*redactor.spans(encoded), *quoted(encoded, redactor), *overlapping])
        ).decode(errors="replace")

    def document(self, encoded: bytes, redactor: Redactor) -> bytes:
        """Return the redacted JSON message, or the same object if nothing is redacted."""
        clean = cleaned(encoded, redactor) or encoded
        if clean[:1] != b'"':
            return clean
        inner = clean[1:-1]
        overlapping = merged(self._over(inner, redactor))
        self._before = (self._before + encoded[1:-1])[-HELD_BYTES:]
        return b'"%s"' % replaced(inner, overlapping) if overlapping else clean

    def _over(self, text: bytes, redactor: Redactor) -> list[SecretSpan]:
        """Return the ends of secrets that began in an earlier message."""
        if not self._before:
            return []
        before = len(self._before)
        spans: list[SecretSpan] = []
        for span in redactor.values(self._before + text):
            is_long = span.end - span.start >= MIN_SPLIT
            if is_long and span.start < before < span.end:
                spans.append(SecretSpan(0, span.end - before, span.name))
        return spans
