"""Stores of every backend, upstreams that follow a script, and a replica that refreshes them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partialmethod
from typing import Any

import pytest

from gatepost.secrets.cache import SecretCache
from gatepost.secrets.keyring import KeyRing
from gatepost.secrets.store import SecretStore
from gatepost.storage.change_poller import ChangePoller
from gatepost.storage.leases import Leases
from gatepost.storage.memory.records import MemoryRecords
from gatepost.storage.records import Records
from gatepost.storage.shared_store import MemorySharedStore
from gatepost.tools.offers.offer import CallContext, Outcome
from gatepost.upstreams.catalogue import Catalogue, Definition
from gatepost.upstreams.change_counter import SUBJECT, ChangeCounter
from gatepost.upstreams.connection import (
    NO_OPTIONS,
    ConnectionFailure,
    RequestOptions,
    ServerDescription,
    UpstreamError,
    UpstreamMessage,
    UpstreamNotification,
    UpstreamResult,
)
from gatepost.upstreams.refresh import CatalogueRefresher
from gatepost.upstreams.sealed_headers import SealedHeaders
from gatepost.upstreams.store import UpstreamStore
from gatepost.upstreams.subscription import UpstreamSubscription
from gatepost.upstreams.update import CatalogueUpdate
from gatepost.upstreams.upstream_server import UpstreamServer
from gatepost.upstreams.watch import ChangeWatch
from tests.support.measuring import ManualClock

Answer = UpstreamMessage | ConnectionFailure
ALL_CAPABILITIES: Mapping[str, Any] = {
    "tools": {"listChanged": True},
    "resources": {},
    "prompts": {},
    "completions": {},
}
UNKNOWN_METHOD = UpstreamError(-32601, "no such method")


def tool(name: str, **more: Any) -> dict[str, Any]:
    """Return a tool as a server lists it."""
    return {
        "name": name,
        "description": f"Does {name}.",
        "inputSchema": {"type": "object", "properties": {"q": {"type": "string"}}},
        **more,
    }


class ScriptedUpstream:
    """
    One server and the connection to it (see `UpstreamConnection`), which lists what a test says.

    `asked` has the methods that it was asked for.
    """

    def __init__(self, *tools: Mapping[str, Any]) -> None:
        self.capabilities: Mapping[str, Any] = {"tools": {}}
        self.instructions = ""
        self.lists: dict[str, list[Any]] = {"tools/list": [*tools]}
        self.asked: list[str] = []
        self.answer: Callable[[str, Mapping[str, Any]], Answer] = self.listed
        self.more: dict[str, Any] = {}
        """Further members of each result."""
        self.was_asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.has_stream = False
        self.opened = asyncio.Event()
        self.server_notifications: asyncio.Queue[UpstreamNotification | ConnectionFailure] = (
            asyncio.Queue()
        )

    def listed(self, method: str, params: Mapping[str, Any]) -> Answer:
        """Answer with the whole list at once."""
        member = {"resources/templates/list": "resourceTemplates"}.get(
            method, method.partition("/")[0]
        )
        if method not in self.lists:
            return UNKNOWN_METHOD
        return UpstreamResult({member: self.lists[method], **self.more})

    async def describe(self) -> ServerDescription:
        """Describe the server once the script allows it."""
        self.was_asked.set()
        await self.may_answer.wait()
        return ServerDescription(
            era="modern",
            revision="2026-07-28",
            capabilities=self.capabilities,
            instructions=self.instructions,
        )

    @asynccontextmanager
    async def exchange(
        self, method: str, params: Mapping[str, Any], options: RequestOptions = NO_OPTIONS
    ) -> AsyncIterator["ScriptedExchange"]:
        """Answer as the script says."""
        self.asked.append(method)
        yield ScriptedExchange(self, lambda: self.answer(method, params))

    @asynccontextmanager
    async def notifications(self) -> AsyncIterator[AsyncIterator[UpstreamNotification]]:
        """Yield the notifications of the script."""
        if not self.has_stream:
            raise ConnectionFailure("invalid", "There is no stream.")
        self.opened.set()
        yield self._notifications()

    async def _notifications(self) -> AsyncIterator[UpstreamNotification]:
        while True:
            notification = await self.server_notifications.get()
            if isinstance(notification, ConnectionFailure):
                raise notification
            yield notification

    async def aclose(self) -> None:
        """Do nothing."""


class ScriptedExchange:
    """See `UpstreamExchange`."""

    def __init__(self, upstream: ScriptedUpstream, answer: Callable[[], Answer]) -> None:
        self._upstream, self._answer = upstream, answer

    async def messages(self) -> AsyncIterator[UpstreamMessage]:
        """Give the answer once the script allows it."""
        await self._upstream.may_answer.wait()
        answer = self._answer()
        if isinstance(answer, ConnectionFailure):
            raise answer
        yield answer

    async def respond(self, request_id: int | str, answer: Mapping[str, Any]) -> None:
        """Remember what was answered."""
        self._upstream.asked.append(f"answer {request_id}")

    async def cancel(self, reason: str) -> None:
        """Do nothing."""


class ScriptedConnections:
    """See `Connections`: upstreams by the server's name, and by caller where there is one."""

    def __init__(self, **upstreams: ScriptedUpstream) -> None:
        self.upstreams = upstreams
        self.personal: dict[tuple[str, tuple[str, ...]], ScriptedUpstream] = {}
        self.used: list[UpstreamServer] = []

    def connection_to(
        self, server: UpstreamServer, principal: tuple[str, ...] | None = None
    ) -> ScriptedUpstream:
        """Return the connection to the script."""
        self.used.append(server)
        if principal is not None:
            return self.personal[server.name, principal]
        return self.upstreams[server.name]

    async def forget(self, server_id: str) -> None:
        """Do nothing."""

    async def aclose(self) -> None:
        """Do nothing."""


