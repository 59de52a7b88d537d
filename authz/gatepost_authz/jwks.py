"""The keys of all issuers: which set belongs to whom, and how many are kept."""

import asyncio
import itertools
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from gatepost_authz.addresses import networks_of
from gatepost_authz.discovery import Discovery, Place
from gatepost_authz.errors import IssuerUnavailable
from gatepost_authz.fetch import TIMEOUT_S, Fetcher, FetchError
from gatepost_authz.issuers import TrustedIssuer
from gatepost_authz.jwk import UnusableKeySet, import_set
from gatepost_authz.keyset import DICE, Clock, KeySet, Loaded

__all__ = ["KeySet", "Keys"]

PROVEN = 1000
# Any stranger can name an issuer that fits a template. So many may be looked up per template
# within one interval, and what they displace are each other's, never those that have keys.
UNPROVEN = 64

log = logging.getLogger(__name__)


class Source:
    """Where the keys of one concrete issuer come from."""

    def __init__(
        self, issuer: str, trusted: TrustedIssuer, fetcher: Fetcher, discovery: Discovery
    ) -> None:
        self.trusted = trusted
        self.place = place_of(issuer, trusted)
        self._fetcher = fetcher
        self._discovery = discovery

    async def load(self) -> Loaded:
        """Fetch the keys, after the metadata if need be, within five seconds; FetchError."""
        try:
            # A search for metadata outlives this limit, so a slow issuer gets further each time.
            async with asyncio.timeout(TIMEOUT_S):
                return await self._load()
        except TimeoutError as error:
            raise FetchError("timeout") from error

    async def _load(self) -> Loaded:
        issuer, url = self.place.issuer, self.trusted.settings.jwks_uri
        if not url:
            url = (await self._discovery.find(self.place)).endpoint("jwks_uri")
        try:
            document = await self._fetcher.get_json(url, allow_private=self.place.allow_private)
            keys = import_set(
                document.data, allowed=self.trusted.algorithms, issuer=issuer, skipped=self._skipped
            )
        except (FetchError, UnusableKeySet) as error:
            self._discovery.distrust(issuer)
            raise error if isinstance(error, FetchError) else FetchError("key_set") from error
        if not keys:
            raise FetchError("no_usable_key")
        return Loaded(keys, document.max_age)

    def _skipped(self, kid: str, reason: str) -> None:
        if reason in {"private_key", "symmetric_key"}:
            log.error("issuer %s publishes a secret as key %r: %s", self.place.issuer, kid, reason)

    def serves(self, trusted: TrustedIssuer) -> bool:
        """Whether *trusted* would have its keys from the same place, read in the same way."""
        if trusted is not self.trusted:
            place = place_of(self.place.issuer, trusted)
            if (
                place != self.place
                or trusted.settings.jwks_uri != self.trusted.settings.jwks_uri
                or trusted.algorithms != self.trusted.algorithms
            ):
                return False
            self.trusted = trusted
        return True


def place_of(issuer: str, trusted: TrustedIssuer) -> Place:
    """Where to look for a concrete issuer that *trusted* covers."""
    return Place(
        issuer=issuer,
        extra_paths=trusted.preset.discovery_paths,
        allow_private=tuple(networks_of(trusted.settings.allow_private)),
        key_hosts=trusted.preset.key_hosts,
    )


class Held(NamedTuple):
    """A key set and where its keys come from."""

    source: Source
    keys: KeySet


class Family:
    """The issuers that one template covers, as far as tokens have named them."""

    def __init__(self) -> None:
        self._proven: OrderedDict[str, Held] = OrderedDict()
        self._unproven: OrderedDict[str, Held] = OrderedDict()

    def get(self, issuer: str) -> Held | None:
        """The set of *issuer*, marked as used just now."""
        held = self._proven.get(issuer)
        if held is not None:
            self._proven.move_to_end(issuer)
            return held
        held = self._unproven.get(issuer)
        if held is not None and held.keys.has_keys:
            self._promote(issuer)
        return held

    def make_room(self) -> None:
        """Forget what can be forgotten; IssuerUnavailable when strangers have filled it all."""
        if len(self._unproven) < UNPROVEN:
            return
        issuer, held = next(iter(self._unproven.items()))
        if held.keys.has_keys:
            self._promote(issuer)
        elif held.keys.resting:
            del self._unproven[issuer]
        else:
            raise IssuerUnavailable("keys_too_many_issuers")

    def add(self, issuer: str, held: Held) -> None:
        """Keep the set of an issuer that no fetch has shown to exist yet."""
        self._proven.pop(issuer, None)
        self._unproven[issuer] = held

    def all(self) -> Iterator[Held]:
        """Every set, proven or not."""
        yield from self._proven.values()
        yield from self._unproven.values()

    def _promote(self, issuer: str) -> None:
        self._proven[issuer] = self._unproven.pop(issuer)
        if len(self._proven) > PROVEN:
            self._proven.popitem(last=False)[1].keys.discard()


