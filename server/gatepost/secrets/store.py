"""Store secrets encrypted by the key ring, one entry each, per tenant."""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import Context

import msgspec

from gatepost.secrets.hosts import BoundSecret
from gatepost.secrets.keyring import KeyRing
from gatepost.secrets.names import MAX_SECRETS, NAME, SecretRefused
from gatepost.storage.entries import CHANGE_COUNTER, NO_TENANT, Entry
from gatepost.storage.records import Records

SUBJECT = "secrets"
PURPOSE = "tenant secret"
TURN_BYTES, ENTRY_BYTES = 131_072, 2_000
"""Encrypted bytes that are opened at once, and how many an entry counts for beside its own."""


class SecretUnreadable(Exception):
    """Raised when a secret cannot be decrypted; the message names it and says why."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"the secret {name} cannot be opened: {reason}")
        self.name, self.reason = name, reason


class SecretDescription(msgspec.Struct, frozen=True):
    """The public properties of a secret."""

    name: str
    changed_at: float
    key_id: str
    """The id of the key that encrypted it."""
    hosts: tuple[str, ...] = ()
    unreadable: str | None = None
    """The reason why it cannot be decrypted, or None."""
    username: bool = False
    """Whether it is a user name, which responses may contain."""


class ResealResult(msgspec.Struct, frozen=True):
    """The result of resealing all secrets."""

    sealed: int
    current: int
    """The number of secrets that the newest key had already encrypted."""
    unreadable: tuple[tuple[str, str], ...]
    """The tenant, and the message that names the secret."""


class SecretStore:
    """The stored secrets of all tenants; all methods raise StoreUnavailable."""

    def __init__(
        self, records: Records, keyring: KeyRing, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._records, self.keyring, self._clock = records, keyring, clock

    async def put(
        self,
        tenant: str,
        name: str,
        value: str,
        hosts: tuple[str, ...] | None = None,
        *,
        username: bool = False,
    ) -> tuple[str, ...]:
        """
        Store a value and its hosts durably, replacing the previous value.

        None: to what the one before was bound to, as a new token is for the same server. Whether
        it is a *username* is never taken over: a secret must not end up in answers for that. Raises
        SecretRefused.
        """
        entries = self._records.for_tenant(tenant).entries(SUBJECT)
        while True:
            entry = await entries.get(name)
            if entry is None and await entries.count() >= MAX_SECRETS:
                raise SecretRefused(f"there are {MAX_SECRETS} secrets, which is all there may be")
            bound = self._hosts(tenant, entry) if hosts is None else hosts
            sealed = self._sealed(tenant, name, BoundSecret(value, bound, username))
            # A concurrent change of its hosts must not be undone.
            revision = None if hosts is not None else entry.revision if entry else 0
            if await entries.put(name, sealed, now=self._clock(), revision=revision):
                break
        await self._count_change()
        return bound

    async def bind(self, tenant: str, name: str, hosts: tuple[str, ...]) -> bool:
        """Bind a secret to other hosts durably; return whether it exists; SecretUnreadable."""
        entries = self._records.for_tenant(tenant).entries(SUBJECT)
        while (entry := await entries.get(name)) is not None:
            secret = msgspec.structs.replace(self._opened(tenant, entry), hosts=hosts)
            sealed = self._sealed(tenant, name, secret)
            # A value that is set at the same time must not be overwritten with the old one.
            if await entries.put(name, sealed, now=self._clock(), revision=entry.revision):
                await self._count_change()
                return True
        return False

    async def delete(self, tenant: str, name: str) -> bool:
        """Delete a secret durably; return whether it existed."""
        existed = await self._records.for_tenant(tenant).entries(SUBJECT).delete(name)
        if existed:
            await self._count_change()
        return existed

    async def get(self, tenant: str, name: str) -> BoundSecret | None:
        """Return the current value of the secret; raise SecretUnreadable."""
        entry = await self._records.for_tenant(tenant).entries(SUBJECT).get(name)
        return None if entry is None else self._opened(tenant, entry)

    async def all(self, tenant: str) -> Mapping[str, str]:
        """Return every readable value that must be redacted, by name."""
        entries = await self._records.for_tenant(tenant).entries(SUBJECT).all()
        return await self.opened(tenant, entries)

    async def sealed(self, tenants: Collection[str]) -> Mapping[str, Sequence[Entry]]:
        """Return the entries of these tenants, for `opened`; those that have none are left out."""
        return await self._records.entries_of(tenants, SUBJECT)

    async def opened(self, tenant: str, entries: Iterable[Entry]) -> Mapping[str, str]:
        """
        Return every readable value that must be redacted, by name.

        Opening the most that a tenant can keep takes 0.7 seconds, so other requests have turns.
        """
        values: dict[str, str] = {}
        size = 0
        for entry in entries:
            size += len(entry.value) + ENTRY_BYTES
            if size > TURN_BYTES:
                size = 0
                await asyncio.sleep(0)
            try:
                secret = self._opened(tenant, entry)
            except SecretUnreadable:
                # An unreadable value cannot appear in a response; `get` reports the problem.
                continue
            if not secret.username:
                values[entry.key] = secret.value
        return values

    async def rows(self, tenant: str) -> list[SecretDescription]:
        """Return the secrets that the operator set, by name."""
        entries = await self._records.for_tenant(tenant).entries(SUBJECT).all()
        return [*self._rows(tenant, entries)]

    async def names(self, tenant: str) -> list[str]:
        """Return the names of the secrets that the operator set."""
        entries = await self._records.for_tenant(tenant).entries(SUBJECT).all()
        return [entry.key for entry in entries if NAME.fullmatch(entry.key)]

    async def reseal(self) -> ResealResult:
        """Reseal all secrets with the newest key, so that older keys can be removed."""
        sealed = current = 0
        unreadable = []
        for tenant in await self._records.tenants(SUBJECT):
            if tenant == NO_TENANT:
                continue
            for entry in await self._records.for_tenant(tenant).entries(SUBJECT).all():
                try:
                    anew = await self._resealed(tenant, entry.key)
                except SecretUnreadable as failure:
                    unreadable.append((tenant, str(failure)))
                    continue
                sealed, current = sealed + anew, current + (not anew)
        return ResealResult(sealed, current, tuple(unreadable))

    async def _resealed(self, tenant: str, name: str) -> bool:
        entries = self._records.for_tenant(tenant).entries(SUBJECT)
        while (entry := await entries.get(name)) is not None:
            secret = self._opened(tenant, entry)
            if _key_id(entry) == self.keyring.current.id:
                return False
            sealed = self._sealed(tenant, name, secret)
            # A value that is set at the same time must not be overwritten with the old one.
            if await entries.put(name, sealed, now=entry.updated_at, revision=entry.revision):
                return True
        return False

    async def _count_change(self) -> None:
        entries = self._records.for_tenant(NO_TENANT).entries(SUBJECT)
        await entries.put(CHANGE_COUNTER, b"", now=self._clock())

    def _rows(self, tenant: str, entries: list[Entry]) -> Iterator[SecretDescription]:
        for entry in entries:
            if not NAME.fullmatch(entry.key):
                continue
            try:
                secret, reason = self._opened(tenant, entry), None
            except SecretUnreadable as failure:
                secret, reason = BoundSecret(""), failure.reason
            key_id = _key_id(entry)
            yield SecretDescription(
                entry.key, entry.updated_at, key_id, secret.hosts, reason, secret.username
            )

    def _hosts(self, tenant: str, entry: Entry | None) -> tuple[str, ...]:
        try:
            return self._opened(tenant, entry).hosts if entry is not None else ()
        except SecretUnreadable:
            return ()  # setting it again reports that it has no hosts

    def _sealed(self, tenant: str, name: str, secret: BoundSecret) -> bytes:
        payload = msgspec.msgpack.encode(secret)
        return self.keyring.seal(PURPOSE, payload, context=_context(tenant, name)).encode()

    def _opened(self, tenant: str, entry: Entry) -> BoundSecret:
        key_id = _key_id(entry)
        if self.keyring.find(key_id) is None:
            # Without the second that unknown ids have to wait: these ids are our own, and a command
            # may have just rotated the ring.
            self.keyring.reread()
        sealed = entry.value.decode("ascii", errors="replace")
        payload = self.keyring.open(PURPOSE, sealed, context=_context(tenant, entry.key))
        if payload is not None:
            try:
                return msgspec.msgpack.decode(payload, type=BoundSecret)
            except msgspec.MsgspecError:
                raise SecretUnreadable(
                    entry.key, "another version of Gatepost has encrypted it"
                ) from None
        if self.keyring.find(key_id) is None:
            raise SecretUnreadable(
                entry.key, f"the key {key_id} that encrypted it is not in the ring"
            )
        raise SecretUnreadable(entry.key, "what is kept was changed, or belongs to another place")


class SecretReader:
    """Reads what `SecretStore.all` returns, with one statement for all tenants that wait."""

    def __init__(self, vault: SecretStore) -> None:
        self._vault = vault
        self._one_by_one = asyncio.Lock()
        self._next: tuple[set[str], asyncio.Task[Mapping[str, Mapping[str, str]]]] | None = None
        """The tenants of the next statement, and the task that will execute it."""

    async def all(self, tenant: str) -> Mapping[str, str]:
        """Return a reading that begins after this call; raises StoreUnavailable."""
        if self._next is None or self._next[1].done():
            tenants = set[str]()
            # Without the context of this call, because other calls wait for the task as well.
            task = asyncio.get_running_loop().create_task(self._read(tenants), context=Context())
            task.add_done_callback(retrieved)
            self._next = tenants, task
        tenants, task = self._next
        tenants.add(tenant)
        return (await asyncio.shield(task))[tenant]

    async def _read(self, tenants: Collection[str]) -> Mapping[str, Mapping[str, str]]:
        async with self._one_by_one:
            self._next = None
            sealed = await self._vault.sealed(tenants)
        return {
            tenant: await self._vault.opened(tenant, sealed.get(tenant, ())) for tenant in tenants
        }


def retrieved(task: "asyncio.Task[object]") -> None:
    """Retrieve the error of a task whose callers may all have left."""
    if not task.cancelled():
        task.exception()


def _context(tenant: str, name: str) -> bytes:
    # A row that is moved to another tenant or name cannot be decrypted. No name has a NUL.
    return f"{tenant}\0{name}".encode("utf-8", "surrogatepass")


def _key_id(entry: Entry) -> str:
    key_id = entry.value.partition(b".")[0].decode("ascii", errors="replace")
    return key_id if key_id.isalnum() and len(key_id) <= 16 else "?"
