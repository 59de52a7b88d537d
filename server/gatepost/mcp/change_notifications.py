"""Deliver change notifications from a tool to all clients of its tenant, on every replica."""

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Literal

import msgspec

from gatepost.storage.shared_store import SharedStore, Subscription
from gatepost.tools.context.interfaces import ListName

TOPIC = "changes"

ChangedKind = Literal["tools", "resources", "prompts", "document", "task"]


class ChangeNotification(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A change of a list, of the document with a URI, or of the task with an id."""

    kind: ChangedKind
    name: str = ""


_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(ChangeNotification).decode

DeliverChange = Callable[[ChangeNotification], None]
"""Accepts a change. It is called on the event loop and must neither block nor raise."""


class ChangePubSub:
    """
    Distributes changes between the processes, separately for each tenant.

    A process subscribes to a tenant once for all of its streams. Ten thousand streams need one
    subscription at the shared store, and each change is decoded once.
    """

    def __init__(self, shared_store: SharedStore) -> None:
        self._shared_store = shared_store
        self._subscribers: dict[str, ChangeSubscribers] = {}

    def notifier_for(self, tenant: str) -> "TenantChangeNotifier":
        """Return the publisher of this tenant's changes; this is cheap."""
        return TenantChangeNotifier(self._shared_store, tenant)

    @property
    def tenants(self) -> tuple[str, ...]:
        """Return the tenants that this process subscribes to."""
        return tuple(self._subscribers)

    async def follow(
        self,
        tenant: str,
        deliver: DeliverChange,
        *,
        changes: Iterable[ChangeNotification] | None = None,
    ) -> "ChangeSubscription":
        """
        Deliver the tenant's changes until `ChangeSubscription.end` is called.

        If *changes* are given, no others are delivered. Every change after this returns is
        delivered; a few earlier ones may be as well. Raises StoreUnavailable.
        """
        subscribers = self._subscribers.get(tenant)
        if subscribers is None:
            subscribers = self._subscribers[tenant] = ChangeSubscribers()
        interest = ChangeSubscription(self, tenant, deliver, changes)
        subscribers.add(interest)
        is_followed = False
        try:
            async with subscribers.lock:
                if subscribers.following is None:
                    shared_store = self._shared_store.for_tenant(tenant)
                    subscribers.following = await shared_store.follow(TOPIC, subscribers.receive)
            is_followed = True
        finally:
            if not is_followed:
                interest.end()
        return interest

    def relisted(self, lists: Iterable[ListName]) -> None:
        """Tell the clients of all tenants at this process that these lists changed."""
        for kind in lists:
            for subscribers in tuple(self._subscribers.values()):
                subscribers.deliver(ChangeNotification(kind))

    def leave(self, tenant: str, interest: "ChangeSubscription") -> None:
        """Remove one subscription; after a tenant's last one, unsubscribe the process."""
        subscribers = self._subscribers.get(tenant)
        if subscribers is None or interest not in subscribers.members:
            return
        subscribers.remove(interest)
        if subscribers.members:
            return
        del self._subscribers[tenant]
        if subscribers.following is not None:
            subscribers.following.end()

    def close(self) -> None:
        """End all subscriptions."""
        for subscribers in tuple(self._subscribers.values()):
            for interest in tuple(subscribers.members):
                interest.end()


class ChangeSubscribers:
    """
    The subscriptions of this process to one tenant's changes.

    They are found by the change, because a tenant may have a thousand running tasks, each of which
    follows its own changes.
    """

    __slots__ = ("_by_change", "following", "lock", "members")

    def __init__(self) -> None:
        self.members: dict[ChangeSubscription, None] = {}
        self._by_change: dict[ChangeNotification | None, dict[ChangeSubscription, None]] = {}
        """Those of each change; under None, those of all changes."""
        self.following: Subscription | None = None
        self.lock = asyncio.Lock()

    def add(self, interest: "ChangeSubscription") -> None:
        """Add a subscription."""
        self.members[interest] = None
        for change in interest.changes:
            self._by_change.setdefault(change, {})[interest] = None

    def remove(self, interest: "ChangeSubscription") -> None:
        """Remove a subscription."""
        del self.members[interest]
        for change in interest.changes:
            subscriptions = self._by_change[change]
            del subscriptions[interest]
            if not subscriptions:
                del self._by_change[change]

    def receive(self, message: bytes) -> None:
        """Decode a message of the shared store and deliver it."""
        try:
            change = _decode(message)
        except msgspec.DecodeError:
            return  # sent by a replica of a newer release, with a kind unknown here
        self.deliver(change)

    def deliver(self, change: ChangeNotification) -> None:
        """Deliver a change to the subscriptions that follow it."""
        for interest in (*self._by_change.get(change, ()), *self._by_change.get(None, ())):
            interest.deliver(change)


class ChangeSubscription:
    """One subscription to a tenant's changes: to some of them, or to all (None)."""

    __slots__ = ("_pubsub", "_tenant", "changes", "deliver")

    def __init__(
        self,
        pubsub: ChangePubSub,
        tenant: str,
        deliver: DeliverChange,
        changes: Iterable[ChangeNotification] | None,
    ) -> None:
        self._pubsub = pubsub
        self._tenant = tenant
        self.deliver = deliver
        self.changes: Collection[ChangeNotification | None] = (
            (None,) if changes is None else frozenset(changes)
        )

    def end(self) -> None:
        """Stop the delivery at once; a second call does nothing."""
        self._pubsub.leave(self._tenant, self)


# Created for every call, so it looks up the tenant's shared store only when a change is published.
class TenantChangeNotifier(msgspec.Struct, frozen=True):
    """A `ChangeNotifier` for the clients of one tenant. Raises StoreUnavailable."""

    shared_store: SharedStore
    tenant: str

    async def listed(self, list_name: ListName) -> None:
        """Publish that a list changed."""
        await self._publish(ChangeNotification(list_name))

    async def updated(self, uri: str) -> None:
        """Publish that the content of a resource changed."""
        await self._publish(ChangeNotification("document", uri))

    async def moved(self, task_id: str) -> None:
        """Publish that the state of a task changed."""
        await self._publish(ChangeNotification("task", task_id))

    async def _publish(self, change: ChangeNotification) -> None:
        await self.shared_store.for_tenant(self.tenant).publish(TOPIC, _encode(change))
