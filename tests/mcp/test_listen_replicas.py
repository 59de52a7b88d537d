"""Changes between processes, and between tenants: told to every process, and to no other tenant."""

import asyncio
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.mcp.change_notifications import ChangeNotification, ChangePubSub, ChangeSubscription
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.shared_store import MemorySharedStore, Subscription
from tests.support.endpoint import EndpointClient, a_caller
from tests.support.endpoint_clients import open_subscription

pytestmark = pytest.mark.anyio

TOOLS = {"toolsListChanged": True}
TENANTS = ["acme", "globex", "initech"]
LIST_KINDS = ["tools", "prompts", "resources"]


class CountedSharedStore(MemorySharedStore):
    """A shared store that counts who follows, and refuses when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.follows = 0
        self.down = False

    def for_tenant(self, tenant: str) -> Any:
        return CountedTenant(self, super().for_tenant(tenant))


class CountedTenant:
    """One tenant's part of the shared store."""

    def __init__(self, counted: CountedSharedStore, shared_store: Any) -> None:
        self._counted, self._shared_store = counted, shared_store

    async def follow(self, topic: str, deliver: Any) -> Subscription:
        await asyncio.sleep(0)
        if self._counted.down:
            raise StoreUnavailable
        self._counted.follows += 1
        following: Subscription = await self._shared_store.follow(topic, deliver)
        return following

    async def publish(self, topic: str, message: bytes) -> None:
        await self._shared_store.publish(topic, message)


@pytest.mark.requirement("SU-10", "TL-16")
async def test_su_10_a_change_reaches_the_streams_of_every_process() -> None:
    """A change announced at one process reaches the streams at both, once."""
    shared_store = MemorySharedStore()
    first, two = (
        EndpointClient(shared_store=shared_store),
        EndpointClient(shared_store=shared_store),
    )
    async with (
        open_subscription(first, TOOLS) as here,
        open_subscription(two, TOOLS) as other_stream,
    ):
        await here.acknowledged()
        await other_stream.acknowledged()
        await two.pubsub.notifier_for("acme").listed("tools")

        for stream in (here, other_stream):
            assert (await stream.next())["method"] == "notifications/tools/list_changed"
        first.streams.close()
        assert "result" in await here.next()


@pytest.mark.requirement("SU-10")
async def test_su_10_a_process_follows_a_tenant_once_for_all_its_streams() -> None:
    """
    Opened at the same moment or later, a hundred streams are one subscription at the shared store.
    """
    shared_store = CountedSharedStore()
    pubsub = ChangePubSub(shared_store)
    heard: list[ChangeNotification] = []
    first = await asyncio.gather(*(pubsub.follow("acme", heard.append) for _ in range(50)))
    later = [await pubsub.follow("acme", heard.append) for _ in range(50)]
    await pubsub.notifier_for("acme").listed("tools")

    assert (shared_store.follows, len(heard)) == (1, 100)
    for interest in (*first, *later):
        interest.end()
        interest.end()
    pubsub.close()
    assert MemorySharedStore.for_tenant(shared_store, "acme")._followers == {}
    assert pubsub.tenants == ()


async def test_a_change_is_delivered_only_where_it_is_followed() -> None:
    """A tenant may have a thousand running tasks, each of which waits for its own changes."""
    pubsub = ChangePubSub(MemorySharedStore())
    heard: list[tuple[str, ChangeNotification]] = []
    changes = [ChangeNotification("task", f"t{number}") for number in range(3)]
    followed = [
        await pubsub.follow("acme", partial(_hear, heard, change.name), changes=[change])
        for change in changes
    ]
    every = await pubsub.follow("acme", partial(_hear, heard, "every"))
    none = await pubsub.follow("acme", partial(_hear, heard, "none"), changes=[])

    await pubsub.notifier_for("acme").moved("t1")
    followed[1].end()
    await pubsub.notifier_for("acme").moved("t1")
    await pubsub.notifier_for("acme").listed("tools")

    tools = ChangeNotification("tools")
    assert heard == [
        ("t1", changes[1]),
        ("every", changes[1]),
        ("every", changes[1]),
        ("every", tools),
    ]
    for interest in (*followed, every, none):
        interest.end()
    assert pubsub.tenants == ()


