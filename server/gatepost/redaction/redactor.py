"""
Redact the secrets of a tenant in texts, also those that are split over quoted strings.

Texts for the log are redacted for the current call.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from functools import cached_property
from typing import Protocol
from weakref import WeakSet

from gatepost.redaction.encoding import marks_of, meant_by
from gatepost.redaction.matching import KnownMatch, SecretSpan, longest_of, shortest_of, token_forms
from gatepost.redaction.quoted_strings import (
    SEPARATOR,
    QuotedLeaf,
    joined_strings,
    masked_escapes,
    unmasked_escapes,
)
from gatepost.redaction.secret_search import (
    AMPERSAND,
    BACKSLASH,
    CARRIAGE_RETURN,
    NEWLINE,
    PERCENT,
    SCREENED_BYTES,
    Automaton,
    TooMuch,
    layers,
    plain_automaton,
    readings,
)
from gatepost.redaction.spans import merged, placed, replaced
from gatepost.redaction.split_screen import SplitScreen

MAX_SCREENS = 64
"""
Screens of long texts in a process, each of up to 1.7 MiB. The long texts of further tenants are
searched whole, which takes longer and finds the same.
"""
MIN_SPLIT = 8
"""The minimum length of a secret that is searched for across members."""

QUOTE, APOSTROPHE = b"\"'"
_MARKS = b"\"'\\%&\r\n"
"""A text without any of these has neither a quotation mark nor an escape that may stand for one."""
SHORT_BYTES = 1024
"""Up to this size, searching for all of them at once costs less than reading the text's layers."""
FEW_BYTES = 256
"""Up to this size, joining the strings of a text costs less than the screen."""
PROMPT_BYTES, PROMPT_MARKS = 16_384, 2_000
"""
The limits of a text whose redaction takes at most some ten milliseconds: its bytes, and how many of
them may be quotation marks, escapes or line breaks. Each of those may cost fifty times as much as
another byte.
"""

_NUMBER = rb"(-?[0-9][0-9.eE+-]*)"
_LEAVES = (
    (b'"', re.compile(rb'"([^"]*)"(\s*:)?|' + _NUMBER)),
    (b"'", re.compile(rb"'([^']*)'(\s*:)?|" + _NUMBER)),
)
"""Matches strings (also names) and numbers, without backtracking."""


