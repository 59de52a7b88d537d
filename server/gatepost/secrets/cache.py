"""Cache the secrets of tenants for tools and for redaction."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from itertools import count
from types import MappingProxyType

import msgspec

from gatepost.secrets.hosts import BoundSecret
from gatepost.secrets.names import MAX_BYTES, SecretRefused
from gatepost.secrets.store import SecretReader, SecretStore, SecretUnreadable, retrieved
from gatepost.storage.errors import StoreUnavailable

CACHED_S = 60.0
"""The cache lifetime in seconds without a detected change."""
AHEAD_S = 10.0
"""How long before its end a tenant's reading is renewed, if the tenant is in use."""
SEARCH_S = 5.0
"""The interval between searches for readings that end soon: each goes through all tenants."""
TENANTS_PER_READ = 200
"""The number of tenants whose secrets are read by one statement."""
RETRY_S = 1.0
"""How long cached secrets are used while the database is unavailable, in seconds."""
REPLACED_S = 3600.0
"""How long a replaced or deleted value is still redacted, in seconds."""
IDLE_S = 86_400.0
"""How long a tenant's secrets stay in memory after the last use, in seconds."""
ALREADY_EXPIRED = float("-inf")
SERVER_NAME = "GATEPOST"
"""The name under which Gatepost's own secrets are redacted."""

log = logging.getLogger(__name__)


class TenantSecrets(msgspec.Struct, frozen=True):
    """The values to redact for one tenant, by name."""

    version: int
    """Changes whenever the values change, in this process."""
    values: Mapping[str, str]


