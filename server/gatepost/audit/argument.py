"""What a record shows of a call's arguments: no secret, and not too much."""

from collections.abc import Sequence

from gatepost.audit.record import text
from gatepost.redaction.automaton import Redactor
from gatepost.redaction.document import cleaned
from gatepost.tools.redaction import Guard

OVERLAP_BYTES = 65_536
"""
How much behind what is kept of the arguments is looked at: a secret that begins before the cut must
be found whole. No kept secret is longer.
"""
TOGETHER = 64
"""So many are searched in one go, during which no other thread runs."""

_APART = b"\0"
"""In no token, in no secret and in no JSON."""
_ONE = 4
"""Quotation marks of an object with no more than one string that is no name."""


def may_show(guard: Guard, outcome: str) -> bool:
    """
    Whether all secrets in the arguments are known, so that what is left may be shown.

    Where a tool takes secrets, they are found in arguments that its schema allows; in others they
    may stand anywhere.
    """
    if outcome == "rate_limit":
        return False
    return guard.checked and outcome != "validation" if guard.offer.secret_arguments else True


def shown(guard: Guard, most: int) -> str:
    """The call's arguments without secrets, cut to so many bytes."""
    arguments = guard.call.arguments
    window = arguments[: most + OVERLAP_BYTES]
    clean = cleaned(window, guard.now())
    data = window if clean is None else clean
    if len(arguments) <= most:
        return text(data.decode(errors="replace"), len(data))
    return text(data[:most].decode(errors="replace"), most) + "…"


def plain(guards: Sequence[Guard], most: int) -> set[int]:
    """
    The guards, by their identity, whose arguments are shown as they are: no tool's that takes
    secrets, not too long, and sure to hold no secret. That is usual, and found out for many at
    once costs a fraction of what `shown` does. Of all others nothing is said.
    """
    found: set[int] = set()
    for at in range(0, len(guards), TOGETHER):
        alike: dict[Redactor, list[Guard]] = {}
        for guard in guards[at : at + TOGETHER]:
            if not guard.offer.secret_arguments and len(guard.call.arguments) <= most:
                redactor = guard.redaction.of(guard.call.caller.tenant_id)  # its `now`, sooner
                alike.setdefault(redactor, []).append(guard)
        for redactor, group in alike.items():
            if harmless([guard.call.arguments for guard in group], redactor):
                found.update(map(id, group))
            else:
                found.update(id(one) for one in group if harmless([one.call.arguments], redactor))
    return found


def harmless(documents: Sequence[bytes], redactor: Redactor) -> bool:
    """
    Whether `cleaned` is sure to find nothing in any of these: decides the usual case, short
    documents without escapes, at a fraction of its cost. False says nothing.
    """
    whole = _APART.join(documents)
    if b"\\" in whole or not redactor.clear(whole):
        return False
    several = [_values(one) for one in documents if one.count(b'"') > _ONE or one[:1] != b"{"]
    return not several or redactor.clear(_APART.join(several))


def _values(document: bytes) -> bytes:
    """Its strings but for names, one after another, as a secret may be split over several."""
    pieces = document.split(b'"')
    strings = zip(pieces[1::2], pieces[2::2], strict=False)
    return b"".join(string for string, behind in strings if behind[:1] != b":")
