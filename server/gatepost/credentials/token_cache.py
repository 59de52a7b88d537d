"""
Share access tokens between all replicas: one replica renews a token, and the others use
the encrypted one.
"""

import hashlib
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from secrets import token_hex

import msgspec

from gatepost.secrets.cache import SecretCache
from gatepost.secrets.names import MAX_BYTES, MIN_CHARACTERS
from gatepost.secrets.store import SecretUnreadable
from gatepost.storage.entries import Entries
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.records import Records
from gatepost.storage.shared_store import SharedStore, WakeUps

SUBJECT = "credential_tokens"
"""The subject of the entries, and the topic of the messages that say which has changed."""
LEASE_S = 15.0
"""How long one process may take to get a token before another one tries."""
KEPT_S = 86_400.0
"""How long the entry of an expired token stays."""
ATTEMPTS = 8


class IssuedToken(msgspec.Struct, frozen=True):
    """A token as the authorization server issued it."""

    value: str
    lifetime_s: float

    def __repr__(self) -> str:
        return "<IssuedToken>"


class CachedToken(msgspec.Struct, frozen=True):
    """A token with its times in seconds since the epoch."""

    value: str
    id: str
    """Differs for every token that was issued."""
    expires_at: float
    renew_at: float
    """When it should be renewed, some time before it expires."""

    def __repr__(self) -> str:
        return f"<CachedToken {self.id}>"


class TokenEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The stored data beside the encrypted token."""

    id: str = ""
    digest: str = ""
    """SHA-256 of the token, by which a reader knows that both belong together."""
    expires_at: float = 0.0
    renew_at: float = 0.0
    holder: str = ""
    """The process that renews it now."""
    until: float = 0.0


class TokenBusy(Exception):
    """Another process renews the token, and no usable one is stored."""


class TokenCache:
    """The tokens of one tenant for one use, in any process; raises StoreUnavailable."""

    def __init__(
        self,
        tenant: str,
        key: str,
        *,
        records: Records,
        shared_store: SharedStore,
        secrets: SecretCache,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._tenant, self._key = tenant, key
        self._entries: Entries = records.for_tenant(tenant).entries(SUBJECT)
        self._shared_store = shared_store.for_tenant(tenant)
        self._secrets, self._clock = secrets, clock
        self._holder = token_hex(8)

    async def token(
        self, issue: Callable[[], Awaitable[IssuedToken]], *, refused: str = ""
    ) -> CachedToken:
        """
        Return a token: the stored one, or a new one that *issue* gets while this process holds it.

        A token with the id *refused* does not count. While another process renews the token, the
        stored one is returned as long as it is valid; without one, raises TokenBusy.
        """
        for _ in range(ATTEMPTS):
            entry = await self._entries.get(self._key)
            token_entry = TokenEntry() if entry is None else _decode(entry.value)
            now = self._clock()
            stored = await self._stored(token_entry, refused)
            if stored is not None and now < stored.renew_at:
                return stored
            if token_entry.until > now and token_entry.holder != self._holder:
                if stored is not None:
                    return stored
                raise TokenBusy
            leased_entry = msgspec.structs.replace(
                token_entry, holder=self._holder, until=now + LEASE_S
            )
            if await self._put(leased_entry, 0 if entry is None else entry.revision):
                return await self._renewed(token_entry, issue)
        raise TokenBusy

    def wake_ups(self) -> WakeUps:
        """Return what wakes a task when a process has renewed the token, or could not."""
        return WakeUps(partial(self._shared_store.follow, SUBJECT), message=self._key.encode())

    async def _stored(self, token_entry: TokenEntry, refused: str) -> CachedToken | None:
        """Return the stored token if it is valid; it is in the redaction set from then on."""
        if (
            not token_entry.id
            or token_entry.id == refused
            or token_entry.expires_at <= self._clock()
        ):
            return None
        try:
            secret = await self._secrets.value(self._tenant, self._key)
        except SecretUnreadable:
            return None
        if secret is None or _digest(secret.value) != token_entry.digest:
            return None
        return CachedToken(
            secret.value, token_entry.id, token_entry.expires_at, token_entry.renew_at
        )

    async def _renewed(
        self, token_entry: TokenEntry, issue: Callable[[], Awaitable[IssuedToken]]
    ) -> CachedToken:
        new_entry = msgspec.structs.replace(token_entry, holder="", until=0.0)
        try:
            issued = await issue()
            now = self._clock()
            margin_s = min(60.0, issued.lifetime_s / 5)
            new_entry = TokenEntry(
                id=token_hex(8),
                digest=_digest(issued.value),
                expires_at=now + issued.lifetime_s,
                renew_at=now + issued.lifetime_s - margin_s,
            )
            await self._secrets.put(self._tenant, self._key, issued.value)
        finally:
            await self._put(new_entry, None)
            with suppress(StoreUnavailable):
                await self._shared_store.publish(SUBJECT, self._key.encode())
        return CachedToken(issued.value, new_entry.id, new_entry.expires_at, new_entry.renew_at)

    async def _put(self, entry: TokenEntry, revision: int | None) -> bool:
        now = self._clock()
        return await self._entries.put(
            self._key,
            msgspec.msgpack.encode(entry),
            now=now,
            revision=revision,
            expires_at=max(entry.expires_at, now) + KEPT_S,
        )


def usable(token: str) -> bool:
    """Return whether a token can be encrypted and redacted, and sent in a header."""
    is_plain_text = token.isascii() and token.isprintable() and " " not in token
    return is_plain_text and MIN_CHARACTERS <= len(token) <= MAX_BYTES


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _decode(value: bytes) -> TokenEntry:
    try:
        return msgspec.msgpack.decode(value, type=TokenEntry)
    except msgspec.MsgspecError:
        return TokenEntry()