class Redactor:
    """
    Redacts the secrets of one tenant and well-known tokens in texts.

    *fast* is for few secrets that many tenants share.
    """

    def __init__(self, secrets: Mapping[str, str], *, fast: bool = False) -> None:
        marks = _marks_of((name, secrets[name]) for name in sorted(secrets))
        self._automata: tuple[Automaton, ...] = (
            Automaton([*marks, *token_forms()], fast=fast) if marks else plain_automaton(),
        )
        self._marks: list[KnownMatch] | None = marks
        self.is_empty = not marks
        """Whether the tenant has no secrets."""
        self.longest = longest_of(marks)
        """The length of the longest encoding of a secret in bytes."""
        self.shortest = shortest_of(marks, MIN_SPLIT)
        """The length of the shortest encoding of a secret that is searched for in pieces."""
        self.of_caller = False
        """Whether some of the secrets are those of a single call."""
        self._search: Callable[[bytes, bool], object] = self._automata[0].search
        """Returns what is false only if a text has no hit; as an attribute, it costs no call."""

    def with_values(self, values: Iterable[tuple[str, str]]) -> "Redactor":
        """Return a redactor that also redacts values of a single call, by name and value."""
        marks = _marks_of(values)
        return _CallRedactor(self, marks) if marks else self

    def clear(self, text: bytes) -> bool:
        """Return whether the text contains nothing to redact; every call uses this."""
        if len(text) <= SCREENED_BYTES and not (has_layers(text) or self._search(text, True)):
            return True  # true for nearly all texts
        return not self.spans(text)

    def surely_clear(self, text: bytes) -> bool:
        """Return whether a search alone shows that there is nothing to redact."""
        if len(text) <= SCREENED_BYTES and not has_layers(text):
            return not self._search(text, True)
        # If there are several automata, some of the secrets are a caller's.
        return len(self._automata) == 1 and self._automata[0].surely_clear(text)

    def has_no_beginning(self, text: bytes) -> bool:
        """Return whether nothing to redact begins in a text, even if it goes on behind it."""
        return len(self._automata) == 1 and self._automata[0].has_no_hit(text)

    @cached_property
    def _split_screen(self) -> SplitScreen | None:
        """Return the screen of long texts; None for the secrets of a call, and beyond the most."""
        if self._marks is None or len(_screens) >= MAX_SCREENS:
            return None
        screen = SplitScreen(self._marks)
        _screens.add(screen)
        return screen

    def is_unsplit(self, text: bytes, *, is_paired: bool = True) -> bool:
        """
        Return True only if no secret is split over the quoted strings of a text.

        Without *is_paired* a string may also begin behind an even number of quotation marks.
        """
        return self._split_screen is not None and self._split_screen.is_unsplit(
            text, single_decoding=not has_layers(text), is_paired=is_paired
        )

    def is_promptly_unsplit(self, text: bytes) -> bool:
        """
        Return True only if no secret is split over the quoted strings of a text of any length.

        It takes no longer than a search, whatever the text consists of: one with escapes or line
        breaks, which would have to be decoded, is not looked at.
        """
        return (
            self.is_empty or is_unquoted(text) or (not has_layers(text) and self.is_unsplit(text))
        )

    def is_plain_and_clear(self, text: bytes) -> bool:
        """Return whether a short text has no quotation marks, escapes or secrets."""
        return len(text.translate(None, _MARKS)) == len(text) and not self._search(text, True)

    def spans(self, text: bytes) -> list[SecretSpan]:
        """Return the spans to redact: sorted and disjoint."""
        return [] if self.surely_clear(text) else self._spans(text, Automaton.finds)

    def values(self, text: bytes) -> list[SecretSpan]:
        """
        Return the spans of known values only, for a text that was joined from several values.

        A token's form could reach from one value into the next.
        """
        if self.is_empty:
            return []
        if len(text) <= SCREENED_BYTES and not (has_layers(text) or self._search(text, True)):
            return []  # true for nearly all texts
        return self._spans(text, Automaton.values)

    def _spans(
        self, text: bytes, find: Callable[[Automaton, bytes], list[SecretSpan]]
    ) -> list[SecretSpan]:
        try:
            return self._read(text, find)
        except TooMuch as too_much:
            return [SecretSpan(0, len(text), too_much.mark.name, too_much.mark.doubt == 0)]

    def _read(
        self, text: bytes, find: Callable[[Automaton, bytes], list[SecretSpan]]
    ) -> list[SecretSpan]:
        spans: list[SecretSpan] = []
        all_readings = None
        for depth, layer in enumerate(layers(text)):
            for automaton in self._automata:
                for span in find(automaton, layer):
                    if depth == 0:
                        spans.append(span)
                        continue
                    all_readings = all_readings or readings(text)
                    start, end = all_readings[depth].source(span.start, span.end)
                    spans.append(SecretSpan(start, end, span.name, span.secret))
        return merged(spans) if spans else spans

    def clean(self, text: str) -> str:
        """
        Return *text* with `[REDACTED:NAME]` for each span, or the same object if there is none.
        """
        encoded = text.encode(errors="surrogatepass")
        spans = self.spans(encoded)
        return replaced(encoded, spans).decode(errors="replace") if spans else text