def _hear(
    heard: list[tuple[str, ChangeNotification]], name: str, change: ChangeNotification
) -> None:
    heard.append((name, change))


@pytest.mark.requirement("SU-10")
async def test_su_10_a_failing_shared_store_leaves_no_subscription() -> None:
    """The next subscriber follows the tenant anew."""
    shared_store = CountedSharedStore()
    pubsub = ChangePubSub(shared_store)
    shared_store.down = True
    failed = await asyncio.gather(
        *(pubsub.follow("acme", lambda change: None) for _ in range(3)),
        return_exceptions=True,
    )
    assert [type(error) for error in failed] == [StoreUnavailable] * 3
    assert pubsub.tenants == ()

    shared_store.down = False
    follow = asyncio.ensure_future(pubsub.follow("acme", lambda change: None))
    await asyncio.sleep(0)
    follow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await follow
    assert pubsub.tenants == ()
    (await pubsub.follow("acme", lambda change: None)).end()
    pubsub.close()
    assert shared_store.follows == 1


async def test_a_message_of_a_newer_release_is_passed_over() -> None:
    """A kind of change that this release does not know is no change to it."""
    shared_store = MemorySharedStore()
    pubsub = ChangePubSub(shared_store)
    heard: list[ChangeNotification] = []
    interest = await pubsub.follow("acme", heard.append)
    for message in (b"", b"\xc1", b"\x92\xa5later\xa0"):
        await shared_store.for_tenant("acme").publish("changes", message)
    await pubsub.notifier_for("acme").moved("t1")

    assert heard == [ChangeNotification("task", "t1")]
    interest.end()
    pubsub.close()


@pytest.mark.requirement("SU-10", "SU-05", "SEC-03")
@given(
    streams=st.lists(st.tuples(st.sampled_from(TENANTS), st.sets(st.sampled_from(LIST_KINDS)))),
    sent_changes=st.lists(
        st.tuples(st.sampled_from(TENANTS), st.sampled_from(LIST_KINDS), st.sampled_from([0, 1])),
        max_size=12,
    ),
)
def test_su_10_no_tenant_is_notified_of_another(streams: Any, sent_changes: Any) -> None:
    """Each stream has only the changes of its own tenant."""

    async def run() -> None:
        shared_store = MemorySharedStore()
        pubsubs = [ChangePubSub(shared_store), ChangePubSub(shared_store)]
        heard: list[tuple[str, set[str], list[ChangeNotification]]] = []
        interests: list[ChangeSubscription] = []
        for at, (tenant, filters) in enumerate(streams):
            received: list[ChangeNotification] = []
            interests.append(await pubsubs[at % 2].follow(tenant, received.append))
            heard.append((tenant, filters, received))
        for tenant, what, at in sent_changes:
            await pubsubs[at].notifier_for(tenant).listed(what)
        for tenant, _, received in heard:
            assert received == [
                ChangeNotification(what) for whose, what, _ in sent_changes if whose == tenant
            ]
        for interest in interests:
            interest.end()
        for pubsub in pubsubs:
            pubsub.close()

    asyncio.run(run())


@pytest.mark.requirement("SU-10", "SU-04", "SEC-03")
async def test_su_10_streams_of_two_tenants_stay_apart(
    client_pair: tuple[EndpointClient, EndpointClient],
) -> None:
    """They have the same request id at the same process."""
    first, two = client_pair
    theirs = a_caller(tenant_id="globex")
    async with (
        open_subscription(first, TOOLS) as ours,
        open_subscription(first, TOOLS, caller=theirs) as other,
    ):
        await ours.acknowledged()
        await other.acknowledged()
        await two.pubsub.notifier_for("globex").listed("tools")
        assert "method" in await other.next()
        first.streams.close()

        assert "result" in await ours.next()


@pytest.fixture
def client_pair() -> tuple[EndpointClient, EndpointClient]:
    shared_store = MemorySharedStore()
    return EndpointClient(shared_store=shared_store), EndpointClient(shared_store=shared_store)
