"""Checkpoints: signed statements of the ends of a tenant's chains, verified with a public key."""

import asyncio
import base64
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from typing import Annotated

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from gatepost.audit.batches import WriteAttempt
from gatepost.audit.chain import first, is_proven, proven
from gatepost.audit.record_builder import log_record
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.audit import (
    CHECKPOINTS,
    FIRST_WRITER,
    AuditStore,
    ChainHead,
    ChainKey,
    Checkpoint,
)
from gatepost.telemetry.logs import TrustedText

PURPOSE = "audit checkpoint"
PublicKeys = Mapping[str, Ed25519PublicKey]
"""Public keys by the id of the key in the ring that they are derived from."""

AT_ONCE = 50
"""Tenants that are signed in one transaction, which takes about 10 ms."""
SHARE = 0.1
"""Share of the time that signing and removing may take; the rest is for calls."""
LONGEST_PAUSE_S = 1.0


log = logging.getLogger(__name__)


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
    ends = {head.writer: head for head in heads}
    last = ends.pop(CHECKPOINTS, None) or first((tenant, CHECKPOINTS))
    number = sum(head.number for head in ends.values())
    if number == last.number:
        return None
    if number < last.number or not all(is_proven(head, keyring) for head in heads):
        raise Unproven(tenant)
    key, main = keyring.current, ends.pop(FIRST_WRITER, None) or first((tenant, FIRST_WRITER))
    statement = Statement(
        tenant,
        main.number,
        main.hash.hex(),
        at,
        last.hash.hex() if last.number else "",
        key.id,
        tuple((head.writer, head.number, head.hash.hex()) for head in ends.values()),
    )
    text = msgspec.json.encode(statement)
    signature = base64.b64encode(_private_of(keyring.derived(key, PURPOSE)).sign(text)).decode()
    checkpoint = Checkpoint(number, text.decode(), signature)
    new_head = msgspec.structs.replace(last, number=number, hash=digest_of(checkpoint))
    return checkpoint, proven(new_head, keyring)


def follow(heads: Sequence[ChainHead], newest: Checkpoint | None) -> bool:
    """
    Return whether these heads can be later than the newest checkpoint of their tenant.

    A chain that is shorter than a checkpoint says was cut, and the next checkpoint must not vouch
    for the rest of it.
    """
    numbers = {head.writer: head.number for head in heads}
    last = next((head for head in heads if head.writer == CHECKPOINTS and head.number), None)
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


class CheckpointSigner:
    """
    Sign checkpoints of all chains that have grown.

    Every replica does this; a second replica finds nothing left to do.
    """

    def __init__(
        self, audit_store: AuditStore, keyring: KeyRing, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._audit_store, self._keyring, self._clock = audit_store, keyring, clock

    async def sign(self, *, within_s: float | None = None) -> bool:
        """
        Sign a checkpoint of every chain that has grown; return whether all are signed.

        It signs a few at a time and pauses between two batches for much longer than a batch takes,
        so that calls get the database and the processor. With *within_s* it does not pause, and
        stops after so many seconds. Raises StoreUnavailable.
        """
        if not self._keyring.lasting:
            return True  # signatures of a temporary ring could not be verified later
        until = None if within_s is None else time.monotonic() + within_s
        after = ""
        while True:
            began = time.monotonic()
            heads = await self._audit_store.heads(after, AT_ONCE, unsigned=self._keyring.current.id)
            await self._sign(heads)
            if len(heads) < AT_ONCE:
                return True
            after = [*heads][-1]
            if until is None:
                await pause(time.monotonic() - began)
            elif time.monotonic() >= until:
                return False

    async def _sign(self, heads: Mapping[str, Sequence[ChainHead]]) -> None:
        """Sign a checkpoint of each tenant with these heads."""
        # Otherwise the key that proves the end of an idle chain would leave the ring one day, and
        # the proof would be lost with it.
        current = f"{self._keyring.current.id}."
        if renewed := [
            head.key
            for ends in heads.values()
            for head in ends
            if head.writer != CHECKPOINTS
            and not head.proof.startswith(current)
            and is_proven(head, self._keyring)
        ]:
            await self._renew(renewed)
        # Signed in a thread and without a lock; only chains that have grown meanwhile are signed
        # again while the checkpoints are locked.
        prepared = await asyncio.to_thread(
            lambda: {tuple(ends): self._signed(ends) for ends in heads.values()}
        )

        def sign(
            ends: Sequence[ChainHead], newest: Checkpoint | None
        ) -> tuple[Checkpoint, ChainHead] | None:
            try:
                return self._checked(ends, newest, prepared.get(tuple(ends)))
            except Unproven:
                log.error("audit_checkpoint_refused", extra={"tenant": ends[0].tenant})
                return None

        checkpoints = await self._audit_store.sign([*heads], sign)
        for tenant, checkpoint in checkpoints.items():
            _log_checkpoint(tenant, checkpoint)

    async def sign_tenant(self, tenant: str) -> None:
        """Sign a checkpoint of a tenant's chains if any has grown; raises Unproven."""
        checkpoint = await self._audit_store.tenant_log(tenant).check(self._checked)
        if checkpoint is not None:
            _log_checkpoint(tenant, checkpoint)

    def _signed(self, heads: Sequence[ChainHead]) -> tuple[Checkpoint, ChainHead] | None:
        with suppress(Unproven):  # `_checked` raises it again
            return signed(heads, self._keyring, at=int(self._clock() * 1000))
        return None

    def _checked(
        self,
        heads: Sequence[ChainHead],
        newest: Checkpoint | None,
        prepared: tuple[Checkpoint, ChainHead] | None = None,
    ) -> tuple[Checkpoint, ChainHead] | None:
        """Return a checkpoint and its head, or *prepared* (see `Sign`); raises Unproven."""
        checked = prepared or signed(heads, self._keyring, at=int(self._clock() * 1000))
        if checked is not None and not follow(heads, newest):
            raise Unproven(heads[0].tenant)
        return checked

    async def _renew(self, chains: Sequence[ChainKey]) -> None:
        at, key_id = int(self._clock() * 1000), self._keyring.current.id
        new_records = {
            chain: [log_record("key", chain[0], "renewed", at, key=key_id)] for chain in chains
        }
        attempt = WriteAttempt(self._keyring)
        await self._audit_store.write(new_records, attempt.link)
        attempt.report()


async def pause(took_s: float) -> None:
    """Pause to leave calls their share of the time, after work of *took_s* seconds."""
    await asyncio.sleep(min(took_s * (1 / SHARE - 1), LONGEST_PAUSE_S))


def _log_checkpoint(tenant: str, checkpoint: Checkpoint) -> None:
    """Write a checkpoint to the log, which is usually stored elsewhere."""
    log.info(
        "audit_checkpoint",
        extra={
            "tenant": tenant,
            "number": checkpoint.number,
            # Ten thousand tenants have as many checkpoints each minute.
            "statement": TrustedText(checkpoint.statement),
            "signature": TrustedText(checkpoint.signature),
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


@lru_cache(maxsize=1)  # creating it takes as long as a signature
def _private_of(secret: bytes) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(secret)


def public_keys(keyring: KeyRing) -> dict[str, Ed25519PublicKey]:
    """Return the public keys of every key in the ring, which verify signatures."""
    return {key.id: _private_of(keyring.derived(key, PURPOSE)).public_key() for key in keyring.keys}
