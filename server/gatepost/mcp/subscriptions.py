"""Answer `subscriptions/listen` with a stream of the changes that the client asks for."""

from contextlib import ExitStack
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from gatepost.http.open_streams import ServerStopping, TooMany
from gatepost.mcp.change_notifications import ChangeNotification, ChangeSubscription
from gatepost.mcp.event_stream import EventStream, frame, reads_events
from gatepost.mcp.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, RATE_LIMITED, JsonRpcError
from gatepost.mcp.request import PREFIX, SERVER_INFO, Exchange, Params, declares_tasks
from gatepost.mcp.responses import result
from gatepost.mcp.server import McpServer
from gatepost.mcp.task_methods import UNDECLARED, may_follow, notification
from gatepost.storage.errors import StoreUnavailable
from gatepost.tools.context.interfaces import ListName
from gatepost_authz.caller import TenantContext

LISTEN = "subscriptions/listen"
SUBSCRIPTION = PREFIX + "subscriptionId"

MAX_NAMES = 100
"""How many URIs, and how many task ids, one stream may watch."""
NAME_CHARACTERS = 2048
RETRY_AFTER_S = 30

BoundedName = Annotated[str, Meta(max_length=NAME_CHARACTERS)]
BoundedNames = Annotated[list[BoundedName], Meta(max_length=MAX_NAMES)]


class Filter(msgspec.Struct, rename="camel", omit_defaults=True):
    """The changes that a client asks for, or that are granted (schema SubscriptionFilter)."""

    tools_list_changed: bool = False
    prompts_list_changed: bool = False
    resources_list_changed: bool = False
    resource_subscriptions: BoundedNames | UnsetType = UNSET
    task_ids: BoundedNames | UnsetType = UNSET


_decode = msgspec.json.Decoder(Filter).decode
_encode = msgspec.json.encode

LISTS: dict[ListName, str] = {
    "tools": "tools_list_changed",
    "prompts": "prompts_list_changed",
    "resources": "resources_list_changed",
}

NOT_ACCEPTABLE = JsonRpcError(
    INVALID_REQUEST, f"{LISTEN} is answered with text/event-stream", status=406
)
TOO_MANY = JsonRpcError(
    RATE_LIMITED,
    "Too many open streams: close one, or try again later",
    status=200,
    headers=((b"retry-after", b"%d" % RETRY_AFTER_S),),
)
SERVER_STOPPING = JsonRpcError(
    RATE_LIMITED,
    "The server is about to stop: listen again",
    status=503,
    headers=((b"retry-after", b"1"),),
)


async def listen(
    server: McpServer, exchange: Exchange, identity: bytes, params: Params
) -> "ListenStream":
    """Open a stream for the requested changes; raises JsonRpcError before it opens."""
    requested = _requested(params)
    if requested.task_ids is not UNSET and not declares_tasks(params):
        raise UNDECLARED
    if not reads_events(exchange.headers.get(b"accept", b"")):
        raise NOT_ACCEPTABLE
    caller = exchange.caller
    honoured = await _honoured(server, caller, requested)
    listener = ListenStream(server, caller, identity, honoured)
    try:
        server.streams.enter(listener)
    except TooMany:
        raise TOO_MANY from None
    except ServerStopping:
        raise SERVER_STOPPING from None
    with ExitStack() as undo:
        undo.callback(server.streams.leave, listener)
        changes = _notifications_of(honoured)
        interest = await server.pubsub.follow(caller.tenant_id, listener.receive, changes=changes)
        listener.follow(interest)
        undo.pop_all()
    return listener


def _requested(params: Params) -> Filter:
    if params.notifications is UNSET:
        raise JsonRpcError(INVALID_PARAMS, "params.notifications is required")
    try:
        return _decode(params.notifications)
    except msgspec.DecodeError as error:
        raise JsonRpcError(INVALID_PARAMS, f"Invalid params.notifications: {error}") from None


