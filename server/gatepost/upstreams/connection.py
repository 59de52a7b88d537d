"""
The interface of a connection to an upstream: requests, the messages for each, and its failures.

`gatepost.upstreams.transport` implements it over HTTP and stdio, for both eras of the protocol. All
other code uses this interface.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol

import msgspec

from gatepost.upstreams.upstream_server import UpstreamServer

Era = Literal["modern", "session"]


class ServerDescription(msgspec.Struct, frozen=True, kw_only=True):
    """An upstream's description of itself: the answer of `server/discover` or `initialize`."""

    era: Era
    revision: str
    """The protocol revision that is used with it."""
    capabilities: Mapping[str, Any]
    name: str = ""
    version: str = ""
    instructions: str = ""


class UpstreamResult(msgspec.Struct, frozen=True):
    """The final result of a request, an object of at most the connection's size limit."""

    value: Mapping[str, Any]


class UpstreamError(msgspec.Struct, frozen=True):
    """The final JSON-RPC error of a request."""

    code: int
    message: str
    data: Any = None


class UpstreamRequest(msgspec.Struct, frozen=True):
    """A request of a session-era upstream to its client, which is this server."""

    id: int | str
    method: str
    params: Mapping[str, Any]


class UpstreamNotification(msgspec.Struct, frozen=True):
    """A notification that belongs to the request: progress or a log message."""

    method: str
    params: Mapping[str, Any]


UpstreamMessage = UpstreamResult | UpstreamError | UpstreamRequest | UpstreamNotification

FailureReason = Literal[
    "unreachable",  # nothing was sent: no address, refused, TLS, the process does not start
    "denied",  # our own rules refuse the address, or the credential cannot be had
    "unauthorized",  # it answered 401 or 403
    "overloaded",  # 429 or 503, or too many requests of ours wait
    "timeout",  # no message in time
    "invalid",  # its answer is no MCP, too large, or of the wrong type
    "session_lost",  # its session ended, and nothing was run
    "outcome_unknown",  # the connection broke after the request was sent
]


class ConnectionFailure(Exception):
    """A request failed without an answer of the upstream."""

    def __init__(
        self, reason: FailureReason, message: str, *, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.reason: FailureReason = reason
        self.message = message
        """A sentence for the agent; it names the server and quotes nothing of it."""
        self.retry_after_s = retry_after_s


class UpstreamExchange(Protocol):
    """One request to an upstream, from its sending to its final message."""

    def messages(self) -> AsyncIterator[UpstreamMessage]:
        """
        Return the messages of this request; the last one is its result or error.

        Raises ConnectionFailure. The sum of their sizes and their number are bounded.
        """

    async def respond(self, request_id: int | str, answer: Mapping[str, Any]) -> None:
        """Answer a request of the upstream: *answer* is `{"result": …}` or `{"error": …}`."""

    async def cancel(self, reason: str) -> None:
        """Tell the upstream that no caller waits any more; never raises."""


class RequestOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a request other than its method and parameters."""

    capabilities: Mapping[str, Any] = {}
    """The client capabilities to declare: at most those of the caller's client."""
    progress_token: str | None = None
    log_level: str | None = None
    idempotency_key: str | None = None
    correlation: str | None = None
    caller: tuple[str, ...] | None = None
    """The caller's `principal_key`, so that no caller takes all requests that may run at once."""
    timeout_s: float = 60.0
    idle_s: float = 30.0
    max_bytes: int = 4_000_000
    input_responses: Mapping[str, Any] | None = None
    """The answers of the round before (modern era)."""
    request_state: str | None = None
    """The upstream's own state of the round before (modern era)."""
    header_arguments: Mapping[str, str] = {}
    """`Mcp-Param-*` headers, built from the arguments as the definition's `x-mcp-header` says."""


NO_OPTIONS = RequestOptions()


class UpstreamConnection(Protocol):
    """
    The connection to one upstream for one tenant, or for one caller if it keeps a session for each.

    The era is detected once and remembered. A session is opened at first use, and again after the
    server has lost it. A request that was sent is never sent again.
    """

    async def describe(self) -> ServerDescription:
        """Return what the server says of itself; raises ConnectionFailure."""

    def exchange(
        self, method: str, params: Mapping[str, Any], options: RequestOptions = NO_OPTIONS
    ) -> AbstractAsyncContextManager[UpstreamExchange]:
        """Send a request, and end its exchange with the block."""

    def notifications(
        self, uris: Sequence[str] = ()
    ) -> AbstractAsyncContextManager[AsyncIterator[UpstreamNotification]]:
        """
        Follow `list_changed` and `resources/updated` of the server, for as long as the block.

        *uris* are the resources whose updates are asked for.

        By `subscriptions/listen`, the session's GET stream, or standard output. Raises
        ConnectionFailure at once if the server has no such stream.
        """

    async def aclose(self) -> None:
        """Close it: end the session, or the process with its whole tree."""


class Connections(Protocol):
    """Opens connections, and keeps those that can be used again."""

    def connection_to(
        self, server: UpstreamServer, principal: tuple[str, ...] | None = None
    ) -> UpstreamConnection:
        """
        Return the connection to a server of a tenant; nothing is sent yet.

        *principal* is the caller's `principal_key` where the server keeps something for each
        caller; None is the connection of the tenant.
        """

    async def forget(self, server_id: str) -> None:
        """Close all connections to a server, because its registration changed or is gone."""

    async def aclose(self) -> None:
        """Close all connections."""
