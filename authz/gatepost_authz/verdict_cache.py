"""Cache verdicts on accepted tokens, so that not every request checks a signature."""

from collections import OrderedDict
from collections.abc import Callable

import msgspec

from gatepost_authz.answer_cache import RandomCache
from gatepost_authz.caller import TenantContext
from gatepost_authz.signature import VersionedKeys

DEFAULT_CAPACITY = 20_000
MIN_ACCEPTED = 20_000
ACCEPTED_PER_VERDICT = 2
"""The number of digests of accepted tokens that are remembered for each verdict in the cache."""
LIFETIME = 60.0
"""
The lifetime of an entry in seconds, after which the keys and the policy are consulted again.

The signature is not checked again if the key is still there: it would have the same result.
"""

VerdictKey = tuple[bytes, str, int]


class Verdict(msgspec.Struct, frozen=True):
    """An accepted token and the time until which it may be reused."""

    caller: TenantContext
    keys: VersionedKeys
    version: int
    made_at: float
    ends_at: float


def verdict_on(
    caller: TenantContext,
    *,
    keys: VersionedKeys,
    version: int,
    now: float,
    lifetime: float = LIFETIME,
) -> Verdict:
    """Return the verdict that a token is *caller*'s, for *lifetime* seconds at most."""
    return Verdict(caller, keys, version, now, min(caller.expires_at, now + lifetime))


class AcceptedTokens:
    """
    The digests of the last accepted tokens: several times the number of *verdicts* that may be
    cached.

    An entry grants nothing. It lets a known token be verified while unknown ones have to wait,
    until the token is refused for a reason other than its age.
    """

    def __init__(self, verdicts: int) -> None:
        self.apply(verdicts)
        self._resources: OrderedDict[bytes, str] = OrderedDict()
        """By digest, the resource where the token was accepted last."""

    def __len__(self) -> int:
        return len(self._resources)

    def apply(self, verdicts: int) -> None:
        """Remember as many tokens as that number of cached verdicts needs."""
        self.capacity = max(MIN_ACCEPTED, ACCEPTED_PER_VERDICT * verdicts)

    def add(self, digest: bytes, resource: str) -> None:
        """Record that the token with that digest was accepted at that resource."""
        resources = self._resources
        resources[digest] = resource
        resources.move_to_end(digest)
        while len(resources) > self.capacity:
            resources.popitem(last=False)

    def was_accepted(self, digest: bytes, resource: str) -> bool:
        """Return whether the token was accepted before."""
        return self._resources.get(digest) == resource

    def drop(self, digest: bytes, resource: str) -> None:
        """Remove the token."""
        if self.was_accepted(digest, resource):
            del self._resources[digest]


class VerdictCache(RandomCache[VerdictKey, Verdict]):
    """
    A `RandomCache` of accepted tokens.

    Only acceptances are cached, and never the token itself. Refusals are cheap to repeat, and
    caching them would let an attacker fill the memory. A verdict ends with the token's ``exp`` or
    after a minute, if the clock is set back before it, if its issuer removes or replaces a key, and
    with the registry that it was made with.
    """

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        super().__init__(capacity)
        self.accepted = AcceptedTokens(capacity)

    def end_of(self, entry: Verdict) -> float:
        """Return the end of the token: until then its verdict may be renewed."""
        return entry.caller.expires_at

    def get(self, key: VerdictKey, *, now: float) -> TenantContext | None:
        """Return the cached caller of the token, or None."""
        verdict = self.entries.get(key)
        if verdict is None:
            return None
        if verdict.version == verdict.keys.version and verdict.made_at <= now:
            if now < verdict.ends_at:
                return verdict.caller
            if now < verdict.caller.expires_at:
                return None  # it may be renewed
        self.end(key, verdict)
        return None

    def expired_verdict(self, key: VerdictKey) -> Verdict | None:
        """Return the verdict that a call of `get` has just found too old, if it may be renewed."""
        return self.entries.get(key)

    def forget(self, predicate: Callable[[TenantContext], bool]) -> None:
        """Evict the tokens of these callers."""
        self.drop(lambda verdict: predicate(verdict.caller))

    def restart(self, capacity: int) -> None:
        """Forget all verdicts, for another registry, and keep at most *capacity* from now on."""
        self.drop(lambda _: True)
        self.capacity = capacity
        self.accepted.apply(capacity)

    def put(self, key: VerdictKey, verdict: Verdict) -> None:
        """
        Cache the verdict on the token of *key*.

        Its version is that of the keys when they were looked up, not now: a key may have been
        removed while the issuer was being asked.
        """
        self.accepted.add(key[0], key[1])
        now = verdict.made_at
        if verdict.ends_at > now:
            # Tokens live for an hour, and servers for weeks: expired verdicts would fill the cache.
            self.set_entry(key, verdict, now=now, until=verdict.caller.expires_at)
