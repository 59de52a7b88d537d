"""The client of a call in the older revisions: messages and requests go out on its stream."""

import asyncio
import contextlib
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType

from gatepost.background import TaskSet
from gatepost.documents.json_shape import decoder_of
from gatepost.execution.failure import ToolFailure
from gatepost.http.open_streams import ServerStopping, TooMany
from gatepost.mcp.approval_url import ApprovalUrl
from gatepost.mcp.client import StreamClient
from gatepost.mcp.jsonrpc import URL_ELICITATION, JsonRpcError, notification, request
from gatepost.mcp.projection import URL_ELICITATION_REVISION, projected
from gatepost.mcp.responses import MethodResult
from gatepost.mcp.sessions.channel import ChannelSignal, MessageChannel
from gatepost.mcp.sessions.request_messages import RequestMessages
from gatepost.mcp.sessions.resumable import ResumableResponse
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.shared_store import Wakeable
from gatepost.telemetry.trace import marked
from gatepost.tools.context.client import (
    PAGES,
    AwaitedDecision,
    Capabilities,
    InputNeeded,
    InputRequest,
    LoggingLevel,
    MissingCapability,
    lacking,
    pending,
    required_by,
)
from gatepost.tools.context.elicitation import UrlElicitation
from gatepost_authz.caller import TenantContext

PURPOSE = "client-request"
# A message announces an answer. It may be lost, so answers are also polled for.
POLL_S = 2.0
ANSWER_KEPT_S = 30.0
MAX_CHARACTERS = 300
# The error code of clients whose user rejects a sampling request (MCP, sampling).
REJECTED = -1
UNSET_LEVEL: LoggingLevel = "info"
"""The log level of a session until its client sets one."""


class ClientError(msgspec.Struct):
    """The error in a client's response."""

    code: int = 0
    message: str = ""


class ClientReply(msgspec.Struct):
    """A client's response: a result or an error."""

    result: dict[str, Any] | UnsetType = UNSET
    error: ClientError | UnsetType = UNSET


_decode = decoder_of(ClientReply)


class PendingClientRequests:
    """
    The open requests of this process to clients, and their ids.

    An id is signed and names its session. Every process can therefore recognize a response to
    anything else without a lookup.
    """

    def __init__(
        self,
        keyring: KeyRing,
        *,
        max_per_caller: int = 20,
        limit_s: float = 300,
        stopping: asyncio.Event | None = None,
    ) -> None:
        self._keyring = keyring
        self.stopping = stopping or asyncio.Event()
        """Set when the server is about to stop."""
        self.limit_s = limit_s
        self._max_per_caller = max_per_caller
        self._open: Counter[tuple[str, str, str, str]] = Counter()
        self._tasks = TaskSet()

    def name(self, channel: MessageChannel) -> str:
        """Return a new id for a request to the client of this session."""
        return self._keyring.sign(PURPOSE, secrets.token_bytes(9) + channel.session.key)

    async def expect(self, channel: MessageChannel, identity: str) -> None:
        """Mark this request as open, for all processes."""
        await channel.put_value("asked", identity, b"", ttl_s=self.limit_s)

    async def take_in(self, channel: MessageChannel, identity: str, answer: bytes) -> None:
        """
        Pass a client's response to the process that waits for it; ignore anything else.

        Only one response to an open request is accepted. An id stays valid as long as its key and a
        response may have megabytes, so a client that collects ids could otherwise fill the shared
        store.
        """
        payload = self._keyring.verify(PURPOSE, identity)
        if payload is None or payload[9:] != channel.session.key:
            return
        if await channel.take_value("asked", identity) is not None:
            await channel.put_value("answer", identity, answer, ttl_s=ANSWER_KEPT_S)
            await channel.send("answer", identity)

    def expect_no_more(self, channel: MessageChannel, identities: Iterable[str]) -> None:
        """Mark these requests as closed, in the background."""
        self._tasks.start(_clear(channel, (*identities,)))

    def open(self, caller: TenantContext, requests: int) -> None:
        """Count a caller's open requests; raises ToolFailure if there are too many."""
        if self._open[caller.principal_key] + requests > self._max_per_caller:
            raise ToolFailure(
                "rate_limit", "Too many requests already wait for your answer.", retry_after=10
            )
        self._open[caller.principal_key] += requests

    def close(self, caller: TenantContext, requests: int) -> None:
        """Count these requests as closed."""
        self._open[caller.principal_key] -= requests
        if not self._open[caller.principal_key]:
            del self._open[caller.principal_key]


