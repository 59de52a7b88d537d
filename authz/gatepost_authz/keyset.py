"""Keep the keys of one issuer: fetched once for all requests, and kept during an outage."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from math import inf

import msgspec

from gatepost_authz.errors import IssuerUnavailable
from gatepost_authz.fetch import FetchError
from gatepost_authz.jwk import VerificationKey
from gatepost_authz.ratelimited import RateLimitedLog

# The time between the beginnings of two fetches from one issuer. Without it, an attacker could make
# this server flood the issuer, by sending tokens with random key ids. With a longer time, a rotated
# key is noticed late.
INTERVAL_S = 5.0
WAIT_S = 5.0
# Longer than a fetch takes, which may begin just before these five seconds are over: a request must
# not be refused just before the answer arrives.
LAST_MOMENT_S = 0.25
WAITERS = 64
# Before the first keys are here, every client waits for the same first fetch, whether its tokens
# are valid or not.
FIRST_WAITERS = 1024
DEFAULT_LIFETIME_S = 300.0
SHORTEST_S = 60.0
LONGEST_S = 86_400.0
REFRESH_AT = 0.8
# During an outage of this length, tokens are checked with the last good keys. With a longer time, a
# withdrawn key would be trusted for as long as an attacker blocks the connection.
STALE_S = 3600.0
LONGEST_BACKOFF_S = 60.0
CANDIDATES = 4
"""The number of keys tried for one key id; each try costs a signature check."""

Table = Mapping[tuple[str | None, str], tuple[VerificationKey, ...]]

log = logging.getLogger(__name__)

# Not the module's own generator: seeding it would determine the refreshes, and a property test that
# draws from it would see it change.
RANDOM = random.SystemRandom()


class FetchedKeys(msgspec.Struct, frozen=True):
    """One successful fetch: the usable keys, and how long their server lets them be kept."""

    keys: tuple[VerificationKey, ...]
    max_age: float | None = None


class KeySetClock(msgspec.Struct, frozen=True):
    """The time source of a key set: a monotonic clock, a sleep and a random number in [0, 1)."""

    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = RANDOM.random


class KeySet:
    """
    The keys of one issuer, never shared with another, whatever URL both name (RFC 7517).

    *load* fetches them or raises FetchError. Nothing is fetched before the first request or call of
    `warm`. A *permanent* set is refreshed forever; any other set only while it is used.
    *unverified_log* is the log of all issuers whose names callers can invent.
    """

    def __init__(
        self,
        load: Callable[[], Awaitable[FetchedKeys]],
        *,
        name: str,
        versions: Iterator[int],
        clock: KeySetClock,
        permanent: bool = True,
        unverified_log: RateLimitedLog | None = None,
    ) -> None:
        self.name = name
        self.version = next(versions)
        """Grows when a key is removed or replaced; cached tokens of older versions are void."""
        self.failure: str | None = None
        """The reason why the last fetch failed, or None."""
        self.fetched_at: float | None = None
        """The time of the last successful fetch, or None."""
        self._load = load
        self._versions = versions
        self._clock = clock
        self._permanent = permanent
        self._unverified_log = unverified_log
        self._keys: tuple[VerificationKey, ...] = ()
        self._table: Table = {}
        self._ids: frozenset[str | None] = frozenset()
        self._used = self._closed = False
        self._fetch: asyncio.Task[None] | None = None
        self._has_begun = False
        self._refresher: asyncio.Task[None] | None = None
        self._allowed_at = self._refresh_at = -inf
        self._fresh_until = self._usable_until = -inf
        self._failures = self._waiters = 0

    @property
    def has_keys(self) -> bool:
        """Return whether any token of the issuer can be checked now."""
        return bool(self._table)

    @property
    def resting(self) -> bool:
        """Return whether the set is idle and can be discarded without loss."""
        idle = self._fetch is None and self._clock.monotonic() >= self._allowed_at
        return idle and not self._table

    def find(self, kid: str | None, algorithm: str) -> tuple[VerificationKey, ...]:
        """
        Return the keys that may verify such a token, best first.

        Without a key id there must be exactly one key for the algorithm.
        """
        self._used = True
        return self._table.get((kid, algorithm), ())

    def warm(self) -> None:
        """Start fetching the keys without waiting; call within a running loop."""
        if not self._table:
            self._next_fetch()

    async def wait_for(self, kid: str | None, algorithm: str) -> tuple[VerificationKey, ...]:
        """
        Wait for the next fetch and return the keys for such a token, or ().

        An unknown key id waits at most five seconds. IssuerUnavailable: the fetch failed or takes
        longer, or too many wait; whether the token is good is then unknown, so no 401.
        """
        if keys := self.find(kid, algorithm):
            return keys
        if self._table and (kid is None or kid in self._ids):
            # The key is known, but does not fit this algorithm: the same as a bad signature.
            await self.after_bad_signature()
            return self.find(kid, algorithm)
        if self._closed:
            raise IssuerUnavailable("keys_closed")
        if self._cooling() and not self._table and self.failure:
            self._next_fetch()  # so that a recovered issuer is noticed within the interval
            raise IssuerUnavailable(f"keys_{self.failure}")
        if self._waiters >= (WAITERS if self._table else FIRST_WAITERS):
            raise IssuerUnavailable("keys_too_many_waiters")
        return await self._wait_for(kid, algorithm)

    async def after_bad_signature(self) -> bool:
        """
        Fetch again after a known key refused a signature; it may have been replaced.

        True when the keys are others now. Does not wait for the interval to pass, or every forged
        token would hold a request for five seconds; but the fetch at its end is arranged, so that
        such a replacement is noticed within them too.
        """
        if self._closed:
            return False
        before = self._table
        if self._cooling() or self._waiters >= WAITERS:
            self._next_fetch()
            return False
        limit = self._begin_waiting()
        try:
            await self._outcome(self._next_fetch(), limit)
        finally:
            self._end_waiting(limit)
        return self._table is not before

    async def aclose(self) -> None:
        """Forget the keys and stop all work."""
        await asyncio.gather(*self.discard(), return_exceptions=True)

    def discard(self) -> Sequence[asyncio.Task[None]]:
        """Forget the keys and cancel all work; the tasks that are ending."""
        self._closed = True
        self._drop()
        tasks = [task for task in (self._fetch, self._refresher) if task is not None]
        for task in tasks:
            task.cancel()
        return tasks

    def _cooling(self) -> bool:
        return not self._has_begun and self._clock.monotonic() < self._allowed_at

    async def _wait_for(self, kid: str | None, algorithm: str) -> tuple[VerificationKey, ...]:
        limit = self._begin_waiting()
        try:
            while True:
                # A fetch that began before this request may have been answered before the key
                # was published; only one that begins later proves that there is no such key.
                conclusive = not self._has_begun
                failure = await self._outcome(self._next_fetch(), limit)
                if failure is not None:
                    raise IssuerUnavailable(f"keys_{failure}")
                if (keys := self.find(kid, algorithm)) or conclusive:
                    return keys
        finally:
            self._end_waiting(limit)

    def _begin_waiting(self) -> asyncio.Future[None]:
        self._waiters += 1
        return asyncio.ensure_future(self._clock.sleep(WAIT_S))

    def _end_waiting(self, limit: asyncio.Future[None]) -> None:
        self._waiters -= 1
        limit.cancel()

    async def _outcome(self, fetch: asyncio.Task[None], limit: asyncio.Future[None]) -> str | None:
        """Wait for *fetch* up to *limit* and return the reason for its failure, or None."""
        # Waiting for a set of futures cancels none of them: if this request is cancelled, the fetch
        # continues for the others.
        await asyncio.wait({fetch, limit}, return_when=asyncio.FIRST_COMPLETED)
        if not fetch.done():
            await asyncio.wait({fetch}, timeout=LAST_MOMENT_S)
        if not fetch.done():
            return "slow"
        if fetch.cancelled():
            return "closed"
        # An unexpected error does not prove that a key does not exist.
        return self.failure if fetch.exception() is None else "failed"

    def _next_fetch(self) -> asyncio.Task[None]:
        """Return the running fetch, or schedule one as soon as the interval allows."""
        if self._fetch is None:
            self._fetch = asyncio.create_task(self._run(), name=f"keys of {self.name}")
        return self._fetch

    async def _run(self) -> None:
        try:
            while (delay := self._allowed_at - self._clock.monotonic()) > 0:
                await self._clock.sleep(delay)
            self._has_begun = True
            self._allowed_at = self._clock.monotonic() + INTERVAL_S
            self._adopt(await self._load())
        except FetchError as error:
            self._fail(error)
        finally:
            self._fetch, self._has_begun = None, False
        if self._refresher is None and not self._closed and (self._permanent or self._table):
            self._refresher = asyncio.create_task(
                self._keep_fresh(), name=f"refresh of {self.name}"
            )

    def _adopt(self, loaded: FetchedKeys) -> None:
        now = self.fetched_at = self._clock.monotonic()
        if any(key not in loaded.keys for key in self._keys):
            # A key was removed or replaced: end every verdict that depended on it at once.
            self.version = next(self._versions)
            log.info("keys of %s were removed or replaced", self.name)
        if loaded.keys != self._keys:
            self._keys, self._table = loaded.keys, tabulate(loaded.keys)
            self._ids = frozenset(key.kid for key in loaded.keys)
        lifetime = DEFAULT_LIFETIME_S if loaded.max_age is None else loaded.max_age
        lifetime = min(max(lifetime, SHORTEST_S), LONGEST_S)
        self._refresh_at = now + REFRESH_AT * lifetime
        self._fresh_until = now + lifetime
        self._usable_until = now + max(lifetime, STALE_S)
        self.failure, self._failures = None, 0

    def _fail(self, error: FetchError) -> None:
        self.failure = error.reason
        backoff = min(INTERVAL_S * 2**self._failures, LONGEST_BACKOFF_S)
        self._failures = min(self._failures + 1, 10)
        # With jitter: a thousand servers that lost the same issuer must not return as one.
        backoff *= 1 + 0.5 * self._clock.random()
        self._refresh_at = max(self._refresh_at, self._clock.monotonic() + backoff)
        (self._unverified_log or log).warning("keys of %s cannot be fetched: %s", self.name, error)

    async def _keep_fresh(self) -> None:
        """
        Refresh the keys before they expire, try again after failures, and drop keys that are too
        old.
        """
        while True:
            due = min(self._refresh_at, self._usable_until if self._table else inf)
            if (delay := due - self._clock.monotonic()) > 0:
                await self._clock.sleep(delay)
            elif self._table and self._clock.monotonic() >= self._usable_until:
                self._drop()
            elif not self._permanent and not self._table:
                break
            elif not self._permanent and not self._used:
                self._refresh_at, self._usable_until = inf, self._fresh_until
            else:
                self._used = False
                await asyncio.wait({self._next_fetch()})
        self._refresher = None

    def _drop(self) -> None:
        self._keys, self._table, self._ids = (), {}, frozenset()
        self.version = next(self._versions)


def tabulate(keys: Iterable[VerificationKey]) -> Table:
    """Return keys by id and algorithm; without an id, the only key of each algorithm."""
    table: dict[tuple[str | None, str], tuple[VerificationKey, ...]] = {}
    keys_by_algorithm: dict[str, list[VerificationKey]] = {}
    for key in keys:
        for algorithm in key.algorithms:
            keys_by_algorithm.setdefault(algorithm, []).append(key)
            if key.kid is not None:
                candidates = table.get((key.kid, algorithm), ())
                table[key.kid, algorithm] = (*candidates, key)[:CANDIDATES]
    # RFC 7515 omits the id if there is only one key. If there are several, the sender of the token
    # could make us try all keys.
    table.update(
        ((None, name), (same_keys[0],))
        for name, same_keys in keys_by_algorithm.items()
        if len(same_keys) == 1
    )
    return table
