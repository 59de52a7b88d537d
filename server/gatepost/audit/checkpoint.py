"""Signed statements of where a chain was, which anybody can check who has the public key."""

import base64
from collections.abc import Callable, Mapping
from hashlib import sha256

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

from gatepost.audit.chain import is_proven, proven
from gatepost.keyring import KeyRing
from gatepost.stores.audit import Checkpoint, Head

PURPOSE = "audit checkpoint"
PublicKeys = Mapping[str, Ed25519PublicKey]
"""By the id of the ring's key that they come from."""

_NAMED = "# key "


class Statement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a checkpoint says, in this order."""

    tenant: str
    number: int
    hash: str
    """Of the record with that number, in hexadecimal."""
    at: int
    """When it was signed, in milliseconds since the epoch."""
    previous: str
    """The digest of the checkpoint before (`seal_of`), in hexadecimal; empty: it is the first."""
    key: str


decode = msgspec.json.Decoder(Statement).decode


class Unproven(Exception):
    """A head that no holder of the ring has written: to sign it would be to vouch for it."""


def seal_of(checkpoint: Checkpoint) -> bytes:
    """The digest of a checkpoint, by which the next one and the head know it."""
    return sha256(f"{checkpoint.statement}\n{checkpoint.signature}".encode()).digest()


def signed(head: Head, keyring: KeyRing, *, at: int) -> tuple[Checkpoint, Head]:
    """A checkpoint of the head, and the head that knows of it; raises Unproven."""
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
) -> Callable[[Head], tuple[Checkpoint, Head] | None]:
    """See `Sign`."""

    def sign(head: Head) -> tuple[Checkpoint, Head] | None:
        if head.number == head.checkpoint:
            return None
        return signed(head, keyring, at=int(clock() * 1000))

    return sign


def is_signed(checkpoint: Checkpoint, statement: Statement, keys: PublicKeys) -> bool | None:
    """Whether its key signed it; None: nobody here has that key."""
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
    """What auditors check signatures with, of every key in the ring."""
    return {key.id: _private(keyring, key.id).public_key() for key in keyring.keys}


def as_pem(keys: PublicKeys) -> str:
    """The keys as a file: each in PEM, below a line with its id."""
    form = (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return "".join(
        f"{_NAMED}{name}\n{key.public_bytes(*form).decode()}" for name, key in keys.items()
    )


def from_pem(text: str) -> dict[str, Ed25519PublicKey]:
    """The keys of such a file; raises ValueError."""
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
