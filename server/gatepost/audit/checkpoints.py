"""Checkpoints: signed statements of the ends of a tenant's chains, verified with a public key."""

import base64
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Annotated

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
)

from gatepost.audit.chain import first, is_proven, proven
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.audit import (
    CHECKPOINTS,
    FIRST_WRITER,
    ChainHead,
    Checkpoint,
    Sign,
    TenantTrail,
)
from gatepost.storage.records import Records
from gatepost.telemetry.logs import OwnText

PURPOSE = "audit checkpoint"
PublicKeys = Mapping[str, Ed25519PublicKey]
"""Public keys by the id of the key in the ring that they are derived from."""

_NAMED = "# key "

log = logging.getLogger("gatepost.audit")


Stored = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""The largest number that a database can store; a changed statement may contain any number."""
Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class Statement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The fields of a checkpoint, in the order in which they are signed."""

    tenant: str
    number: Stored
    """The last record of writer 1; 0: it has none."""
    hash: Digest
    """The hash of that record in hexadecimal."""
    at: int
    """The time of the signature, in milliseconds since the epoch."""
    previous: str
    """The hexadecimal digest of the previous checkpoint (`digest_of`); empty for the first one."""
    key: str
    others: tuple[tuple[Stored, Stored, Digest], ...] = ()
    """Each other writer, and the number and the hash of its last record."""

    def ends(self) -> dict[int, tuple[int, str]]:
        """Return the number and the hash of the last record of each writer that has any."""
        first = {FIRST_WRITER: (self.number, self.hash)} if self.number else {}
        return first | {writer: (number, digest) for writer, number, digest in self.others}

    def covers(self) -> int:
        """Return how many records it covers."""
        return self.number + sum(number for _, number, _ in self.others)


decode = msgspec.json.Decoder(Statement).decode


class Unproven(Exception):
    """Raised for a tenant whose heads must not be signed: one has no valid proof, or is too low."""


def digest_of(checkpoint: Checkpoint) -> bytes:
    """Return the digest of a checkpoint, which the next one and the head contain."""
    return sha256(f"{checkpoint.statement}\n{checkpoint.signature}".encode()).digest()


def signed(
    heads: Sequence[ChainHead], keyring: KeyRing, *, at: int
) -> tuple[Checkpoint, ChainHead] | None:
    """
    Return a checkpoint of a tenant's heads, and the head of its chain of checkpoints.

    Return None if no chain has grown. Raises Unproven.
    """
    tenant = heads[0].tenant
    ends = {one.writer: one for one in heads}
    last = ends.pop(CHECKPOINTS, None) or first((tenant, CHECKPOINTS))
    number = sum(one.number for one in ends.values())
    if number == last.number:
        return None
    if number < last.number or not all(is_proven(one, keyring) for one in heads):
        raise Unproven(tenant)
    key, main = keyring.current, ends.pop(FIRST_WRITER, None) or first((tenant, FIRST_WRITER))
    statement = Statement(
        tenant,
        main.number,
        main.hash.hex(),
        at,
        last.hash.hex() if last.number else "",
        key.id,
        tuple((one.writer, one.number, one.hash.hex()) for one in ends.values()),
    )
    text = msgspec.json.encode(statement)
    signature = base64.b64encode(_private(keyring, key.id).sign(text)).decode()
    checkpoint = Checkpoint(number, text.decode(), signature)
    known = msgspec.structs.replace(last, number=number, hash=digest_of(checkpoint))
    return checkpoint, proven(known, keyring)


def signer(keyring: KeyRing, clock: Callable[[], float]) -> Sign:
    """Return a function that signs heads; it raises Unproven."""

    def sign(
        heads: Sequence[ChainHead], newest: Checkpoint | None
    ) -> tuple[Checkpoint, ChainHead] | None:
        made = signed(heads, keyring, at=int(clock() * 1000))
        if made is not None and not follow(heads, newest):
            raise Unproven(heads[0].tenant)
        return made

    return sign


