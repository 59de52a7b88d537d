"""Checkpoints: signed statements of a chain's last record, verified with a public key."""

import base64
from collections.abc import Callable, Mapping
from hashlib import sha256

import msgspec
import structlog
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

from gatepost.audit.chain import is_proven, proven
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.audit import ChainHead, Checkpoint
from gatepost.storage.records import Records

PURPOSE = "audit checkpoint"
PublicKeys = Mapping[str, Ed25519PublicKey]
"""Public keys by the id of the key in the ring that they are derived from."""

_NAMED = "# key "

log = structlog.get_logger("gatepost.audit")


class Statement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of a checkpoint, in the order in which they are signed."""

    tenant: str
    number: int
    hash: str
    """The hash of the record with that number, in hexadecimal."""
    at: int
    """The time of the signature, in milliseconds since the epoch."""
    previous: str
    """The digest of the previous checkpoint (`seal_of`) in hexadecimal; empty for the first one."""
    key: str


decode = msgspec.json.Decoder(Statement).decode


class Unproven(Exception):
    """Raised for a head without a valid proof, which must not be signed."""


def seal_of(checkpoint: Checkpoint) -> bytes:
    """Return the digest of a checkpoint, which the next one and the head contain."""
    return sha256(f"{checkpoint.statement}\n{checkpoint.signature}".encode()).digest()


def signed(head: ChainHead, keyring: KeyRing, *, at: int) -> tuple[Checkpoint, ChainHead]:
    """Return a checkpoint of the head and the head that contains its digest; raises Unproven."""
    if not is_proven(head, keyring):
        raise Unproven(head.tenant)
    key = keyring.current
    previous = head.seal.hex()
    statement = Statement(head.tenant, head.number, head.hash.hex(), at, previous, key.id)
    text = msgspec.json.encode(statement)
    signature = base64.b64encode(_private(keyring, key.id).sign(text)).decode()
    checkpoint = Checkpoint(head.number, text.decode(), signature)
    known = msgspec.structs.replace(head, checkpoint=head.number, seal=seal_of(checkpoint))
    return checkpoint, proven(known, keyring)


def signer(
    keyring: KeyRing, clock: Callable[[], float]
) -> Callable[[ChainHead], tuple[Checkpoint, ChainHead] | None]:
    """Return a function that signs a head, or returns None if it has a checkpoint already."""

    def sign(head: ChainHead) -> tuple[Checkpoint, ChainHead] | None:
        if head.number == head.checkpoint:
            return None
        return signed(head, keyring, at=int(clock() * 1000))

    return sign


async def sign(records: Records, keyring: KeyRing, tenant: str, clock: Callable[[], float]) -> None:
    """Sign a checkpoint of a tenant's chain if it has grown, and log it."""
    checkpoint = await records.of(tenant).trail.check(signer(keyring, clock))
    if checkpoint is not None:
        log_checkpoint(tenant, checkpoint)


def log_checkpoint(tenant: str, checkpoint: Checkpoint) -> None:
    """Write a checkpoint to the log, which is usually stored elsewhere."""
    log.info(
        "audit_checkpoint",
        tenant=tenant,
        number=checkpoint.number,
        statement=checkpoint.statement,
        signature=checkpoint.signature,
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
    assert key is not None  # noqa: S101  # the ring's own
    return Ed25519PrivateKey.from_private_bytes(keyring.derived(key, PURPOSE))


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
