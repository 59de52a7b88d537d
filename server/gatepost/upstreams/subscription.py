"""Follow the notifications of an upstream: a replica with the lease follows for all."""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.leases import LeaseLost, Leases
from gatepost.tools.offers.uri_template import is_uri
from gatepost.upstreams.catalogue import Catalogue
from gatepost.upstreams.connection import ConnectionFailure, Connections, UpstreamNotification
from gatepost.upstreams.store import UpstreamStore
from gatepost.upstreams.update import listing_view
from gatepost.upstreams.upstream_server import UpstreamServer

LEASE_S = 30.0
OPEN_S = 15.0
"""How long a server may take to open its stream. A server that takes longer is polled."""
AGAIN_S = 5.0
WITHOUT_STREAM_S = 600.0
"""How long to wait before trying a server without a stream again."""
TOGETHER_S = 0.5
"""How long notifications are collected before they take effect."""
MAX_UPDATES = 500
"""Maximum number of updated resources that are announced at once."""
RANDOM = random.SystemRandom()

Updated = Callable[[str, str], Awaitable[None]]
"""Tells the clients of a tenant that a resource has new content."""
Relisted = Callable[[UpstreamServer], None]

log = logging.getLogger(__name__)


class ReportUnfollowed(Protocol):
    """Called with whether a server's changes cannot be followed, so that it is polled."""

    def __call__(self, server: UpstreamServer, /, *, is_polled: bool) -> None:
        """Take note of it."""


class UpstreamSubscription:
    """Follows servers, each in a task of its own."""

    def __init__(
        self,
        store: UpstreamStore,
        connections: Connections,
        leases: Leases,
        updated: Updated,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._connections, self._leases = store, connections, leases
        self._updated, self._clock = updated, clock

    async def follow(
        self, server: UpstreamServer, relisted: Relisted, unfollowed: ReportUnfollowed
    ) -> None:
        """Follow a server until this is cancelled, whenever no other replica does."""
        lease = f"follow/{server.id}"
        while True:
            pause = LEASE_S / 2
            try:
                if await self._leases.take(server.tenant, lease, LEASE_S):
                    work = self._followed(server, relisted, unfollowed)
                    pause = await self._leases.during(server.tenant, lease, LEASE_S, work)
            except (StoreUnavailable, LeaseLost):
                pause = AGAIN_S
            await asyncio.sleep(pause * RANDOM.uniform(0.7, 1.3))

    async def _followed(
        self, server: UpstreamServer, relisted: Relisted, unfollowed: ReportUnfollowed
    ) -> float:
        """Follow while the stream lives; return the seconds before the next attempt."""
        connection = self._connections.connection_to(listing_view(server))
        started_at = self._clock()
        is_open = False
        try:
            async with asyncio.timeout(OPEN_S) as opening, connection.notifications() as stream:
                opening.reschedule(None)
                is_open = True
                unfollowed(server, is_polled=False)
                # Changes before the stream was open are not announced.
                relisted(server)
                await self._collect(server, stream, relisted)
        except (ConnectionFailure, TimeoutError) as failure:
            log.debug(
                "upstream_not_followed",
                extra={"server": server.name, "error": type(failure).__name__},
            )
        unfollowed(server, is_polled=True)
        is_lasting = is_open and self._clock() - started_at > LEASE_S
        return AGAIN_S if is_lasting else WITHOUT_STREAM_S

    async def _collect(
        self,
        server: UpstreamServer,
        stream: AsyncIterator[UpstreamNotification],
        relisted: Relisted,
    ) -> None:
        """Act on notifications until the stream ends; updates that come together are told once."""
        uris: set[str] = set()
        arrived = asyncio.Event()
        notifier = asyncio.create_task(self._announce(server, uris, arrived))
        try:
            async for notification in stream:
                if notification.method.endswith("/list_changed"):
                    relisted(server)
                elif notification.method == "notifications/resources/updated":
                    uri = notification.params.get("uri")
                    if isinstance(uri, str) and is_uri(uri) and len(uris) < MAX_UPDATES:
                        uris.add(uri)
                        arrived.set()
        finally:
            notifier.cancel()
            await asyncio.wait([notifier])

    async def _announce(
        self, server: UpstreamServer, uris: set[str], arrived: asyncio.Event
    ) -> None:
        while True:
            await arrived.wait()
            await asyncio.sleep(TOGETHER_S)
            arrived.clear()
            changed = sorted(uris)
            uris.clear()
            try:
                catalogue = await self._store.catalogues.get(server.tenant, server.id)
                if catalogue is None:
                    continue
                for uri in changed:
                    # A server announces its own resources, not those of others.
                    if is_of(catalogue, uri):
                        await self._updated(server.tenant, uri)
            except StoreUnavailable:
                log.debug("resource_update_not_sent", extra={"server": server.name})


def is_of(catalogue: Catalogue, uri: str) -> bool:
    """Return whether a server's catalogue has a resource, or a template that may have it."""
    for definition in catalogue.definitions:
        if definition.section == "resources" and definition.key == uri:
            return True
        if definition.section == "templates" and uri.startswith(definition.key.partition("{")[0]):
            return True
    return False
