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
        """The end of the messages so far."""
        self._sent: bytes | None = None
        """The end of the messages that were not dropped; None: it is the same."""
        self._sent_before = b""
        """What the client had been sent when the newest message began."""

    def begin(self) -> None:
        """Begin a message, which `take_back` may drop after it was searched."""
        self._sent_before = self._before if self._sent is None else self._sent

    def take_back(self) -> None:
        """Drop the newest message: it was searched and is not sent, as after `drop`."""
        self._sent = None if self._sent_before == self._before else self._sent_before

    def drop(self, message: str) -> None:
        """
        Take a message that is not sent, without searching it.

        The client sees the messages around it one after the other, so a secret may be split over
        them. If the secret also has a part in the dropped message, the client must not get the rest
        of it.
        """
        if self._sent is None:
            self._sent = self._before
        encoded = message[-HELD_BYTES:].encode("utf-8", "surrogatepass")
        self._before = (self._before + encoded)[-HELD_BYTES:]

    def passes(self, message: str, redactor: Redactor) -> bool:
        """
        Return whether a short message is sent as it is, as nearly all are.

        One search then finds neither a secret nor the end of one that began earlier.
        """
        if len(message) > SHORT_BYTES:
            return False
        encoded = message.encode("utf-8", "surrogatepass")
        for before in self._beginnings():
            joined = before + encoded
            if not (
                redactor.is_plain_and_clear(joined)
                or (is_unquoted(encoded) and redactor.surely_clear(joined))
            ):
                return False
        self._append(encoded)
        return True

    def text(self, message: str, redactor: Redactor) -> str:
        """Return the redacted message, or the same object if nothing is redacted."""
        encoded = message.encode(errors="surrogatepass")
        overlapping = self._over(encoded, redactor)
        self._append(encoded)
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
        self._append(encoded[1:-1])
        return b'"%s"' % replaced(inner, overlapping) if overlapping else clean

    def _beginnings(self) -> tuple[bytes, ...]:
        """Return what the next message may continue."""
        return (self._before,) if self._sent is None else (self._before, self._sent)

    def _append(self, encoded: bytes) -> None:
        self._before = (self._before + encoded)[-HELD_BYTES:]
        if self._sent is not None:
            self._sent = (self._sent + encoded)[-HELD_BYTES:]
            if self._sent == self._before:
                self._sent = None

    def _over(self, text: bytes, redactor: Redactor) -> list[SecretSpan]:
        """Return the ends of secrets that began in an earlier message."""
        spans: list[SecretSpan] = []
        for before in filter(None, self._beginnings()):
            for span in redactor.values(before + text):
                is_long = span.end - span.start >= MIN_SPLIT
                if is_long and span.start < len(before) < span.end:
                    spans.append(SecretSpan(0, span.end - len(before), span.name))
        return spans
