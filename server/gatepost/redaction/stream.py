"""What is said piece by piece, without secrets: also those whose parts come one after another."""

from gatepost.redaction.automaton import Redactor, merged, replaced
from gatepost.redaction.document import LEAST_SPLIT, cleaned
from gatepost.redaction.mark import Span

HELD_BYTES = 8192
"""How much of what was said before is looked at again with each new piece."""


class Said:
    """
    One stream of messages.

    Each goes out at once, so of a secret in several pieces the first ones have gone when the last
    one comes: that one is taken out, and nobody gets the whole.
    """

    def __init__(self) -> None:
        self._before = b""

    def text(self, message: str, redactor: Redactor) -> str:
        """A message as it may go out; the same object where nothing is taken out."""
        plain = message.encode(errors="surrogatepass")
        spans = [*redactor.spans(plain), *self._over(plain, redactor)]
        self._before = (self._before + plain)[-HELD_BYTES:]
        if not spans:
            return message
        return replaced(plain, merged(spans)).decode(errors="replace")

    def document(self, encoded: bytes, redactor: Redactor) -> bytes:
        """A message that is JSON, likewise."""
        clean = cleaned(encoded, redactor) or encoded
        if clean[:1] != b'"':
            return clean
        inner = clean[1:-1]
        over = merged(self._over(inner, redactor))
        self._before = (self._before + encoded[1:-1])[-HELD_BYTES:]
        return b'"%s"' % replaced(inner, over) if over else clean

    def _over(self, plain: bytes, redactor: Redactor) -> list[Span]:
        """The ends of secrets that began in an earlier message."""
        if not self._before:
            return []
        before = len(self._before)
        found: list[Span] = []
        for span in redactor.spans(self._before + plain):
            whole = span.secret and span.end - span.start >= LEAST_SPLIT
            if whole and span.start < before < span.end:
                found.append(Span(0, span.end - before, span.name))
        return found