async def _honoured(server: McpServer, caller: TenantContext, requested: Filter) -> Filter:
    """
    Return the part of the filter that this server and the caller's scopes allow.

    A URI or a task that the caller cannot reach is omitted like one that does not exist.
    """
    offered = server.capabilities
    honoured = Filter()
    for list_name, member in LISTS.items():
        if getattr(requested, member) and offered.get(list_name, {}).get("listChanged"):
            setattr(honoured, member, True)
    await server.registry.prepare(caller)
    if requested.resource_subscriptions is not UNSET and offered.get("resources", {}).get(
        "subscribe"
    ):
        uris = dict.fromkeys(requested.resource_subscriptions)
        honoured.resource_subscriptions = [u for u in uris if server.may_read(caller, u)]
    if requested.task_ids is not UNSET and server.lengthy:
        honoured.task_ids = await may_follow(server.tasks.task_store, caller, requested.task_ids)
    return honoured


def _notifications_of(honoured: Filter) -> frozenset[ChangeNotification]:
    lists = [
        ChangeNotification(list_name)
        for list_name, member in LISTS.items()
        if getattr(honoured, member)
    ]
    uris = honoured.resource_subscriptions or ()
    tasks = honoured.task_ids or ()
    notifications = [
        *lists,
        *(ChangeNotification("document", u) for u in uris),
        *(ChangeNotification("task", t) for t in tasks),
    ]
    return frozenset(notifications)


class ListenStream(EventStream):
    """
    One listen stream.

    Changes are kept as a set: if something changes several times while the client does not read,
    the client is told once. The set cannot outgrow what the client asked for.
    """

    __slots__ = (
        "_honoured",
        "_identity",
        "_interest",
        "_moved",
        "_server",
        "_task_state",
        "_unsent",
    )

    def __init__(
        self, server: McpServer, caller: TenantContext, identity: bytes, honoured: Filter
    ) -> None:
        super().__init__(caller, server.streams)
        self._server = server
        self._identity = identity
        self._honoured = honoured
        self._unsent: dict[ChangeNotification, None] = {}
        self._moved: dict[str, None] | None = None
        self._task_state: bytes | None = None
        self._interest: ChangeSubscription | None = None

    def follow(self, interest: ChangeSubscription) -> None:
        """Remember the subscription, so that it ends with the stream."""
        self._interest = interest

    def receive(self, change: ChangeNotification) -> None:
        """Queue a change that the client asked for."""
        if change.kind == "task":
            self._moved = {**(self._moved or {}), change.name: None}
        else:
            self._unsent[change] = None
        self._streams.wake(self)

    @property
    def watches(self) -> bool:
        """Return whether the stream reports changes of documents or tasks."""
        return bool(self._honoured.resource_subscriptions or self._honoured.task_ids)

    def first_event(self) -> bytes:
        """Return the acknowledgement with the granted part of the filter (SU-03)."""
        granted = b'"notifications":' + _encode(self._honoured)
        return self._event("subscriptions/acknowledged", granted)

    def next_event(self) -> bytes | None:
        """Return the next notification, or None; end the stream if the token has expired."""
        if not self._unsent and self._task_state is None:
            return None
        if self._streams.is_over(self.caller):
            self.end()
            return None
        if self._task_state is not None:
            task, self._task_state = self._task_state, None
            return self._event("tasks", task)
        change = next(iter(self._unsent))
        del self._unsent[change]
        if change.kind == "document":
            return self._event("resources/updated", b'"uri":' + _encode(change.name))
        return self._event(f"{change.kind}/list_changed", b"")

    @property
    def must_look_up(self) -> bool:
        """Return whether a changed task has to be read; the client is sent its current state."""
        return self._moved is not None

    async def look_up(self) -> None:
        """Read one changed task; only one at a time, because a result may have megabytes."""
        moved = self._moved
        if moved is None:
            return
        task_id = next(iter(moved))
        del moved[task_id]
        if not moved:
            self._moved = None
        try:
            self._task_state = await notification(
                self._server.tasks.task_store, self.caller, task_id
            )
        except StoreUnavailable:
            # A silent stream would look as if nothing had changed. The client listens again when it
            # can.
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

    def last_event(self) -> bytes:
        """Return the last event, which is the result of the request (SU-07)."""
        meta = {SERVER_INFO: self._server.info, SUBSCRIPTION: Raw(self._identity)}
        body = _encode({"resultType": "complete", "_meta": meta})
        return frame(result(self._identity, body))

    def release(self) -> None:
        """End the subscription."""
        if self._interest is not None:
            self._interest.end()