def follow(heads: Sequence[ChainHead], newest: Checkpoint | None) -> bool:
    """
    Return whether these heads can be later than the newest checkpoint of their tenant.

    A chain that is shorter than a checkpoint says was cut, and the next checkpoint must not vouch
    for the rest of it.
    """
    numbers = {one.writer: one.number for one in heads}
    last = next((one for one in heads if one.writer == CHECKPOINTS and one.number), None)
    if last is None or newest is None:
        return last is None and newest is None
    if (newest.number, digest_of(newest)) != (last.number, last.hash):
        return False
    ends = last_numbers(newest)
    return all(number <= numbers.get(writer, 0) for writer, number in ends.items())


def last_numbers(checkpoint: Checkpoint) -> dict[int, int]:
    """Return the last record of each writer that a checkpoint covers; none if it was changed."""
    try:
        ends = decode(checkpoint.statement).ends()
    except msgspec.DecodeError:
        return {}  # `verify` reports more
    return {writer: number for writer, (number, _) in sorted(ends.items())}


async def is_before(
    trail: TenantTrail, checkpoint: Checkpoint, limit: int, removed: Mapping[int, int]
) -> bool:
    """
    Return whether the last records that it covers are from before *limit* (milliseconds).

    *removed* has the last record of each writer that retention has removed.
    """
    ends = last_numbers(checkpoint)
    for writer, number in ends.items():
        if number <= removed.get(writer, 0):
            continue  # an earlier removal has taken it, and the writer has written nothing since
        last = await trail.chain(writer).rows(number - 1, 1)
        if not last or last[0].number != number or last[0].at >= limit:
            return False
    return bool(ends)


async def sign(records: Records, keyring: KeyRing, tenant: str, clock: Callable[[], float]) -> None:
    """Sign a checkpoint of a tenant's chains if any has grown, and log it."""
    checkpoint = await records.of(tenant).trail.check(signer(keyring, clock))
    if checkpoint is not None:
        log_checkpoint(tenant, checkpoint)


def log_checkpoint(tenant: str, checkpoint: Checkpoint) -> None:
    """Write a checkpoint to the log, which is usually stored elsewhere."""
    log.info(
        "audit_checkpoint",
        extra={
            "tenant": tenant,
            "number": checkpoint.number,
            # Ten thousand tenants have as many checkpoints each minute.
            "statement": OwnText(checkpoint.statement),
            "signature": OwnText(checkpoint.signature),
        },
    )


def is_signed(checkpoint: Checkpoint, statement: Statement, keys: PublicKeys) -> bool | None:
    """Return whether the signature is valid; None if the key is not in *keys*."""
    key = keys.get(statement.key)
    if key is None:
        return None
    try:
        key.verify(
            base64.b64decode(checkpoint.signature, validate=True), checkpoint.statement.encode()
        )
    except (InvalidSignature, ValueError):
        return False
    return True


def _private(keyring: KeyRing, key_id: str) -> Ed25519PrivateKey:
    key = keyring.find(key_id)
    assert key is not None  # noqa: S101  # the ring's own key
    return _private_of(keyring.derived(key, PURPOSE))


@lru_cache(maxsize=1)  # creating it takes as long as a signature
def _private_of(secret: bytes) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(secret)


def public_keys(keyring: KeyRing) -> dict[str, Ed25519PublicKey]:
    """Return the public keys of every key in the ring, which verify signatures."""
    return {key.id: _private(keyring, key.id).public_key() for key in keyring.keys}


def as_pem(keys: PublicKeys) -> str:
    """Return the text of a key file: each key in PEM, after a line with its id."""
    form = (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return "".join(
        f"{_NAMED}{name}\n{key.public_bytes(*form).decode()}" for name, key in keys.items()
    )


def from_pem(text: str) -> dict[str, Ed25519PublicKey]:
    """Read the text of a key file; raises ValueError."""
    keys = {}
    for part in text.split(_NAMED)[1:]:
        name, _, pem = part.partition("\n")
        key = load_pem_public_key(pem.encode())
        if not isinstance(key, Ed25519PublicKey):
            raise ValueError(f"the key {name.strip()} is not of Ed25519")
        keys[name.strip()] = key
    if not keys:
        raise ValueError("there is no key in it; `gatepost audit key` writes such a file")
    return keys