class _CallRedactor(Redactor):
    """A redactor with the values of a single call beside those of its tenant."""

    def __init__(self, tenant: Redactor, marks: list[KnownMatch]) -> None:
        self._automata = (*tenant._automata, Automaton(marks, of_call=True))
        self._search = lambda text, overlapping: True  # the automata search one after another
        self._marks = None
        self.is_empty, self.of_caller = False, True
        self.longest = max(tenant.longest, longest_of(marks))
        shortest = [tenant.shortest, shortest_of(marks, MIN_SPLIT)]
        self.shortest = min(filter(None, shortest), default=0)


def _marks_of(values: Iterable[tuple[str, str]]) -> list[KnownMatch]:
    """Return what to search for, of secrets by name and value."""
    return [
        mark
        for name, value in values
        for meaning in meant_by(value)
        for mark in marks_of(name, meaning)
    ]


def has_layers(text: bytes) -> bool:
    """Return whether a text may have more than one decoding."""
    return (
        BACKSLASH in text
        or PERCENT in text
        or NEWLINE in text
        or AMPERSAND in text
        or CARRIAGE_RETURN in text
    )


def is_prompt(text: bytes, *, of_caller: bool = False) -> bool:
    """
    Return whether a text can be redacted on the event loop, whatever its content.

    *of_caller*: some of the secrets are the caller's, who may have chosen them to cost time.
    """
    if len(text) <= SHORT_BYTES:
        return True
    if of_caller or len(text) > PROMPT_BYTES:
        return False
    return len(text) - len(text.translate(None, _MARKS)) <= PROMPT_MARKS


def is_unquoted(text: bytes) -> bool:
    """Return whether nothing in a text is in quotation marks, in whatever way they are written."""
    return not (
        QUOTE in text
        or APOSTROPHE in text
        or BACKSLASH in text
        or PERCENT in text
        or AMPERSAND in text
    )


def quoted(text: bytes, redactor: Redactor) -> list[SecretSpan]:
    """Return the spans of secrets that are split over the strings of *text*, unordered."""
    quoted_spans: list[SecretSpan] = []
    if redactor.is_empty or not redactor.shortest:
        return quoted_spans
    # Decoding an escape may make a text longer, but by less than half.
    if len(text) < redactor.shortest and (
        2 * len(text) < redactor.shortest or not has_layers(text)
    ):
        return quoted_spans
    if is_unquoted(text) or (len(text) > FEW_BYTES and redactor.is_unsplit(text)):
        return quoted_spans  # most answers
    all_readings = None
    for depth, layer in enumerate(layers(text) if has_layers(text) else [text]):
        for quote, form in _LEAVES:
            if layer.count(quote) < 2:
                continue
            spans = _split(layer, quote, form, redactor, 0)
            if depth or quote == b"'":
                # After a quotation mark that begins an outer string, and after an apostrophe, the
                # parts that seem to be between strings are the strings.
                spans += _split(layer, quote, form, redactor, layer.index(quote) + 1)
            for span in spans:
                all_readings = all_readings or readings(text)
                start, end = all_readings[depth].source(span.start, span.end)
                quoted_spans.append(SecretSpan(start, end, span.name))
    return quoted_spans


def are_clear(documents: Sequence[bytes], redactor: Redactor) -> bool:
    """
    Return True only if `cleaned` would find nothing in any of these JSON documents.

    It decides the usual case, short documents without escapes, at a fraction of the cost.
    """
    joined = SEPARATOR.join(documents)
    # A secret that seems to be split over two documents is searched again in each document.
    if BACKSLASH in joined or not redactor.clear(joined) or quoted(joined, redactor):
        return False
    if b"-----BEGIN " not in joined and not has_layers(joined):
        return True
    # A private key may be a list of its lines, which only the strings by themselves show.
    return not any(redactor.spans(SEPARATOR.join(text.split(b'"')[1::2])) for text in documents)