class Keys:
    """
    The key sets of all issuers. One per process, used within one running loop.

    A set is made only for an issuer that the registry has matched. Sets share nothing but the
    fetcher, so an issuer that is dead or slow costs the others nothing. *sleep* and *die* stand
    in for waiting and chance in tests.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        *,
        discovery: Discovery | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        die: Callable[[], float] = DICE.random,
    ) -> None:
        self.fetched = self.failed = 0
        """How many fetches brought keys, and how many did not."""
        self.discovery = discovery or Discovery(fetcher, monotonic=monotonic)
        self._fetcher = fetcher
        self._clock = Clock(monotonic, sleep, die)
        self._exact: dict[str, Held] = {}
        self._families: dict[str, Family] = {}
        # One count for all: a set that was forgotten and made anew must not meet verdicts of
        # its predecessor under the same number.
        self._versions = itertools.count()

    def of(self, issuer: str, trusted: TrustedIssuer) -> KeySet:
        """
        The keys of the concrete *issuer*, which *trusted* covers by name or by template.

        IssuerUnavailable: tokens have named more issuers of the template than can be looked up.
        """
        if issuer == trusted.settings.issuer:
            held = self._exact.get(issuer)
            if held is None or not held.source.serves(trusted):
                if held is not None:
                    held.keys.discard()
                held = self._exact[issuer] = self._make(issuer, trusted, permanent=True)
            return held.keys
        family = self._families.setdefault(trusted.settings.issuer, Family())
        held = family.get(issuer)
        if held is None or not held.source.serves(trusted):
            if held is not None:
                held.keys.discard()
            family.make_room()
            held = self._make(issuer, trusted, permanent=False)
            family.add(issuer, held)
        return held.keys

    def warm(self, trusted: Iterable[TrustedIssuer]) -> None:
        """
        Begin to fetch the keys of these issuers, without waiting; within a running loop.

        Templates are left out (they name no issuer), and issuers whose tokens are asked about.
        """
        for one in trusted:
            if one.template is None and not asks(one):
                self.of(one.settings.issuer, one).warm()

    def state_of(self, trusted: TrustedIssuer) -> str:
        """
        Whether tokens of this issuer can be checked now, as one word for `/readyz`.

        ``ready``; ``asked`` where the issuer is asked about each token; ``template`` where tokens
        name the issuers; else why there are no keys: ``not_fetched``, or a FetchError's reason.
        """
        if trusted.template is not None:
            return "template"
        held = self._exact.get(trusted.settings.issuer)
        if held is not None and held.keys.has_keys:
            return "ready"
        if asks(trusted):
            return "asked"
        return "not_fetched" if held is None else held.keys.failure or "not_fetched"

    def oldest_s(self) -> float:
        """
        Seconds since the keys in use were fetched, for the issuer where that is longest ago.

        0 while there are none.
        """
        groups = [self._exact.values(), *(family.all() for family in self._families.values())]
        fetched = [
            held.keys.fetched_at
            for group in groups
            for held in group
            if held.keys.has_keys and held.keys.fetched_at is not None
        ]
        return self._clock.monotonic() - min(fetched) if fetched else 0.0

    def retain(self, issuers: Collection[str]) -> None:
        """Forget every issuer and template that is not among *issuers*: after a reload."""
        for issuer in [known for known in self._exact if known not in issuers]:
            self._exact.pop(issuer).keys.discard()
        for template in [known for known in self._families if known not in issuers]:
            for held in self._families.pop(template).all():
                held.keys.discard()

    async def aclose(self) -> None:
        """Forget all keys and end all work; the fetcher is its owner's to close."""
        groups = [self._exact.values(), *(family.all() for family in self._families.values())]
        tasks = [task for group in groups for held in group for task in held.keys.discard()]
        self._exact.clear()
        self._families.clear()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.discovery.aclose()

    def _make(self, issuer: str, trusted: TrustedIssuer, *, permanent: bool) -> Held:
        source = Source(issuer, trusted, self._fetcher, self.discovery)

        async def load() -> Loaded:
            try:
                loaded = await source.load()
            except FetchError:
                self.failed += 1
                raise
            self.fetched += 1
            return loaded

        return Held(
            source,
            KeySet(
                load,
                name=issuer,
                versions=self._versions,
                clock=self._clock,
                permanent=permanent,
            ),
        )


def asks(trusted: TrustedIssuer) -> bool:
    """Whether this issuer's tokens are asked about at the issuer rather than checked with keys."""
    return (
        trusted.settings.introspection is not None
        or trusted.preset.introspection_form == "tokeninfo"
    )
