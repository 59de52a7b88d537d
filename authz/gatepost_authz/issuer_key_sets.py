"""Manage the key sets of all issuers."""

import asyncio
import itertools
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from gatepost_authz.addresses import network_of_peer, networks_of
from gatepost_authz.discovery import Discovery, DiscoveryLocation, IssuerMetadata
from gatepost_authz.errors import IssuerUnavailable
from gatepost_authz.fetch import TIMEOUT_S, Fetcher, FetchError
from gatepost_authz.issuers import TrustedIssuer
from gatepost_authz.jwk import UnusableKeySet, import_set
from gatepost_authz.keyset import INTERVAL_S, RANDOM, FetchedKeys, KeySet, KeySetClock
from gatepost_authz.ratelimited import RateLimitedLog

__all__ = ["IssuerKeySets", "KeySet"]

PROVEN = 1000
# Any caller can name an issuer that fits a template. This many may be looked up per template within
# one interval. They displace only each other, never issuers that have keys. Each peer gets only a
# few, so that one peer cannot keep every new issuer of the template waiting.
UNPROVEN, UNPROVEN_OF_PEER = 128, 8
USABLE = frozenset({"ready", "asked", "template"})
"""The states of `IssuerKeySets.state_of` in which tokens can be checked."""

log = logging.getLogger(__name__)


class KeyLocation:
    """Where the keys of one concrete issuer come from."""

    def __init__(
        self,
        issuer: str,
        trusted: TrustedIssuer,
        fetcher: Fetcher,
        discovery: Discovery,
        unverified_log: RateLimitedLog | None = None,
    ) -> None:
        self._unverified_log = unverified_log
        self.trusted = trusted
        self.location = location_of(issuer, trusted)
        self._fetcher = fetcher
        self._discovery = discovery

    async def load(self) -> FetchedKeys:
        """Fetch the keys, after the metadata if need be, within five seconds; FetchError."""
        try:
            # A search for metadata outlives this limit, so a slow issuer gets further each time.
            async with asyncio.timeout(TIMEOUT_S):
                return await self._load()
        except TimeoutError as error:
            raise FetchError("timeout") from error

    async def _load(self) -> FetchedKeys:
        issuer, url = self.location.issuer, self.trusted.settings.jwks_uri
        if not url:
            url = (await self._discovery.find(self.location)).endpoint("jwks_uri")
        try:
            document = await self._fetcher.get_json(url, allow_private=self.location.allow_private)
            keys = import_set(
                document.data, allowed=self.trusted.algorithms, issuer=issuer, skipped=self._skipped
            )
        except (FetchError, UnusableKeySet) as error:
            self._discovery.invalidate(issuer)
            raise error if isinstance(error, FetchError) else FetchError("key_set") from error
        if not keys:
            raise FetchError("no_usable_key")
        return FetchedKeys(keys, document.max_age)

    def _skipped(self, kid: str, reason: str) -> None:
        if reason in {"private_key", "symmetric_key"}:
            tell = log.error if self._unverified_log is None else self._unverified_log.warning
            tell("issuer %s publishes a secret as key %r: %s", self.location.issuer, kid, reason)

    def serves(self, trusted: TrustedIssuer) -> bool:
        """Return whether *trusted* has the same key source."""
        if trusted is not self.trusted:
            location = location_of(self.location.issuer, trusted)
            if (
                location != self.location
                or trusted.settings.jwks_uri != self.trusted.settings.jwks_uri
                or trusted.algorithms != self.trusted.algorithms
            ):
                return False
            self.trusted = trusted
        return True


def location_of(issuer: str, trusted: TrustedIssuer) -> DiscoveryLocation:
    """Return where to look for a concrete issuer that *trusted* covers."""
    return DiscoveryLocation(
        issuer=issuer,
        extra_paths=trusted.preset.discovery_paths,
        allow_private=tuple(networks_of(trusted.settings.allow_private)),
        key_hosts=trusted.preset.key_hosts,
    )


class LocatedKeys(NamedTuple):
    """A key set and its source."""

    source: KeyLocation
    keys: KeySet
    peer: str = ""
    """The peer that named the issuer first, or an empty string."""


