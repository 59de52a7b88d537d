"""`subscriptions/listen`: a stream of the changes that its client wants to hear of."""

from contextlib import ExitStack
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from gatepost.changes import Change, Interest
from gatepost.mcp.exchange import Exchange
from gatepost.mcp.jsonrpc import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    RATE_LIMITED,
    Refused,
    result,
)
from gatepost.mcp.line import Line
from gatepost.mcp.params import PREFIX, SERVER_INFO, Params
from gatepost.mcp.server import Server
from gatepost.mcp.stream import frame, reads_events
from gatepost.mcp.tasks import UNDECLARED, declared
from gatepost.stores.api import StoreUnavailable
from gatepost.streams import Closing, TooMany
from gatepost.tools.surroundings import Listed
from gatepost_authz.caller import TenantContext

LISTEN = "subscriptions/listen"
SUBSCRIPTION = PREFIX + "subscriptionId"

MOST_NAMES = 100
"""URIs, and task ids, that one stream may watch."""
NAME_CHARACTERS = 2048
RETRY_AFTER_S = 30

Name = Annotated[str, Meta(max_length=NAME_CHARACTERS)]
Names = Annotated[list[Name], Meta(max_length=MOST_NAMES)]


class Filter(msgspec.Struct, rename="camel", omit_defaults=True):
    """What a client wants to hear of (schema SubscriptionFilter), and what of it is honoured."""

    tools_list_changed: bool = False
    prompts_list_changed: bool = False
    resources_list_changed: bool = False
    resource_subscriptions: Names | UnsetType = UNSET
    task_ids: Names | UnsetType = UNSET


_decode = msgspec.json.Decoder(Filter).decode
_encode = msgspec.json.encode

LISTS: dict[Listed, str] = {
    "tools": "tools_list_changed",
    "prompts": "prompts_list_changed",
    "resources": "resources_list_changed",
}

NO_EVENTS = Refused(INVALID_REQUEST, f"{LISTEN} is answered with text/event-stream", status=406)
TOO_MANY = Refused(
    RATE_LIMITED,
    "Too many open streams: close one, or try again later",
    status=200,
    headers=((b"retry-after", b"%d" % RETRY_AFTER_S),),
)
STOPPING = Refused(
    RATE_LIMITED,
    "The server is about to stop: listen again",
    status=503,
    headers=((b"retry-after", b"1"),),
)


async def listen(server: Server, exchange: Exchange, identity: bytes, params: Params) -> "Listener":
    """Open a stream as asked; whatever is wrong is said before it (raises Refused)."""
    asked = _asked(params)
    if asked.task_ids is not UNSET and not declared(params):
        raise UNDECLARED
    if not reads_events(exchange.headers.get(b"accept", b"")):
        raise NO_EVENTS
    caller = exchange.caller
    honoured = await _honoured(server, caller, asked)
    listener = Listener(server, caller, identity, honoured)
    try:
        server.streams.enter(listener)
    except TooMany:
        raise TOO_MANY from None
    except Closing:
        raise STOPPING from None
    with ExitStack() as undo:
        undo.callback(server.streams.leave, listener)
        listener.follow(await server.feed.follow(caller.tenant_id, listener.hear))
        undo.pop_all()
    return listener


def _asked(params: Params) -> Filter:
    if params.notifications is UNSET:
        raise Refused(INVALID_PARAMS, "params.notifications is required")
    try:
        return _decode(params.notifications)
    except msgspec.DecodeError as error:
        raise Refused(INVALID_PARAMS, f"Invalid params.notifications: {error}") from None


async def _honoured(server: Server, caller: TenantContext, asked: Filter) -> Filter:
    """
    What of the filter this server and this caller's permissions allow.

    A URI or a task out of the caller's reach is left out like one that does not exist.
    """
    offered = server.capabilities
    honoured = Filter()
    for what, member in LISTS.items():
        if getattr(asked, member) and offered.get(what, {}).get("listChanged"):
            setattr(honoured, member, True)
    if asked.resource_subscriptions is not UNSET and offered.get("resources", {}).get("subscribe"):
        uris = dict.fromkeys(asked.resource_subscriptions)
        honoured.resource_subscriptions = [u for u in uris if server.may_read(caller, u)]
    if asked.task_ids is not UNSET and server.lengthy:
        honoured.task_ids = await server.tasks.may_follow(caller, asked.task_ids)
    return honoured


