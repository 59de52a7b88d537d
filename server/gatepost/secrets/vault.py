"""Secrets at rest: sealed by the key ring, one entry each, and opened for their tenant alone."""

import time
from collections.abc import Callable, Iterator, Mapping

import msgspec

from gatepost.keyring import KeyRing
from gatepost.secrets.binding import Held
from gatepost.secrets.grammar import MOST_SECRETS, NAME, SecretRefused
from gatepost.stores.api import Entry, Records

SUBJECT = "secrets"
PURPOSE = "tenant secret"
NO_TENANT = ""
"""Holds the word of changes; no tenant has this id."""
CHANGES = "changes"


class Unreadable(Exception):
    """A secret that is there and cannot be opened; the message names it, and says why."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"the secret {name} cannot be opened: {reason}")
        self.name, self.reason = name, reason


class Row(msgspec.Struct, frozen=True):
    """What may be said of a secret."""

    name: str
    changed_at: float
    key_id: str
    """Of the key that sealed it."""
    hosts: tuple[str, ...] = ()
    unreadable: str | None = None
    """Why it cannot be opened."""


class Resealed(msgspec.Struct, frozen=True):
    """What sealing everything anew came to."""

    sealed: int
    current: int
    """How many were sealed by the newest key already."""
    unreadable: tuple[tuple[str, str], ...]
    """Tenant, and the sentence that names the secret."""


class Vault:
    """The secrets of all tenants; everything raises StoreUnavailable."""

    def __init__(
        self, records: Records, keyring: KeyRing, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._records, self.keyring, self._clock = records, keyring, clock

    async def put(
        self, tenant: str, name: str, value: str, hosts: tuple[str, ...] | None = None
    ) -> tuple[str, ...]:
        """
        Keep a value, durably, in the place of the one before, and say what it is bound to.

        None: to what the one before was bound to, as a new token is for the same server. Raises
        SecretRefused.
        """
        entries = self._records.of(tenant).entries(SUBJECT)
        while True:
            entry = await entries.get(name)
            if entry is None and len(await entries.all()) >= MOST_SECRETS:
                raise SecretRefused(f"there are {MOST_SECRETS} secrets, which is all there may be")
            bound = self._hosts(tenant, entry) if hosts is None else hosts
            sealed = self._sealed(tenant, name, Held(value, bound))
            # Whoever binds it meanwhile must not be undone.
            revision = None if hosts is not None else entry.revision if entry else 0
            if await entries.put(name, sealed, now=self._clock(), revision=revision):
                break
        await self._tell()
        return bound

    async def bind(self, tenant: str, name: str, hosts: tuple[str, ...]) -> bool:
        """Bind a secret to other hosts, durably; whether there is one. Raises Unreadable."""
        entries = self._records.of(tenant).entries(SUBJECT)
        while (entry := await entries.get(name)) is not None:
            held = Held(self._opened(tenant, entry).value, hosts)
            sealed = self._sealed(tenant, name, held)
            # Whoever sets it meanwhile must not find the old value in its place.
            if await entries.put(name, sealed, now=self._clock(), revision=entry.revision):
                await self._tell()
                return True
        return False

    async def delete(self, tenant: str, name: str) -> bool:
        """Remove one, durably; whether there was one."""
        there = await self._records.of(tenant).entries(SUBJECT).delete(name)
        if there:
            await self._tell()
        return there

    async def get(self, tenant: str, name: str) -> Held | None:
        """The secret as it is now; raises Unreadable."""
        entry = await self._records.of(tenant).entries(SUBJECT).get(name)
        return None if entry is None else self._opened(tenant, entry)

    async def all(self, tenant: str) -> Mapping[str, str]:
        """Every value that can be opened, by name."""
        found: dict[str, str] = {}
        for entry in await self._records.of(tenant).entries(SUBJECT).all():
            try:
                found[entry.key] = self._opened(tenant, entry).value
            except Unreadable:
                # What nobody can open needs no keeping out of answers; whoever asks for it hears.
                continue
        return found

    async def rows(self, tenant: str) -> list[Row]:
        """What its operator set, by name."""
        entries = await self._records.of(tenant).entries(SUBJECT).all()
        return [*self._rows(tenant, entries)]

    async def names(self, tenant: str) -> list[str]:
        """What its operator set."""
        entries = await self._records.of(tenant).entries(SUBJECT).all()
        return [entry.key for entry in entries if NAME.fullmatch(entry.key)]

    async def changes(self) -> int:
        """A number that grows with every change of any secret, by any process."""
        found = await self._records.of(NO_TENANT).entries(SUBJECT).get(CHANGES)
        return 0 if found is None else found.revision

    async def reseal(self) -> Resealed:
        """Seal everything with the newest key, so that the older ones may go."""
        sealed = current = 0
        unreadable = []
        for tenant in await self._records.tenants(SUBJECT):
            if tenant == NO_TENANT:
                continue
            for entry in await self._records.of(tenant).entries(SUBJECT).all():
                try:
                    anew = await self._resealed(tenant, entry.key)
                except Unreadable as failure:
                    unreadable.append((tenant, str(failure)))
                    continue
                sealed, current = sealed + anew, current + (not anew)
        return Resealed(sealed, current, tuple(unreadable))

    async def _resealed(self, tenant: str, name: str) -> bool:
        entries = self._records.of(tenant).entries(SUBJECT)
        while (entry := await entries.get(name)) is not None:
            held = self._opened(tenant, entry)
            if _key_id(entry) == self.keyring.current.id:
                return False
            sealed = self._sealed(tenant, name, held)
            # Whoever sets it meanwhile must not find the old value in its place.
            if await entries.put(name, sealed, now=entry.updated_at, revision=entry.revision):
                return True
        return False

    async def _tell(self) -> None:
        entries = self._records.of(NO_TENANT).entries(SUBJECT)
        await entries.put(CHANGES, b"", now=self._clock())

    def _rows(self, tenant: str, entries: list[Entry]) -> Iterator[Row]:
        for entry in entries:
            if not NAME.fullmatch(entry.key):
                continue
            try:
                hosts, reason = self._opened(tenant, entry).hosts, None
            except Unreadable as failure:
                hosts, reason = (), failure.reason
            yield Row(entry.key, entry.updated_at, _key_id(entry), hosts, reason)

    def _hosts(self, tenant: str, entry: Entry | None) -> tuple[str, ...]:
        try:
            return self._opened(tenant, entry).hosts if entry is not None else ()
        except Unreadable:
            return ()  # whoever sets it again is told that it is bound to nothing

    def _sealed(self, tenant: str, name: str, held: Held) -> bytes:
        payload = msgspec.msgpack.encode(held)
        return self.keyring.seal(PURPOSE, payload, context=_context(tenant, name)).encode()

    def _opened(self, tenant: str, entry: Entry) -> Held:
        key_id = _key_id(entry)
        if self.keyring.find(key_id) is None:
            # Not within the second that strangers' ids have to wait: these are our own, and a
            # command may have rotated the ring just now.
            self.keyring.reread()
        sealed = entry.value.decode("ascii", errors="replace")
        payload = self.keyring.open(PURPOSE, sealed, context=_context(tenant, entry.key))
        if payload is not None:
            try:
                return msgspec.msgpack.decode(payload, type=Held)
            except msgspec.MsgspecError:
                raise Unreadable(entry.key, "another version of Gatepost has sealed it") from None
        if self.keyring.find(key_id) is None:
            raise Unreadable(entry.key, f"the key {key_id} that sealed it is not in the ring")
        raise Unreadable(entry.key, "what is kept was changed, or belongs to another place")


def _context(tenant: str, name: str) -> bytes:
    # A row that somebody moves to another tenant or name opens nowhere. No name holds a NUL.
    return f"{tenant}\0{name}".encode("utf-8", "surrogatepass")


def _key_id(entry: Entry) -> str:
    key_id = entry.value.partition(b".")[0].decode("ascii", errors="replace")
    return key_id if key_id.isalnum() and len(key_id) <= 16 else "?"