class SecretCache:
    """
    A cache of the secrets of the tenants that this process serves.

    A call that uses no secret causes no reading. The cached secrets of a tenant are valid until any
    process changes any secret (`ChangePoller` notices that). Then the secrets of all active tenants
    are read again, many tenants by one statement. A secret that a tool asks for is always read, so
    that a deleted one is never handed out. It is cached here before the tool gets it.
    """

    def __init__(self, vault: SecretStore, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._vault, self._clock = vault, clock
        self._reader = SecretReader(vault)
        self._tenants: dict[str, _TenantCache] = {}
        self._versions = count(1)
        self._own_secrets: Mapping[str, str] = {}
        self._keys = vault.keyring.keys
        self._no_secrets = self._secrets_of({})
        self._change = 0
        self._searched_at = ALREADY_EXPIRED
        self.version = next(self._versions)
        """Changes whenever any cached value changes."""

    def keep_own(self, values: Mapping[str, str]) -> None:
        """Set Gatepost's own secrets, which are redacted for every tenant."""
        if dict(values) != self._own_secrets:
            self._own_secrets = dict(values)
            self._tell_all()

    def known_secrets(self, tenant: str | None) -> TenantSecrets:
        """Return the cached values of a tenant, or Gatepost's own without a tenant."""
        cached = self._tenants.get(tenant) if tenant is not None else None
        return self._no_secrets if cached is None else cached.known_secrets

    def loaded(self, tenant: str) -> TenantSecrets | None:
        """Return the cached values if they are recent, otherwise None."""
        cached = self._tenants.get(tenant)
        if cached is None or cached.fresh_until <= self._clock():
            return None
        cached.is_used = True
        return cached.known_secrets

    async def load(self, tenant: str) -> TenantSecrets:
        """
        Load the values that must be redacted before a tool runs; raise StoreUnavailable.

        While the database does not answer, the cached values still count, because newer secrets
        cannot be handed out either.
        """
        cached = self._cache_of(tenant)
        async with cached.lock:
            now = self._clock()
            if (loaded_secrets := self.loaded(tenant)) is not None:
                return loaded_secrets  # another call loaded them while this one waited
            change, cached.used_at = self._change, now
            try:
                values = await self._reader.all(tenant)
            except StoreUnavailable:
                if not cached.read:
                    raise
                cached.fresh_until = now + RETRY_S if change == self._change else ALREADY_EXPIRED
                return cached.known_secrets
            self._cache_reading(cached, values, now, change)
            return cached.known_secrets

    async def value(self, tenant: str, name: str) -> BoundSecret | None:
        """
        Read a secret and cache it for redaction; raise SecretUnreadable or StoreUnavailable.

        Calls that wait for a reading share the next one, which begins after all of them asked.
        """
        cached = self._cache_of(tenant)
        cached.used_at = self._clock()  # at once, so that it is not forgotten before the reading
        reading = cached.next_readings.get(name)
        if reading is None or reading.done():
            # Without the context of this call, because other calls wait for the task as well.
            reading = asyncio.get_running_loop().create_task(
                self._read_value(cached, tenant, name), context=Context()
            )
            reading.add_done_callback(retrieved)
            cached.next_readings[name] = reading
        try:
            return await asyncio.shield(reading)
        except SecretUnreadable as failure:
            log.error(
                "secret_unreadable",
                extra={"tenant": tenant, "secret": name, "reason": failure.reason},
            )
            raise

    async def _read_value(
        self, cached: "_TenantCache", tenant: str, name: str
    ) -> BoundSecret | None:
        # This takes turns with `load`, which could otherwise replace this reading with an older
        # one.
        async with cached.lock:
            # A call that asks from now on may know of a change that this reading does not see.
            del cached.next_readings[name]
            secret = await self._vault.get(tenant, name)
            hidden = secret is not None and not secret.username
            self._put(cached, name, secret.value if secret is not None and hidden else None)
            return secret

    async def names(self, tenant: str) -> list[str]:
        """Return the names of the secrets that a tenant's operator set."""
        return await self._vault.names(tenant)

    async def put(
        self,
        tenant: str,
        name: str,
        value: str,
        hosts: tuple[str, ...] = (),
        *,
        redacted: bool = True,
    ) -> None:
        """
        Store a secret of a pack or an upstream; raise SecretRefused.

        One that is not *redacted* is encrypted all the same, and answers may contain it.
        """
        if not value or len(value.encode(errors="surrogatepass")) > MAX_BYTES:
            raise SecretRefused(f"the value is empty, or has more than {MAX_BYTES} bytes")
        cached = self._cache_of(tenant)
        async with cached.lock:
            # The value is known before it is stored, so no other process can hand it out sooner.
            self._put(cached, name, value if redacted else None)
            await self._vault.put(tenant, name, value, hosts, username=not redacted)

    async def delete(self, tenant: str, name: str) -> bool:
        """Delete a secret of a pack; return whether it existed."""
        cached = self._cache_of(tenant)
        async with cached.lock:
            existed = await self._vault.delete(tenant, name)
            self._put(cached, name, None)
            return existed

    async def take_up(self, change: int) -> None:
        """
        Mark cached values as outdated if *change*, the counter of changes, is another one now.

        Then read the values that are outdated, or soon will be, for the tenants that have called
        since their last reading. Raises StoreUnavailable.
        """
        now = self._clock()
        if self._vault.keyring.keys is not self._keys:
            self._tell_all()
        if self._tenants and change != self._change:
            self._change = change
            for cached in self._tenants.values():
                cached.fresh_until = ALREADY_EXPIRED
        elif now < self._searched_at + SEARCH_S:
            return
        self._searched_at = now
        for tenant in [
            tenant for tenant, cached in self._tenants.items() if cached.used_at + IDLE_S <= now
        ]:
            if not self._tenants[tenant].lock.locked():
                del self._tenants[tenant]
        refresh_before = now + AHEAD_S
        due = [
            tenant
            for tenant, cached in self._tenants.items()
            if cached.is_used and cached.read and cached.fresh_until <= refresh_before
        ]
        for at in range(0, len(due), TENANTS_PER_READ):
            await self._read_again(due[at : at + TENANTS_PER_READ])

    async def _read_again(self, tenants: Sequence[str]) -> None:
        """Read the secrets of these tenants, unless others read or change them meanwhile."""
        caches = {tenant: self._cache_of(tenant) for tenant in tenants}
        before = {tenant: cached.readings for tenant, cached in caches.items()}
        change, now = self._change, self._clock()
        sealed = await self._vault.sealed(tenants)
        for tenant, cached in caches.items():
            values = await self._vault.opened(tenant, sealed.get(tenant, ()))
            if cached.lock.locked() or cached.readings != before[tenant]:
                continue  # this reading may be older
            cached.used_at = now
            self._cache_reading(cached, values, now, change)

    def _cache_reading(
        self, cached: "_TenantCache", values: Mapping[str, str], now: float, change: int
    ) -> None:
        """Take up a reading that began at this time, when this was the last change."""
        # A change that was seen meanwhile may or may not be in this reading.
        cached.fresh_until = now + CACHED_S if change == self._change else ALREADY_EXPIRED
        cached.read, cached.is_used = True, False
        if cached.replace(values, now):
            self._apply(cached)

    def _cache_of(self, tenant: str) -> "_TenantCache":
        cached = self._tenants.get(tenant)
        if cached is None:
            cached = self._tenants[tenant] = _TenantCache(self._no_secrets, self._clock())
        return cached

    def _put(self, cached: "_TenantCache", name: str, value: str | None) -> None:
        values = {**cached.values, name: value} if value is not None else dict(cached.values)
        if value is None:
            values.pop(name, None)
        if cached.replace(values, self._clock()):
            self._apply(cached)

    def _tell_all(self) -> None:
        self._keys = self._vault.keyring.keys
        self._no_secrets = self._secrets_of({})
        for cached in self._tenants.values():
            self._apply(cached)
        self.version = next(self._versions)

    def _apply(self, cached: "_TenantCache") -> None:
        # All tenants without secrets share one version.
        cached.known_secrets = (
            self._secrets_of(values) if (values := cached.all()) else self._no_secrets
        )
        # Last, because a thread that sees this version must find its values.
        self.version = next(self._versions)

    def _secrets_of(self, values: Mapping[str, str]) -> TenantSecrets:
        keys = {f"{SERVER_NAME}.{key.id}": key.text for key in self._keys}
        return TenantSecrets(
            next(self._versions), MappingProxyType({**keys, **self._own_secrets, **values})
        )


class _TenantCache:
    """The cached secrets of one tenant."""

    def __init__(self, secrets: TenantSecrets, now: float) -> None:
        self.lock = asyncio.Lock()
        self.known_secrets = secrets
        self.next_readings: dict[str, asyncio.Task[BoundSecret | None]] = {}
        """The readings that have not begun, by the name of the secret."""
        self.values: Mapping[str, str] = {}
        self.replaced_values: tuple[tuple[str, str, float], ...] = ()
        self.read = False
        """Whether all of the tenant's secrets were read."""
        self.readings = 0
        """How often values were replaced."""
        self.is_used = False
        """Whether the values were asked for since they were read."""
        self.fresh_until = ALREADY_EXPIRED
        """The time until which the values are recent; a detected change ends it."""
        self.used_at = now

    def replace(self, values: Mapping[str, str], now: float) -> bool:
        """Replace the values; return whether the redacted values changed."""
        before = self.all()
        self.readings += 1
        replaced = [(n, v, now + REPLACED_S) for n, v in self.values.items() if values.get(n) != v]
        self.replaced_values = (
            *(replaced_value for replaced_value in self.replaced_values if replaced_value[2] > now),
            *replaced,
        )
        self.values = values
        return self.all() != before

    def all(self) -> dict[str, str]:
        """Return the current and recently replaced values."""
        old_values = {
            f"{name}.{at}": value
            for at, (name, value, _) in enumerate(self.replaced_values, start=1)
        }
        return {**old_values, **self.values}