class TemplateIssuers:
    """The known issuers of one template."""

    def __init__(self) -> None:
        self._proven: OrderedDict[str, LocatedKeys] = OrderedDict()
        self._unproven: OrderedDict[str, LocatedKeys] = OrderedDict()

    def get(self, issuer: str) -> LocatedKeys | None:
        """Return the key set of *issuer* and mark it as used."""
        located = self._proven.get(issuer)
        if located is not None:
            self._proven.move_to_end(issuer)
            return located
        located = self._unproven.get(issuer)
        if located is not None and located.keys.has_keys:
            self._promote(issuer)
        return located

    def make_room(self, peer: str) -> None:
        """
        Evict entries to make room for one more issuer that *peer* names.

        Raises IssuerUnavailable if that peer, or all unverified callers together, have used up
        their share.
        """
        if self._has_room(peer):
            return
        for issuer, located in [*self._unproven.items()]:
            if located.keys.has_keys:
                self._promote(issuer)
            elif located.keys.resting:
                del self._unproven[issuer]
        if not self._has_room(peer):
            raise IssuerUnavailable("keys_too_many_issuers")

    def _has_room(self, peer: str) -> bool:
        if len(self._unproven) >= UNPROVEN:
            return False
        of_peer = sum(located.peer == peer for located in self._unproven.values())
        return not peer or of_peer < UNPROVEN_OF_PEER

    def add(self, issuer: str, located: LocatedKeys) -> None:
        """Add the set of an issuer whose keys have not been fetched yet."""
        self._proven.pop(issuer, None)
        self._unproven[issuer] = located

    def all(self) -> Iterator[LocatedKeys]:
        """Yield every set, proven or not."""
        yield from self._proven.values()
        yield from self._unproven.values()

    def _promote(self, issuer: str) -> None:
        self._proven[issuer] = self._unproven.pop(issuer)
        if len(self._proven) > PROVEN:
            self._proven.popitem(last=False)[1].keys.discard()


