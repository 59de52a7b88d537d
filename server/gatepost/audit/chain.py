"""
The hash chain of one writer in one tenant: commitments to details, hashes of records, and the proof
of its head.
"""

import os
from binascii import hexlify
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import sha256
from io import BytesIO

import msgspec

from gatepost.secrets.keyring import KeyRing
from gatepost.storage.audit import FIRST_WRITER, AuditRow, ChainHead, ChainKey

START = bytes(32)
"""The previous hash of the first record."""
PURPOSE = "audit head"

LONGEST = 4_096
"""Maximum number of characters of any text except the arguments, which have their own limit."""
SALT_BYTES = 16

Value = tuple[bytes, bytes, bytes]
"""A detail: its field as a JSON string, the hashed bytes, and its value as a JSON string."""

_encode = msgspec.json.Encoder(order="sorted").encode


def encode(value: object) -> str:
    """Encode JSON with sorted members."""
    return _encode(value).decode()


def text(value: str, max_characters: int = LONGEST) -> str:
    """Return a text that every database and JSON library accepts, truncated to *max_characters*."""
    cut = value if len(value) <= max_characters else f"{value[:max_characters]}…"
    if cut.isascii() and "\0" not in cut:
        return cut
    return cut.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


def value_of(field: bytes, text: str) -> Value:
    """Return a detail; *field* is a JSON string."""
    return field, text.encode(), _encode(text)


def salted_details(values: Sequence[Value], salts: BytesIO) -> tuple[bytes, bytes]:
    """
    Return the details and the commitments to them, both as JSON.

    Each value takes one of the *salts*; if there are too few, more are drawn.
    """
    side, commitments = list[bytes](), list[bytes]()
    for field, value, written in values:
        salt = salts.read(SALT_BYTES) or os.urandom(SALT_BYTES)
        side += (b",", field, b':["', hexlify(salt), b'",', written, b"]")
        commitments += (b",", field, b':"', hexlify(sha256(salt + value).digest()), b'"')
    side[0] = commitments[0] = b"{"
    return b"".join(side) + b"}", b"".join(commitments) + b"}"


def commitment(salt: str, value: str) -> str:
    """Return the commitment to a value; raise ValueError for an invalid salt."""
    return sha256(bytes.fromhex(salt) + value.encode()).hexdigest()


def hash_of(previous: bytes, body: bytes) -> bytes:
    """Return the hash of a record from the *previous* hash and its body."""
    return sha256(previous + body).digest()


def first(chain: ChainKey) -> ChainHead:
    """Return the head of an empty chain."""
    return ChainHead(*chain, 0, START, 0, "")


def proven(head: ChainHead, keyring: KeyRing) -> ChainHead:
    """Return the head with its proof."""
    proof = keyring.authenticate(PURPOSE, _signed_part(head))
    return ChainHead(head.tenant, head.writer, head.number, head.hash, head.pruned, proof)


def is_proven(head: ChainHead, keyring: KeyRing) -> bool:
    """Return whether a holder of the ring wrote exactly this head."""
    return keyring.is_authentic(PURPOSE, _signed_part(head), head.proof)


def _signed_part(head: ChainHead) -> bytes:
    return _encode([head.tenant, head.writer, head.number, head.hash.hex(), head.pruned])


def tampering_reason(
    stored_head: ChainHead | None, last_head: ChainHead | None, keyring: KeyRing
) -> str:
    """Return why *stored_head* cannot be the last head of a chain; empty if it can."""
    if stored_head is None:
        return "the end of the chain is gone" if last_head else ""
    if last_head and stored_head.number < last_head.number:
        return "the end of the chain is older than it was"
    if not stored_head.proof:
        return "records come after the end of the chain"
    if stored_head == last_head or is_proven(stored_head, keyring):
        return ""
    key_id = stored_head.proof.partition(".")[0]
    if keyring.find(key_id) is None:
        if not keyring.lasting:
            return ""  # a temporary ring: nothing can be proven after a restart
        # Another process may have a key of this second. Ids that callers choose make `find` wait
        # that long, but they do not choose this id.
        keyring.reread()
        if is_proven(stored_head, keyring):
            return ""
    return "the proof of the end of the chain is not by a key of the ring"


class HeadProofs(msgspec.Struct, eq=False):
    """Prove heads with the key ring; a part of `Linker`."""

    keyring: KeyRing

    def prove(self, head: ChainHead) -> ChainHead:
        """Implement `Linker`."""
        return proven(head, self.keyring)

    def proves(self, head: ChainHead) -> bool:
        """Implement `Linker`."""
        return is_proven(head, self.keyring)

    def invalid_reason(self, head: ChainHead) -> str:
        """Implement `Linker`."""
        return tampering_reason(head, None, self.keyring)


def writer_member(writer: int) -> bytes:
    """Return the member of a body that names its writer; the first one is not named."""
    return b"" if writer == FIRST_WRITER else b',"writer":%d' % writer


def split_rows(
    rows: Sequence[AuditRow], bodies: Counter[bytes]
) -> tuple[list[AuditRow], list[AuditRow]]:
    """
    Return the rows of new records with these bodies, and all other rows.

    A body without details has no salt, so several records may have the same one: the last count.
    """
    sought, own_rows, other_rows = bodies.copy(), list[AuditRow](), list[AuditRow]()
    for row in reversed(rows):
        start = b'{"number":%d%b' % (row.number, writer_member(row.writer))
        body = row.body.encode().removeprefix(start)
        if sought[body] > 0:
            sought[body] -= 1
            own_rows.append(row)
        else:
            other_rows.append(row)
    return own_rows[::-1], other_rows[::-1]


Ranges = list[tuple[int, int]]
"""The first and last number of each range, in order."""


def ranges_of(numbers: Iterable[int]) -> str:
    """Return ascending numbers as an erasure record names them: 1-3,7."""
    ranges: Ranges = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


def numbers_of(ranges: str) -> Ranges:
    """Return the ranges that `ranges_of` wrote."""
    numbers = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if first:
            numbers.append((int(first), int(last or first)))
    return numbers


def inside(number: int, ranges: Ranges) -> bool:
    """Return whether one of the ranges contains the number."""
    at = bisect_right(ranges, (number, 1 << 62)) - 1
    return at >= 0 and number <= ranges[at][1]