class NamedCalls:
    """See `OfferCalls`: each offer answers what it would call."""

    def _invoke(self, kind: str, server: UpstreamServer, definition: Definition) -> Any:
        async def invoke(ctx: CallContext, arguments: Any) -> Outcome:
            return Outcome(structured=[kind, server.name, definition.key, arguments])

        return invoke

    tool = partialmethod(_invoke, "tool")
    resource = partialmethod(_invoke, "resource")
    template = partialmethod(_invoke, "template")
    prompt = partialmethod(_invoke, "prompt")
    completion = partialmethod(_invoke, "completion")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000.0)


@pytest.fixture
def memory_shared_store() -> MemorySharedStore:
    return MemorySharedStore()


@pytest.fixture
def secrets(records: Records, clock: ManualClock) -> SecretCache:
    return SecretCache(SecretStore(records, KeyRing.ephemeral(), clock=clock), clock=clock)


@pytest.fixture
def store(
    records: Records,
    memory_shared_store: MemorySharedStore,
    secrets: SecretCache,
    clock: ManualClock,
) -> UpstreamStore:
    counter = ChangeCounter(records, memory_shared_store, clock=clock)
    return UpstreamStore(records, SealedHeaders(secrets), counter, clock=clock)


@pytest.fixture
def in_memory(clock: ManualClock) -> UpstreamStore:
    """Return a store in memory alone, for tests of what stands before the store."""
    kept = MemoryRecords()
    sealed = SealedHeaders(SecretCache(SecretStore(kept, KeyRing.ephemeral()), clock=clock))
    return UpstreamStore(kept, sealed, ChangeCounter(kept, MemorySharedStore()), clock=clock)


async def register(store: UpstreamStore, name: str = "crm", **settings: Any) -> UpstreamServer:
    tenant = settings.pop("tenant", "acme")
    return await store.create(UpstreamServer(id="", tenant=tenant, name=name, **settings))


class RefreshReplica:
    """What one process has for refreshing."""

    def __init__(
        self, store: UpstreamStore, connections: ScriptedConnections, clock: ManualClock
    ) -> None:
        self.store, self.connections, self.clock = store, connections, clock
        self.announced: list[tuple[str, frozenset[str]]] = []
        self.updated: list[tuple[str, str]] = []
        self.heard = asyncio.Event()
        self.watch = ChangeWatch(store.counter)
        leases = Leases(store._records, clock=clock)
        self.update = CatalogueUpdate(store, connections, self._announce, clock=clock)
        self.refresher = CatalogueRefresher(
            store,
            self.update,
            self.watch,
            leases,
            UpstreamSubscription(store, connections, leases, self._tell),
            clock=clock,
        )

    async def _announce(self, tenant: str, lists: Any) -> None:
        self.announced.append((tenant, lists))
        self.heard.set()

    async def _tell(self, tenant: str, uri: str) -> None:
        self.updated.append((tenant, uri))
        self.heard.set()

    async def settle(self) -> None:
        """Look once, and let what was started come to its end."""
        await poll(self.store, self.watch)
        await self.refresher.start_due()
        async with asyncio.timeout(10):
            await self.refresher.wait_idle()

    async def hears(self, *, announced: int = 0, updated: int = 0) -> None:
        """Return once clients were told so many times."""
        async with asyncio.timeout(10):
            while len(self.announced) < announced or len(self.updated) < updated:
                self.heard.clear()
                await self.heard.wait()

    async def catalogue(self, server: UpstreamServer, who: Any = None) -> Catalogue:
        """Return what is stored."""
        found = await self.store.catalogues.get(server.tenant, server.id, who)
        assert found is not None
        return found

    async def keys(self, server: UpstreamServer, who: Any = None) -> list[str]:
        """Return the keys of what is offered."""
        return [one.key for one in (await self.catalogue(server, who)).definitions]


@pytest.fixture
def upstream() -> ScriptedUpstream:
    return ScriptedUpstream(tool("a"))


@pytest.fixture
def connections(upstream: ScriptedUpstream) -> ScriptedConnections:
    return ScriptedConnections(crm=upstream)


@pytest.fixture
def replica(
    in_memory: UpstreamStore, connections: ScriptedConnections, clock: ManualClock
) -> RefreshReplica:
    return RefreshReplica(in_memory, connections, clock)


def polling(store: UpstreamStore, watch: ChangeWatch) -> AbstractAsyncContextManager[None]:
    """Look for changes during a block."""
    poller = ChangePoller(store._records, store.counter._shared_store)
    return poller.polling({SUBJECT: watch.take_up})


async def poll(store: UpstreamStore, watch: ChangeWatch) -> None:
    """Look for changes once."""
    async with polling(store, watch):
        return


@pytest.fixture
async def running(replica: RefreshReplica) -> AsyncIterator[RefreshReplica]:
    """Yield a replica that works in the background too."""
    async with polling(replica.store, replica.watch), replica.refresher.running():
        yield replica
