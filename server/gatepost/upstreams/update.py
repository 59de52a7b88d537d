"""Fetch the catalogue of a server once, review it, and store it."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from gatepost.tools.context.interfaces import ListName
from gatepost.upstreams.assembly import FetchedLists, assembled
from gatepost.upstreams.catalogue import Catalogue, Section, same_content
from gatepost.upstreams.catalogue_store import CatalogueTooLarge
from gatepost.upstreams.connection import ConnectionFailure, Connections
from gatepost.upstreams.fetch import fetched
from gatepost.upstreams.listed_secrets import without_secrets
from gatepost.upstreams.plan import Principal
from gatepost.upstreams.store import UpstreamStore
from gatepost.upstreams.upstream_server import UpstreamServer

AnnounceLists = Callable[[str, frozenset[ListName]], Awaitable[None]]
"""Tells the clients of a tenant which of its lists changed."""
Redacted = Callable[[str, str], str]
"""Returns a text without the secrets of a tenant."""

FETCH_S = 60.0
"""The seconds that one fetch may take in total."""

LISTS_OF: dict[Section, ListName] = {
    "tools": "tools",
    "resources": "resources",
    "templates": "resources",
    "prompts": "prompts",
}
"""The list of ours that contains the definitions of a section."""

log = logging.getLogger(__name__)


class CatalogueUpdate:
    """Fetches catalogues; several may run at once, also of the same server."""

    def __init__(
        self,
        store: UpstreamStore,
        connections: Connections,
        announce: AnnounceLists,
        redacted: Redacted = lambda tenant, text: text,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._connections, self._announce = store, connections, announce
        self._redacted, self._clock = redacted, clock

    async def run(self, server: UpstreamServer, principal: Principal | None) -> Catalogue:
        """
        Fetch a catalogue, store it and return it.

        Raises ConnectionFailure after noting the failure in the last good catalogue, and
        StoreUnavailable.
        """
        connection = self._connections.connection_to(listing_view(server), principal)
        began = self._clock()
        try:
            async with asyncio.timeout(FETCH_S):
                listed = await fetched(connection, server)
            return await self._store_catalogue(server, listed, principal, began)
        except TimeoutError:
            reason = f"The server {server.name} did not list its tools within {FETCH_S:.0f} s."
            failure = ConnectionFailure("timeout", reason)
        except CatalogueTooLarge:
            reason = f"The catalogue of the server {server.name} is too large to be stored."
            failure = ConnectionFailure("invalid", reason)
        except ConnectionFailure as raised:
            failure = raised
        await self._note(server, failure, principal)
        raise failure

    async def _store_catalogue(
        self,
        server: UpstreamServer,
        listed: FetchedLists,
        principal: Principal | None,
        began: float,
    ) -> Catalogue:
        catalogues, tenant = self._store.catalogues, server.tenant
        before = await catalogues.get(tenant, server.id, principal)
        if before is not None and before.fetched_at > began:
            return before  # another replica asked later and got its answer sooner
        listed = await asyncio.to_thread(without_secrets, listed, partial(self._redacted, tenant))
        while True:
            pins, revision = await catalogues.pins(tenant, server.id)
            catalogue, new_pins = await asyncio.to_thread(
                assembled, server, listed, pins, before, now=began
            )
            if new_pins is not pins:
                # Another fetch or an administrator may have changed the pins meanwhile.
                if not await catalogues.put_pins(tenant, server.id, new_pins, revision):
                    continue
                revision += 1
            is_new = before is None or not same_content(before, catalogue) or bool(before.failure)
            await catalogues.put(tenant, catalogue, principal, notify=is_new)
            if (await catalogues.pins(tenant, server.id))[1] == revision:
                break
        if await self._store.server(tenant, server.id) is None:
            await catalogues.delete(tenant, server.id)  # deleted while this fetch ran
        else:
            await self._announce_changes(server, before, catalogue)
        return catalogue

    async def _note(
        self, server: UpstreamServer, failure: ConnectionFailure, principal: Principal | None
    ) -> None:
        before = await self._store.catalogues.get(server.tenant, server.id, principal)
        log.warning(
            "upstream_not_listed",
            extra={"tenant": server.tenant, "server": server.name, "reason": failure.reason},
        )
        if before is None:
            before = Catalogue(server_id=server.id, fetched_at=0.0)
        failing = msgspec.structs.replace(
            before, failing_since=before.failing_since or self._clock(), failure=failure.message
        )
        is_new = before.failing_since is None
        await self._store.catalogues.put(server.tenant, failing, principal, notify=is_new)

    async def _announce_changes(
        self, server: UpstreamServer, before: Catalogue | None, after: Catalogue
    ) -> None:
        changed = {
            LISTS_OF[section]
            for section in LISTS_OF
            if _section(before, section) != _section(after, section)
        }
        if before is not None and changed:
            log.info(
                "upstream_list_changed",
                extra={
                    "tenant": server.tenant,
                    "server": server.name,
                    "lists": sorted(changed),
                    "waiting": len(after.changes),
                },
            )
        if changed:
            await self._announce(server.tenant, frozenset(changed))


def listing_view(server: UpstreamServer) -> UpstreamServer:
    """Return a server as its catalogue is fetched: with its `list_credential` if it has one."""
    if not server.list_credential:
        return server
    return msgspec.structs.replace(server, credential=server.list_credential)


def _section(catalogue: Catalogue | None, section: Section) -> tuple[object, ...]:
    if catalogue is None:
        return ()
    return tuple(
        definition for definition in catalogue.definitions if definition.section == section
    )
