"""Caches accepted tokens briefly, so that signatures are not checked on every request."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import msgspec

from gatepost_authz.caller import TenantContext

DEFAULT_CAPACITY = 5_000
MOST_ACCEPTED = 20_000
LIFETIME = 60.0
"""The lifetime of an entry in seconds, after which the keys are consulted again."""

# OpenSSL looks its algorithm up whenever one is made; a copy costs half as much.
EMPTY_DIGEST = hashlib.sha256()

DecisionKey = tuple[bytes, str, int]


class Versioned(Protocol):
    """The version of an issuer's keys, as the cache needs it."""

    @property
    def version(self) -> int:
        """Return a number that grows when a key is removed or replaced."""


class Verdict(msgspec.Struct, frozen=True):
    """An accepted token and the time until which it may be reused."""

    caller: TenantContext
    keys: Versioned
    version: int
    made_at: float
    ends_at: float


class AcceptedTokens:
    """
    The digests of the last *capacity* accepted tokens.

    An entry grants nothing. It lets a known token be verified while unknown ones have to wait,
    until the token is refused for a reason other than its age.
    """

    def __init__(self, capacity: int = MOST_ACCEPTED) -> None:
        self.capacity = capacity
        self._digests: OrderedDict[tuple[bytes, str], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._digests)

    def add(self, digest: bytes, resource: str) -> None:
        """Record that the token with that digest was accepted at that resource."""
        self._digests[digest, resource] = None
        self._digests.move_to_end((digest, resource))
        if len(self._digests) > self.capacity:
            self._digests.popitem(last=False)

    def has(self, digest: bytes, resource: str) -> bool:
        """Return whether the token was accepted before."""
        return (digest, resource) in self._digests

    def drop(self, digest: bytes, resource: str) -> None:
        """Remove the token."""
        self._digests.pop((digest, resource), None)


class VerdictCache:
    """
    A cache of at most *capacity* accepted tokens; the least recently used is evicted first.

    Only acceptances are kept, and never the token itself: refusals are cheap to repeat, and
    remembering them would let a stranger fill the memory. A verdict ends with the token's ``exp``
    or after a minute, when the clock is set back before it, when its issuer removes or replaces a
    key, and with the registry it was made under.
    """

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        self.capacity = capacity
        self._kept: OrderedDict[DecisionKey, Verdict] = OrderedDict()
        self.accepted = AcceptedTokens()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: DecisionKey, *, now: float) -> TenantContext | None:
        """Return the cached caller of the token, or None."""
        kept = self._kept.get(key)
        if kept is None:
            return None
        if kept.version != kept.keys.version or not kept.made_at <= now < kept.ends_at:
            del self._kept[key]
            return None
        self._kept.move_to_end(key)
        return kept.caller

    def forget(self, which: Callable[[TenantContext], bool]) -> None:
        """Evict the tokens of these callers."""
        for key in [key for key, kept in self._kept.items() if which(kept.caller)]:
            del self._kept[key]

    def put(
        self,
        key: DecisionKey,
        caller: TenantContext,
        *,
        keys: Versioned,
        version: int,
        now: float,
    ) -> None:
        """
        Cache that the token of *key* identifies *caller*.

        *version* is that of the keys when they were looked up, not now: a key may have been
        removed while the issuer was being asked.
        """
        self.accepted.add(*key[:2])
        ends_at = min(float(caller.expires_at), now + LIFETIME)
        if ends_at <= now or self.capacity < 1:
            return
        self._kept[key] = Verdict(caller, keys, version, now, ends_at)
        if len(self._kept) > self.capacity:
            self._kept.popitem(last=False)


def key_of(token: str, resource: str, generation: int) -> DecisionKey:
    """
    Return the cache key: the digest of the whole token, the resource and the configuration.

    A prefix, a key id or an unverified ``jti`` would let one token answer for another.
    """
    whole = EMPTY_DIGEST.copy()
    whole.update(token.encode("utf-8", "surrogatepass"))
    return (whole.digest(), resource, generation)