class IssuerKeySets:
    """
    The key sets of all issuers, one instance per process and event loop.

    A set is created only for an issuer that the registry has matched. Sets share only the fetcher,
    so a dead or slow issuer does not delay the others. Tests replace waiting and chance by *sleep*
    and *random*.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        *,
        discovery: Discovery | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = RANDOM.random,
    ) -> None:
        self.fetched = self.failed = 0
        """The number of successful and failed fetches."""
        self.discovery = discovery or Discovery(fetcher, monotonic=monotonic)
        self._fetcher = fetcher
        self._unverified_log = RateLimitedLog(log, monotonic=monotonic)
        self._clock = KeySetClock(monotonic, sleep, random)
        self._exact: dict[str, LocatedKeys] = {}
        self._families: dict[str, TemplateIssuers] = {}
        self._looked_for: dict[str, float] = {}
        """The time of the next search for an issuer's introspection endpoint."""
        self._searches: set[asyncio.Task[IssuerMetadata]] = set()
        # One counter for all sets: a set that is created again must not match cached tokens of
        # its predecessor under the same number.
        self._versions = itertools.count()

    def keys_of(self, issuer: str, trusted: TrustedIssuer, *, peer: str = "") -> KeySet:
        """
        Return the keys of the concrete *issuer*, which *trusted* covers by name or by template.

        *peer* is the address that names it. IssuerUnavailable: tokens, or those of this peer, have
        named more issuers of the template than can be looked up.
        """
        if issuer == trusted.settings.issuer:
            located = self._exact.get(issuer)
            if located is None or not located.source.serves(trusted):
                if located is not None:
                    located.keys.discard()
                located = self._exact[issuer] = self._make(issuer, trusted, permanent=True)
            return located.keys
        family = self._families.setdefault(trusted.settings.issuer, TemplateIssuers())
        located = family.get(issuer)
        if located is None or not located.source.serves(trusted):
            if located is not None:
                located.keys.discard()
            network = network_of_peer(peer)
            family.make_room(network)
            located = self._make(issuer, trusted, permanent=False)._replace(peer=network)
            family.add(issuer, located)
        return located.keys

    def warm(self, trusted: Iterable[TrustedIssuer]) -> None:
        """
        Start fetching the keys of these issuers without waiting; call within a running loop.

        Of issuers that are asked about tokens, it begins to find out where. Templates are left out:
        they name no issuer.
        """
        for issuer in trusted:
            if issuer.template is not None:
                continue
            if is_introspected(issuer):
                self._look_for(issuer)
            if not is_introspected(issuer) or issuer.introspects_signed:
                self.keys_of(issuer.settings.issuer, issuer).warm()

    def state_of(self, trusted: TrustedIssuer) -> str:
        """
        Return whether tokens of this issuer can be checked now, as one word for `/readyz`.

        ``ready``; ``asked`` where the issuer is asked about each token, and it is known where;
        ``template`` where tokens name the issuers; else ``not_fetched``, or a FetchError's reason
        why there are no keys.
        """
        if trusted.template is not None:
            return "template"
        located = self._exact.get(trusted.settings.issuer)
        if located is not None and located.keys.has_keys:
            return "ready"
        if is_introspected(trusted):
            return "asked" if self._knows_where(trusted) else "not_fetched"
        return "not_fetched" if located is None else located.keys.failure or "not_fetched"

    def age_of(self, trusted: TrustedIssuer) -> float | None:
        """Return the age in seconds of an issuer's keys in use; None if there are none."""
        located = self._exact.get(trusted.settings.issuer)
        if located is None or not located.keys.has_keys or located.keys.fetched_at is None:
            return None
        return self._clock.monotonic() - located.keys.fetched_at

    def _knows_where(self, trusted: TrustedIssuer) -> bool:
        """Return whether the introspection endpoint of an issuer is known."""
        settings = trusted.settings.introspection
        if trusted.preset.introspection_endpoint or (settings is not None and settings.endpoint):
            return True
        metadata = self.discovery.cached_metadata(trusted.settings.issuer)
        return metadata is not None and bool(metadata.introspection_endpoint)

    def _look_for(self, trusted: TrustedIssuer) -> None:
        """Start the search for an introspection endpoint, at most once per interval."""
        issuer, now = trusted.settings.issuer, self._clock.monotonic()
        if self._knows_where(trusted) or now < self._looked_for.get(issuer, 0.0):
            return
        self._looked_for[issuer] = now + INTERVAL_S
        search = asyncio.create_task(self.discovery.find(location_of(issuer, trusted)))
        self._searches.add(search)
        search.add_done_callback(self._searched)

    def _searched(self, search: "asyncio.Task[IssuerMetadata]") -> None:
        self._searches.discard(search)
        if not search.cancelled():
            search.exception()  # `state_of` reports it, and the next request searches again

    def oldest_s(self) -> float:
        """
        Return the age in seconds of the oldest keys in use.

        0 while there are none.
        """
        groups = [self._exact.values(), *(family.all() for family in self._families.values())]
        fetched = [
            located.keys.fetched_at
            for group in groups
            for located in group
            if located.keys.has_keys and located.keys.fetched_at is not None
        ]
        return self._clock.monotonic() - min(fetched) if fetched else 0.0

    def retain(self, issuers: Collection[str]) -> None:
        """Remove all issuers and templates that are not in *issuers*; used after a reload."""
        for issuer in [issuer for issuer in self._exact if issuer not in issuers]:
            self._exact.pop(issuer).keys.discard()
        for template in [template for template in self._families if template not in issuers]:
            for located in self._families.pop(template).all():
                located.keys.discard()

    async def aclose(self) -> None:
        """Remove all keys and cancel all work; the owner closes the fetcher."""
        groups = [self._exact.values(), *(family.all() for family in self._families.values())]
        tasks = [task for group in groups for located in group for task in located.keys.discard()]
        self._exact.clear()
        self._families.clear()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.discovery.aclose()
        if self._searches:
            await asyncio.wait(self._searches)

    def _make(self, issuer: str, trusted: TrustedIssuer, *, permanent: bool) -> LocatedKeys:
        # Any caller can name issuers of a template, and an attacker can serve the documents of
        # some.
        unverified_log = None if permanent else self._unverified_log
        source = KeyLocation(issuer, trusted, self._fetcher, self.discovery, unverified_log)

        async def load() -> FetchedKeys:
            try:
                loaded = await source.load()
            except FetchError:
                self.failed += 1
                raise
            self.fetched += 1
            return loaded

        return LocatedKeys(
            source,
            KeySet(
                load,
                name=issuer,
                versions=self._versions,
                clock=self._clock,
                permanent=permanent,
                unverified_log=unverified_log,
            ),
        )


def is_introspected(trusted: TrustedIssuer) -> bool:
    """Return whether this issuer's tokens are introspected."""
    return (
        trusted.settings.introspection is not None
        or trusted.preset.introspection_form == "tokeninfo"
    )
