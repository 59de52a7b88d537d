"""Judge the messages that arrive for one request: pass on, answer or leave out; pure."""

from typing import Literal

import msgspec

from gatepost.mcp.jsonrpc import METHOD_NOT_FOUND
from gatepost.upstreams.connection import (
    UpstreamError,
    UpstreamMessage,
    UpstreamNotification,
    UpstreamRequest,
    UpstreamResult,
)
from gatepost.upstreams.transport.incoming import InvalidMessage, ReceivedMessage, UpstreamResponse

MAX_MESSAGES = 10_000
"""Maximum number of messages of one request."""
CHANGE_NOTIFICATIONS = frozenset(
    {
        "notifications/tools/list_changed",
        "notifications/resources/list_changed",
        "notifications/prompts/list_changed",
        "notifications/resources/updated",
    }
)
FORWARDED_NOTIFICATIONS = frozenset(
    {"notifications/message", "notifications/cancelled", "notifications/elicitation/complete"}
    | {"notifications/tasks/status"}
)
CLIENT_REQUESTS = frozenset({"elicitation/create", "sampling/createMessage", "roots/list"})
"""The requests of an upstream that may be passed to a caller."""


class Deliver(msgspec.Struct, frozen=True):
    """Pass a message on; *final* ends the request."""

    message: UpstreamMessage
    final: bool = False


class AnswerItself(msgspec.Struct, frozen=True):
    """Answer a request of the server here: a ping, or one that may not be passed to any client."""

    id: int | str
    answer: dict[str, object]


class Announce(msgspec.Struct, frozen=True):
    """A change of the server's lists or resources, for those that follow them."""

    notification: UpstreamNotification


MessageAction = Deliver | AnswerItself | Announce | Literal["alive", "ignored"]
"""`alive` shows that the server works on the request; `ignored` shows nothing."""


class MessageReader:
    """Judges the messages for the request *identity*, in the order of their arrival."""

    def __init__(self, identity: int, progress_token: str | None, *, has_requests: bool) -> None:
        self._identity, self._token, self._has_requests = identity, progress_token, has_requests
        self._count = 0

    def judge(self, received: ReceivedMessage) -> MessageAction:
        """Return what to do with a message; raises InvalidMessage after too many."""
        self._count += 1
        if self._count > MAX_MESSAGES:
            raise InvalidMessage("sent more messages than are read for one request")
        if isinstance(received, UpstreamResponse):
            if not is_same(received.id, self._identity):
                return "ignored"
            return Deliver(received.outcome, final=True)
        if isinstance(received, UpstreamRequest):
            return judged_request(received, has_requests=self._has_requests)
        return self._notified(received)

    def _notified(self, received: UpstreamNotification) -> MessageAction:
        if received.method == "notifications/progress":
            if not is_same(received.params.get("progressToken"), self._identity):
                return "ignored"
            if self._token is None:
                return "alive"
            params = {**received.params, "progressToken": self._token}
            return Deliver(UpstreamNotification(received.method, params))
        if received.method in CHANGE_NOTIFICATIONS:
            return Announce(received)
        return Deliver(received) if received.method in FORWARDED_NOTIFICATIONS else "ignored"


def judged_request(received: UpstreamRequest, *, has_requests: bool) -> Deliver | AnswerItself:
    """Return what to do with a request of the server; *has_requests* if the revision has any."""
    if received.method == "ping":
        return AnswerItself(received.id, {"result": {}})
    if has_requests and received.method in CLIENT_REQUESTS:
        return Deliver(received)
    error = {"code": METHOD_NOT_FOUND, "message": "Method not found"}
    return AnswerItself(received.id, {"error": error})


def is_same(answered_id: object, identity: int) -> bool:
    """Return whether an id is ours; some servers make a string of a number."""
    if isinstance(answered_id, bool):
        return False
    return answered_id == identity or answered_id == str(identity)


def outcome_for(
    messages: list[ReceivedMessage], identity: int
) -> UpstreamResult | UpstreamError | None:
    """Return the response to a request among the messages of a JSON body."""
    for message in messages:
        if isinstance(message, UpstreamResponse) and is_same(message.id, identity):
            return message.outcome
    return None
