"""Verdicts remembered briefly, so that a token's signature is not checked on every request."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import msgspec

from gatepost_authz.caller import TenantContext

DEFAULT_CAPACITY = 5_000
LIFETIME = 60.0
"""Seconds after which the keys are asked again, so that their refresh is noticed under load."""

# OpenSSL looks its algorithm up whenever one is made; a copy costs half as much.
NOTHING_YET = hashlib.sha256()

DecisionKey = tuple[bytes, str, int]


class Versioned(Protocol):
    """An issuer's keys, as far as a verdict depends on them."""

    @property
    def version(self) -> int:
        """Grows whenever a key was removed or replaced."""


class Decision(msgspec.Struct, frozen=True, gc=False):
    """That a token was good, and until when that may be repeated without looking."""

    caller: TenantContext
    keys: Versioned
    version: int
    made_at: float
    ends_at: float


class Decisions:
    """
    The tokens found good lately: at most *capacity* of them, the least used go first.

    Only acceptances are kept, and never the token itself: refusals are cheap to repeat, and
    remembering them would let a stranger fill the memory. A verdict ends with the token's ``exp``
    or after a minute, when the clock is set back before it, when its issuer removes or replaces a
    key, and with the registry it was made under.
    """

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        self.capacity = capacity
        self._kept: OrderedDict[DecisionKey, Decision] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: DecisionKey, *, now: float) -> TenantContext | None:
        """The caller this token was found to speak for; None: look at the token again."""
        kept = self._kept.get(key)
        if kept is None:
            return None
        if kept.version != kept.keys.version or not kept.made_at <= now < kept.ends_at:
            del self._kept[key]
            return None
        self._kept.move_to_end(key)
        return kept.caller

    def forget(self, which: Callable[[TenantContext], bool]) -> None:
        """Look at the tokens of these callers again when they are next shown."""
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
        Remember that the token of *key* speaks for *caller*.

        *version* is that of the keys when they were looked up, not now: a key may have been
        removed while the issuer was being asked.
        """
        ends_at = min(float(caller.expires_at), now + LIFETIME)
        if ends_at <= now or self.capacity < 1:
            return
        self._kept[key] = Decision(caller, keys, version, now, ends_at)
        if len(self._kept) > self.capacity:
            self._kept.popitem(last=False)


def key_of(token: str, resource: str, generation: int) -> DecisionKey:
    """
    What a verdict is filed under: the whole token's digest, the resource and the configuration.

    A prefix, a key id or an unverified ``jti`` would let one token answer for another.
    """
    whole = NOTHING_YET.copy()
    whole.update(token.encode("utf-8", "surrogatepass"))
    return (whole.digest(), resource, generation)