class PendingClientRequest(NamedTuple):
    """One request that was sent to the client."""

    key: str
    identity: str
    method: str


class SessionClient(StreamClient):
    """
    The client of one call.

    Requests for input go out on the call's own stream (SA-04), if the client declared the
    capability at the handshake. The client POSTs its responses to any process. The tool's clock is
    stopped while a request is open, because each request has its own time limit (CX-05).
    """

    def __init__(
        self,
        stream: ResumableResponse | None,
        *,
        request_messages: RequestMessages,
        client_requests: PendingClientRequests,
        caller: TenantContext,
        token: Raw | None,
        allowed_s: Callable[[TenantContext], float],
    ) -> None:
        if stream is not None:
            level: Any = request_messages.channel.record.log_level or UNSET_LEVEL
            self.send_messages_to(stream, token, level)
        self._resumable = stream
        self._request_messages = request_messages
        self._client_requests = client_requests
        self._caller = caller
        self._allowed_s = allowed_s
        self._pages: list[Mapping[str, Any]] = []

    @property
    def client_name(self) -> str:
        """Return the name that the client gave itself at the handshake."""
        return self._request_messages.channel.session.client

    @cached_property
    def capabilities(self) -> Capabilities:
        """Return the capabilities that the client declared at the handshake."""
        return self._request_messages.channel.session.declared

    async def pause(self, retry_after_s: float) -> None:
        """Close the connection; the client reconnects with the id of the last event."""
        if self._resumable is not None:
            await self._resumable.pause(retry_after_s)

    async def request(
        self, requests: Mapping[str, InputRequest], *, state: bytes = b""
    ) -> Mapping[str, Mapping[str, Any]]:
        """Ask the client; raises ToolFailure if it fails, refuses, or takes too long."""
        if missing := lacking(self.capabilities, required_by(requests)):
            raise MissingCapability(missing)
        channel, stream = self._request_messages.channel, self._resumable
        revision = channel.session.version
        params = {
            key: marked(projected(request, revision, elicitation_id=secrets.token_urlsafe(12)))
            for key, request in requests.items()
        }
        if stream is None:
            # A batch, or a client that reads no events, has no stream for requests.
            if revision == URL_ELICITATION_REVISION and all(
                elicitation.get("mode") == "url" for elicitation in params.values()
            ):
                self._pages = [*params.values()]
                raise InputNeeded(requests)
            raise MissingCapability(required_by(requests))
        pending_requests = [
            PendingClientRequest(key, self._client_requests.name(channel), requests[key].method)
            for key in params
        ]
        self._client_requests.open(self._caller, len(pending_requests))
        try:
            return await self._exchange(stream, pending_requests, params)
        finally:
            self._client_requests.close(self._caller, len(pending_requests))

    async def wait_for_decision(self, waiting: AwaitedDecision) -> None:
        """Wait for a decision on the open stream; show the page to a client that opens pages."""
        stream, allowed_s = self._resumable, self._allowed_s(self._caller)
        opens = (
            waiting.url
            and self._request_messages.channel.session.version == URL_ELICITATION_REVISION
        )
        if stream is None or not opens or lacking(self.capabilities, PAGES):
            if not await self.hold(waiting, allowed_s, self._client_requests.stopping):
                raise pending(waiting)
            return
        page = UrlElicitation(waiting.message, waiting.url).request
        elicitation = projected(
            page, URL_ELICITATION_REVISION, elicitation_id=secrets.token_urlsafe(12)
        )
        client_request = PendingClientRequest(
            "page", self._client_requests.name(self._request_messages.channel), page.method
        )
        approval_url = ApprovalUrl(waiting, page, self._show(stream, client_request, elicitation))
        is_over = was_open = False
        try:
            is_over = await self.hold(approval_url, allowed_s, self._client_requests.stopping)
        finally:
            was_open = approval_url.is_open
            await approval_url.close()
        if was_open:
            await self._take_back(stream, [client_request.identity])
        if approval_url.declined or not is_over:
            raise pending(waiting)
        params = {"elicitationId": elicitation["elicitationId"]}
        await stream.notify(notification("notifications/elicitation/complete", params))

    async def _show(
        self,
        stream: ResumableResponse,
        client_request: PendingClientRequest,
        params: Mapping[str, Any],
    ) -> Mapping[str, Any]:
        self._client_requests.open(self._caller, 1)
        try:
            answers = await self._exchange(stream, [client_request], {client_request.key: params})
        finally:
            self._client_requests.close(self._caller, 1)
        return answers[client_request.key]

    async def answered(self, work: Awaitable[MethodResult]) -> MethodResult:
        """Await *work*; pages to visit are put into an error, which can carry them (E-15)."""
        try:
            return await super().answered(work)
        except InputNeeded:
            data = {"elicitations": self._pages}
            raise JsonRpcError(
                URL_ELICITATION, "The user must visit a page first", data=data
            ) from None

    async def _exchange(
        self,
        stream: ResumableResponse,
        pending_requests: list[PendingClientRequest],
        params: Mapping[str, Mapping[str, Any]],
    ) -> dict[str, Mapping[str, Any]]:
        waiting = {pending.identity: pending for pending in pending_requests}
        answered = Wakeable()

        def on_signal(signal: ChannelSignal) -> None:
            if signal.kind == "answer" and signal.target_id in waiting:
                answered.wake()

        await self._request_messages.open(on_signal)
        answers: dict[str, Mapping[str, Any]] = {}
        try:
            for pending in pending_requests:
                await self._client_requests.expect(self._request_messages.channel, pending.identity)
                await stream.ask(request(pending.identity, pending.method, params[pending.key]))
            async with asyncio.timeout(self._client_requests.limit_s):
                while waiting:
                    await answered.wait(POLL_S)
                    await self._gather(waiting, answers)
        except TimeoutError:
            await self._take_back(stream, waiting)
            raise ToolFailure(
                "timeout", f"No answer came within {self._client_requests.limit_s:g} seconds."
            ) from None
        except ToolFailure:
            await self._take_back(stream, waiting)
            raise
        except (TooMany, ServerStopping):
            raise ToolFailure(
                "upstream_unavailable", "The client cannot be asked now.", retry_after=10
            ) from None
        finally:
            self._request_messages.unsubscribe(on_signal)
            if waiting:
                self._client_requests.expect_no_more(self._request_messages.channel, waiting)
        return answers

    async def _gather(
        self, waiting: dict[str, PendingClientRequest], answers: dict[str, Mapping[str, Any]]
    ) -> None:
        for identity in tuple(waiting):
            answer = await self._request_messages.channel.take_value("answer", identity)
            if answer is not None:
                key = waiting.pop(identity).key
                answers[key] = _read(answer)

    async def _take_back(self, stream: ResumableResponse, waiting: Iterable[str]) -> None:
        for identity in waiting:
            params = {"requestId": identity, "reason": "The answer is no longer needed"}
            await stream.notify(notification("notifications/cancelled", params))


async def _clear(channel: MessageChannel, identities: Iterable[str]) -> None:
    # Values that cannot be removed now expire later.
    with contextlib.suppress(StoreUnavailable):
        for identity in identities:
            await channel.take_value("asked", identity)
            await channel.take_value("answer", identity)


def _read(answer: bytes) -> Mapping[str, Any]:
    try:
        reply = _decode(answer)
    except msgspec.DecodeError:
        raise ToolFailure("upstream_unavailable", "The client's answer cannot be read.") from None
    if reply.result is not UNSET:
        return reply.result
    fault = ClientError() if reply.error is UNSET else reply.error
    reason = fault.message[:MAX_CHARACTERS] or "no reason given"
    if fault.code == REJECTED:
        raise ToolFailure("denied", f"The user of the client refused: {reason}")
    raise ToolFailure("upstream_unavailable", f"The client could not answer: {reason}")