def _wanted(honoured: Filter) -> frozenset[Change]:
    lists = [Change(what) for what, member in LISTS.items() if getattr(honoured, member)]
    uris = honoured.resource_subscriptions or ()
    tasks = honoured.task_ids or ()
    wanted = [*lists, *(Change("document", u) for u in uris), *(Change("task", t) for t in tasks)]
    return frozenset(wanted)


class Listener(Line):
    """
    One listen stream.

    What is new is remembered as a set: however often something changes while a client does not
    read, it is told once, and a set of what was asked for cannot grow.
    """

    __slots__ = (
        "_honoured",
        "_identity",
        "_interest",
        "_moved",
        "_new",
        "_server",
        "_shown",
        "_wanted",
    )

    def __init__(
        self, server: Server, caller: TenantContext, identity: bytes, honoured: Filter
    ) -> None:
        super().__init__(caller, server.streams)
        self._server = server
        self._identity = identity
        self._honoured = honoured
        self._wanted = _wanted(honoured)
        self._new: dict[Change, None] = {}
        self._moved: dict[str, None] | None = None
        self._shown: bytes | None = None
        self._interest: Interest | None = None

    def follow(self, interest: Interest) -> None:
        """Take what brings the changes, to end it with the stream."""
        self._interest = interest

    def hear(self, change: Change) -> None:
        """Take a change, if it is one that was asked for."""
        if change not in self._wanted:
            return
        if change.what == "task":
            self._moved = {**(self._moved or {}), change.name: None}
        else:
            self._new[change] = None
        self._streams.wake(self)

    @property
    def watches(self) -> bool:
        """See `Line`."""
        return bool(self._honoured.resource_subscriptions or self._honoured.task_ids)

    def greeting(self) -> bytes:
        """See `Line`; what of the filter is honoured (SU-03)."""
        shown = b'"notifications":' + _encode(self._honoured)
        return self._event("subscriptions/acknowledged", shown)

    def news(self) -> bytes | None:
        """See `Line`."""
        if not self._new and self._shown is None:
            return None
        if self._streams.is_over(self.caller):
            self.end()
            return None
        if self._shown is not None:
            shown, self._shown = self._shown, None
            return self._event("tasks", shown)
        change = next(iter(self._new))
        del self._new[change]
        if change.what == "document":
            return self._event("resources/updated", b'"uri":' + _encode(change.name))
        return self._event(f"{change.what}/list_changed", b"")

    @property
    def must_look_up(self) -> bool:
        """See `Line`; what is told of a task is how it stands, not how it was."""
        return self._moved is not None

    async def look_up(self) -> None:
        """See `Line`; one task at a time, since a result may weigh megabytes."""
        moved = self._moved
        if moved is None:
            return
        task_id = next(iter(moved))
        del moved[task_id]
        if not moved:
            self._moved = None
        try:
            self._shown = await self._server.tasks.shown(self.caller, task_id)
        except StoreUnavailable:
            # Saying nothing would pass for no change: the client listens anew when it can.
            self.end()

    def _event(self, name: str, members: bytes) -> bytes:
        return b"".join(
            (
                b'event: message\ndata: {"jsonrpc":"2.0","method":"notifications/',
                name.encode(),
                b'","params":{',
                members + b"," if members else b"",
                b'"_meta":{"' + SUBSCRIPTION.encode() + b'":',
                self._identity,
                b"}}}\n\n",
            )
        )

    def farewell(self) -> bytes:
        """See `Line`; the result of the request (SU-07)."""
        meta = {SERVER_INFO: self._server.info, SUBSCRIPTION: Raw(self._identity)}
        body = _encode({"resultType": "complete", "_meta": meta})
        return frame(result(self._identity, body))

    def release(self) -> None:
        """See `Line`."""
        if self._interest is not None:
            self._interest.end()
