"""Word of changes, from the tool that made one to every client of its tenant, at every replica."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from gatepost.stores.api import Following, Relay
from gatepost.tools.surroundings import Listed

TOPIC = "changes"

What = Literal["tools", "resources", "prompts", "document", "task"]


class Change(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Something looks different now: a list, the document of a URI, or the task of an id."""

    what: What
    name: str = ""


_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(Change).decode

Deliver = Callable[[Change], None]
"""Takes a change; called on the event loop, must not block and must not raise."""


class Feed:
    """
    Carries changes between the processes, each tenant's apart.

    A process follows a tenant once, however many streams want to hear of it: ten thousand streams
    are not ten thousand subscriptions at the relay, and a change is decoded once for all of them.
    """

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._crowds: dict[str, Crowd] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def of(self, tenant: str) -> "TenantChanges":
        """What tools of this tenant tell their clients with; costs nothing."""
        return TenantChanges(self._relay, tenant)

    @property
    def tenants(self) -> tuple[str, ...]:
        """The tenants of which somebody in this process wants to hear."""
        return tuple(self._crowds)

    async def follow(self, tenant: str, deliver: Deliver) -> "Interest":
        """
        Hear of the tenant's changes from now on, until `Interest.end`.

        What comes after this returns is delivered, and maybe a little of what came before. Raises
        StoreUnavailable.
        """
        crowd = self._crowds.get(tenant)
        if crowd is None:
            crowd = self._crowds[tenant] = Crowd()
        interest = Interest(self, tenant, deliver)
        crowd.members[interest] = None
        heard = False
        try:
            async with crowd.turn:
                if crowd.following is None:
                    relay = self._relay.of(tenant)
                    crowd.following = await relay.follow(TOPIC, crowd.hear)
            heard = True
        finally:
            if not heard:
                interest.end()
        return interest

    def relisted(self, lists: Iterable[Listed]) -> None:
        """Tell every tenant's clients at this process that these lists look different now."""
        for what in lists:
            for crowd in tuple(self._crowds.values()):
                crowd.tell(Change(what))

    def leave(self, tenant: str, interest: "Interest") -> None:
        """Forget one interest; with the last of a tenant goes the process's own."""
        crowd = self._crowds.get(tenant)
        if crowd is None or interest not in crowd.members:
            return
        del crowd.members[interest]
        if crowd.members:
            return
        del self._crowds[tenant]
        if crowd.following is not None:
            # Whoever hangs up must not wait for the relay to agree.
            closing = asyncio.get_running_loop().create_task(crowd.following.aclose())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def aclose(self) -> None:
        """Hear no more."""
        for crowd in tuple(self._crowds.values()):
            for interest in tuple(crowd.members):
                interest.end()
        await asyncio.gather(*self._closing)


class Crowd:
    """Everybody in this process who wants to hear of one tenant's changes."""

    __slots__ = ("following", "members", "turn")

    def __init__(self) -> None:
        self.members: dict[Interest, None] = {}
        self.following: Following | None = None
        self.turn = asyncio.Lock()

    def hear(self, message: bytes) -> None:
        """Take a message of the relay."""
        try:
            change = _decode(message)
        except msgspec.DecodeError:
            return  # from a replica of a release that knows more kinds
        self.tell(change)

    def tell(self, change: Change) -> None:
        """Pass a change on."""
        for interest in tuple(self.members):
            interest.deliver(change)


class Interest:
    """One interest in a tenant's changes."""

    __slots__ = ("_feed", "_tenant", "deliver")

    def __init__(self, feed: Feed, tenant: str, deliver: Deliver) -> None:
        self._feed = feed
        self._tenant = tenant
        self.deliver = deliver

    def end(self) -> None:
        """Hear no more, at once; a second time does nothing."""
        self._feed.leave(self._tenant, self)


# Made for every call: it looks for the tenant's relay only when there is something to tell.
class TenantChanges(msgspec.Struct, frozen=True, gc=False):
    """Tells the clients of one tenant (`Changes`). Raises StoreUnavailable."""

    relay: Relay
    tenant: str

    async def listed(self, what: Listed) -> None:
        """A list looks different now."""
        await self._tell(Change(what))

    async def updated(self, uri: str) -> None:
        """The content of a resource is different now."""
        await self._tell(Change("document", uri))

    async def moved(self, task_id: str) -> None:
        """A task is not where it was."""
        await self._tell(Change("task", task_id))

    async def _tell(self, change: Change) -> None:
        await self.relay.of(self.tenant).publish(TOPIC, _encode(change))