def cleaned_text(text: str, redactor: Redactor) -> str:
    """Return *text* redacted, including split secrets, or the same object if there are none."""
    encoded = text.encode(errors="surrogatepass")
    quoted_spans = quoted(encoded, redactor)
    if not quoted_spans:
        return redactor.clean(text)
    spans = merged([*redactor.spans(encoded), *quoted_spans])
    return replaced(encoded, spans).decode(errors="replace")


def _split(
    layer: bytes, quote: bytes, form: re.Pattern[bytes], redactor: Redactor, begin: int
) -> list[SecretSpan]:
    """Return the same for one decoding of the text, from *begin* on."""
    if not _may_be_split(layer[begin:], quote, redactor):
        return []  # true for nearly all, at a fraction of the cost
    # The replacement has the same length, so that each remaining quotation mark keeps its place and
    # meaning.
    masked = layer.replace(b"\\\\", b"\0\0").replace(b"\\" + quote, b"\0\0")
    leaves = [
        QuotedLeaf(match.start(3), match.end(3), False, True)
        if match[3]
        else QuotedLeaf(match.start(1), match.end(1), match[2] is not None, False)
        for match in form.finditer(masked, begin)
    ]
    split_spans: list[SecretSpan] = []
    values = [leaf for leaf in leaves if not leaf.is_name]
    strings = [leaf for leaf in leaves if not leaf.is_number]
    for view in ([leaf for leaf in values if not leaf.is_number], strings, values):
        spans = redactor.values(b"".join([layer[leaf.start : leaf.end] for leaf in view]))
        spans = [span for span in spans if span.end - span.start >= MIN_SPLIT]
        for pieces in placed(spans, [leaf.end - leaf.start for leaf in view]):
            if all(view[nth].is_number for nth, _ in pieces):
                continue  # adjacent numbers are not one value
            for nth, piece in pieces:
                start = view[nth].start
                split_spans.append(SecretSpan(start + piece.start, start + piece.end, piece.name))
    return split_spans


def _may_be_split(text: bytes, quote: bytes, redactor: Redactor) -> bool:
    """Return whether a known value stands in the strings of a text, however they are joined."""
    if b"\\" not in text:
        # A split secret extends over the end of a string, unless the string has other decodings.
        edge = 0 if has_layers(text) else redactor.longest
        views = joined_strings(text, quote, edge)
    elif SEPARATOR in text:
        return True
    else:
        views = joined_strings(masked_escapes(text, quote), quote)
        views = [unmasked_escapes(view, quote) for view in views]
    return bool(redactor.values(SEPARATOR.join(views)))


class LogContext(Protocol):
    """The current call; tasks that outlive it keep it."""

    over: bool

    def now(self) -> Redactor:
        """Return the current redactor of its tenant."""


class TenantRedactors(Protocol):
    """Holds the redactors of several tenants."""

    def redactors(self) -> Iterable[Redactor]:
        """Return all redactors."""

    def redactor_for(self, tenant: str | None) -> Redactor:
        """Return that of a tenant, which also knows the server's own secrets."""


CURRENT_CALL: ContextVar[LogContext | None] = ContextVar("gatepost_call", default=None)
"""The current call; threads and tasks inherit it."""

_holders: WeakSet[TenantRedactors] = WeakSet()
_screens: WeakSet[SplitScreen] = WeakSet()
_PLAIN = Redactor({})


def redact_logs_of(holder: TenantRedactors) -> None:
    """Redact log lines outside calls with the secrets of this holder while it exists."""
    _holders.add(holder)


def cleaned_for_log(text: str, tenant: str) -> str:
    """
    Return a text for the log, redacted.

    Within a call, the secrets of its tenant are redacted; elsewhere of *tenant*, or of all known.
    """
    call = CURRENT_CALL.get()
    if call is not None and not call.over:
        return cleaned_text(text, call.now())
    for holder in [*_holders]:
        for redactor in [holder.redactor_for(tenant)] if tenant else [*holder.redactors()]:
            text = cleaned_text(text, redactor)
    return _PLAIN.clean(text)
