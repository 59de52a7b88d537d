"""Store the catalogues and pins of upstreams durably, for each tenant."""

from collections.abc import Callable, Collection
from hashlib import sha256
from typing import TypeVar

import msgspec

from gatepost.storage.entries import Entries, Entry
from gatepost.storage.records import Records
from gatepost.upstreams.assembly import after_accepting, pins_after
from gatepost.upstreams.catalogue import Catalogue, CatalogueSummary
from gatepost.upstreams.change_counter import ChangeCounter
from gatepost.upstreams.definition_pins import Pins
from gatepost.upstreams.upstream_server import UpstreamServer

CATALOGUES = "mcp_catalogues"
PINS = "mcp_pins"
MAX_CATALOGUE = 16_000_000
"""
Maximum number of bytes of a stored catalogue, including the definitions that wait and the ones that
they would replace.
"""
PERSON_S = 7 * 86_400.0
"""How long the catalogue of one person is kept after it was fetched."""

Stored = TypeVar("Stored", Catalogue, CatalogueSummary, Pins)
_encode = msgspec.msgpack.encode


class CatalogueTooLarge(ValueError):
    """A catalogue does not fit in the store."""


class CatalogueStore:
    """The catalogues and pins of all tenants; all methods raise StoreUnavailable."""

    def __init__(
        self, records: Records, counter: ChangeCounter, *, clock: Callable[[], float]
    ) -> None:
        self._records, self._counter, self._clock = records, counter, clock

    async def get(
        self, tenant: str, server_id: str, principal: tuple[str, ...] | None = None
    ) -> Catalogue | None:
        """Return the last catalogue of a server: the tenant's, or that of one caller."""
        entry = await self._entries(tenant, CATALOGUES).get(catalogue_key(server_id, principal))
        return None if entry is None else _decoded(entry, Catalogue)

    async def summary(self, tenant: str, server_id: str) -> CatalogueSummary | None:
        """
        Return the summary of the last catalogue for lists; the catalogue itself may be megabytes.
        """
        entry = await self._entries(tenant, CATALOGUES).get(server_id)
        return None if entry is None else _decoded(entry, CatalogueSummary)

    async def put(
        self,
        tenant: str,
        catalogue: Catalogue,
        principal: tuple[str, ...] | None = None,
        *,
        notify: bool = True,
    ) -> None:
        """
        Store a catalogue in place of the one before; raises CatalogueTooLarge.

        Replicas are *notify* to read it, unless only the time of the fetch is new.
        """
        await self._put(tenant, catalogue_key(catalogue.server_id, principal), catalogue)
        if notify:
            await self._counter.changed(tenant)

    async def pins(self, tenant: str, server_id: str) -> tuple[Pins, int]:
        """Return the pins of a server and their revision, which is 0 if there are none."""
        entry = await self._entries(tenant, PINS).get(server_id)
        return (Pins(), 0) if entry is None else (_decoded(entry, Pins), entry.revision)

    async def put_pins(self, tenant: str, server_id: str, pins: Pins, revision: int) -> bool:
        """Store pins that were read with this revision; return False if they changed since."""
        entries = self._entries(tenant, PINS)
        return await entries.put(server_id, _encode(pins), now=self._clock(), revision=revision)

    async def accept(self, server: UpstreamServer, digests: Collection[str] | None = None) -> int:
        """
        Accept the waiting changes with these digests, or all; return how many were accepted.

        The accepted changes are offered at once, without asking the server again.
        """
        stored = await self._of_server(server)
        catalogues = [_decoded(entry, Catalogue) for entry in stored]
        waiting = sum(len(catalogue.changes) for catalogue in catalogues)
        while True:
            before, revision = await self.pins(server.tenant, server.id)
            pins = before
            for catalogue in catalogues:
                pins = pins_after(catalogue, pins, digests)
            if pins == before or await self.put_pins(server.tenant, server.id, pins, revision):
                break
        remaining = 0
        for entry in stored:
            remaining += len((await self._reviewed(server, entry.key, pins)).changes)
        await self._counter.changed(server.tenant)
        return waiting - remaining

    async def delete(self, tenant: str, server_id: str) -> None:
        """Delete all catalogues and the pins of a server."""
        entries = self._entries(tenant, CATALOGUES)
        for entry in await entries.all():
            if entry.key.partition("/")[0] == server_id:
                await entries.delete(entry.key)
        await self._entries(tenant, PINS).delete(server_id)

    async def _of_server(self, server: UpstreamServer) -> list[Entry]:
        entries = self._entries(server.tenant, CATALOGUES)
        if server.catalogue == "shared":
            entry = await entries.get(server.id)
            return [] if entry is None else [entry]
        every = await entries.all()
        return [entry for entry in every if entry.key.partition("/")[0] == server.id]

    async def _reviewed(self, server: UpstreamServer, key: str, pins: Pins) -> Catalogue:
        entries = self._entries(server.tenant, CATALOGUES)
        while True:
            entry = await entries.get(key)
            if entry is None:
                return Catalogue(server_id=server.id, fetched_at=0)
            catalogue = after_accepting(server, _decoded(entry, Catalogue), pins)
            if await self._put(server.tenant, key, catalogue, entry.revision):
                return catalogue

    async def _put(
        self, tenant: str, key: str, catalogue: Catalogue, revision: int | None = None
    ) -> bool:
        value = _encode(catalogue)
        if len(value) > MAX_CATALOGUE:
            raise CatalogueTooLarge(f"the catalogue has more than {MAX_CATALOGUE} bytes")
        now = self._clock()
        expires_at = now + PERSON_S if "/" in key else None
        return await self._entries(tenant, CATALOGUES).put(
            key, value, now=now, revision=revision, expires_at=expires_at
        )

    def _entries(self, tenant: str, subject: str) -> Entries:
        return self._records.for_tenant(tenant).entries(subject)


def catalogue_key(server_id: str, principal: tuple[str, ...] | None) -> str:
    """Return the key under which a catalogue is stored; it does not show who the caller is."""
    if principal is None:
        return server_id
    return f"{server_id}/{sha256(msgspec.json.encode(principal)).hexdigest()}"


def _decoded(entry: Entry, kind: type[Stored]) -> Stored:
    return msgspec.msgpack.decode(entry.value, type=kind)
