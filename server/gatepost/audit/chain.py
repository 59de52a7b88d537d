"""How records hang together: each holds the one before, and the last one is proven by a key."""

from collections.abc import Sequence
from hashlib import sha256

import msgspec
import structlog

from gatepost.audit.record import Body, draft
from gatepost.keyring import KeyRing
from gatepost.stores.audit import Draft, Head, Segment
from gatepost.stores.segment import element, segments

START = bytes(32)
"""Stands before the first record's body."""
PURPOSE = "audit head"

log = structlog.get_logger("gatepost.audit")


def hash_of(previous: bytes, body: bytes) -> bytes:
    """The hash of a record with that body behind the one with the *previous* hash."""
    return sha256(previous + body).digest()


def first(tenant: str) -> Head:
    """The head of a chain without records."""
    return Head(tenant, 0, START, 0, 0, b"", "")


def _said(head: Head) -> bytes:
    return msgspec.json.encode(
        [head.tenant, head.number, head.hash.hex(), head.pruned, head.checkpoint, head.seal.hex()]
    )


def proven(head: Head, keyring: KeyRing) -> Head:
    """The head with its proof."""
    return msgspec.structs.replace(head, proof=keyring.sign(PURPOSE, _said(head)))


def is_proven(head: Head, keyring: KeyRing) -> bool:
    """Whether a holder of the ring wrote exactly this head."""
    return keyring.verify(PURPOSE, head.proof) == _said(head)


def extended(head: Head, drafts: Sequence[Draft]) -> tuple[list[Segment], Head]:
    """What the drafts become behind *head*, and the head after them, not yet proven."""
    number, previous = head.number, head.hash
    elements = []
    for one in drafts:
        number += 1
        body = b'{"number":%d%b' % (number, one.body)
        previous = sha256(previous + body).digest()
        elements.append(element(body, one.side, previous))
    times, sorts = [one.at for one in drafts], [one.sort for one in drafts]
    made = segments(head.number + 1, elements, times, sorts)
    return made, msgspec.structs.replace(head, number=number, hash=previous)


class Linker:
    """
    Extends chains for one process, which remembers where it left each of them.

    A head that nobody of ours can have written is not extended silently: what was cut off before it
    would be covered up by the next proof.
    """

    def __init__(self, keyring: KeyRing) -> None:
        self._keyring = keyring
        self._left: dict[str, Head] = {}
        self._made: dict[str, Head] = {}

    def keep(self) -> None:
        """What was linked since the last time is in the database."""
        self._left |= self._made
        self._made = {}

    def drop(self) -> None:
        """It is not, or nobody knows."""
        self._made = {}

    def link(
        self, tenant: str, found: Head | None, drafts: Sequence[Draft]
    ) -> tuple[list[Segment], Head]:
        """See `Link`."""
        head = found or first(tenant)
        if reason := self._suspicion(tenant, found):
            log.error("audit_chain_broken", tenant=tenant, number=head.number, reason=reason)
            drafts = [_broken(tenant, reason, drafts[0].at), *drafts]
        made, head = extended(head, drafts)
        head = self._made[tenant] = proven(head, self._keyring)
        return made, head

    def _suspicion(self, tenant: str, found: Head | None) -> str:
        """Why this cannot be the head that was left; empty: it can."""
        left = self._left.get(tenant)
        if found is None:
            return "the end of the chain is gone" if left else ""
        if found == left:
            return ""
        if left and found.number < left.number:
            return "the end of the chain is older than it was"
        if is_proven(found, self._keyring):
            return ""
        key_id = found.proof.partition(".")[0]
        if not self._keyring.lasting and self._keyring.find(key_id) is None:
            return ""  # a ring of one run: nothing is proven over a restart
        return "the proof of the end of the chain is not by a key of the ring"


def _broken(tenant: str, reason: str, at: int) -> Draft:
    body = Body(at=at, kind="break", tenant=tenant, outcome="broken", details={"reason": reason})
    return draft(body, {})
