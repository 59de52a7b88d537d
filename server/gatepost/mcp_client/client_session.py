"""Connect to any MCP server, in the era that it speaks."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import msgspec

from gatepost.doctor.http import HttpAnswer, ServerUnreachable, problem_of_address
from gatepost.mcp.revisions import MODERN
from gatepost.upstreams.connection import (
    NO_OPTIONS,
    RequestOptions,
    ServerDescription,
    UpstreamError,
    UpstreamResult,
)
from gatepost.upstreams.transport import era, outgoing
from gatepost.upstreams.transport.event_parser import EventParser, StreamTooLarge

MAX_BYTES = 16_000_000
"""The largest answer that is read."""
MAX_PAGES = 100
MAX_SIGN_INS = 2
"""One attempt for a token, and one for further scopes that a tool needs."""
TIMEOUT = httpx2.Timeout(30, read=300)
"""A call that waits for a person gets keep-alive comments more often than this."""

GetToken = Callable[[HttpAnswer], Awaitable[str]]
"""Gets the answer 401 or 403 with its challenge, and returns a new access token."""
OnNotification = Callable[[Mapping[str, Any]], object]
"""Gets each notification of the server."""


class RequestFailed(Exception):
    """The server answered with an error, or not as MCP requires; the message is a sentence."""


class RemoteSession:
    """Sends requests to one server; it signs in when the server asks for that."""

    def __init__(
        self,
        client: httpx2.AsyncClient,
        url: str,
        *,
        token: str,
        sign_in: GetToken,
        on_notification: OnNotification,
    ) -> None:
        self._client, self._url, self._token = client, url, token
        self._sign_in, self._on_notification = sign_in, on_notification
        self._sign_ins = 0
        self._id = 0
        self._peer: ServerDescription | None = None
        self._session_id: str | None = None

    async def request(
        self, method: str, params: Mapping[str, Any], options: RequestOptions = NO_OPTIONS
    ) -> Mapping[str, Any]:
        """Return the result of a request; raises RequestFailed and ServerUnreachable."""
        peer = self._peer = self._peer or await self._introduced()
        self._id += 1
        prepared = outgoing.PreparedRequest(
            self._id, method, params, options, peer.era, peer.revision
        )
        outcome, answer = await self._sent(prepared.body(), prepared.headers(), self._id)
        if isinstance(outcome, UpstreamResult):
            return outcome.value
        raise RequestFailed(_sentence(method, outcome, answer))

    async def listed(self, method: str, member: str) -> list[Mapping[str, Any]]:
        """Return all entries of a list, page by page."""
        items: list[Mapping[str, Any]] = []
        params: dict[str, Any] = {}
        for _ in range(MAX_PAGES):
            page = await self.request(method, params)
            entries = page.get(member)
            entries = entries if isinstance(entries, list) else ()
            items += [item for item in entries if isinstance(item, dict)]
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str):
                break
            params = {"cursor": cursor}
        return items

    async def close(self) -> None:
        """End the session, if the server has one."""
        if self._session_id is not None and self._peer is not None:
            headers = outgoing.common_headers(self._peer.era, self._peer.revision)
            try:
                await self._client.delete(self._url, headers=headers | self._session_headers())
            except httpx2.HTTPError:
                return  # the server ends it by itself

    async def _introduced(self) -> ServerDescription:
        """Find out which era the server speaks, and open a session if it needs one."""
        headers = outgoing.common_headers("modern", MODERN)
        params = {"_meta": outgoing.modern_meta({})}
        body = outgoing.message("server/discover", params, 0)
        outcome, answer = await self._sent(body, headers | {"mcp-method": "server/discover"}, 0)
        if answer.status in {401, 403} or answer.status >= 500:
            raise RequestFailed(_sentence("server/discover", outcome, answer))
        discovered = era.of_discovery(outcome)
        if isinstance(discovered, ServerDescription):
            return discovered
        body = outgoing.initialize(0, era.HANDSHAKE_REVISIONS[0], {})
        outcome, answer = await self._sent(
            body, outgoing.common_headers(None, era.HANDSHAKE_REVISIONS[0]), 0
        )
        description = era.of_handshake(outcome) if isinstance(outcome, UpstreamResult) else None
        if description is None:
            raise RequestFailed(_sentence("initialize", outcome, answer))
        self._session_id = answer.header("mcp-session-id") or None
        initialized = outgoing.message("notifications/initialized", {})
        await self._sent(
            initialized, outgoing.common_headers("session", description.revision), None
        )
        return description

    def _session_headers(self) -> dict[str, str]:
        session_header = {} if self._session_id is None else {"mcp-session-id": self._session_id}
        return session_header | ({"authorization": f"Bearer {self._token}"} if self._token else {})

    async def _sent(
        self, body: bytes, headers: Mapping[str, str], identity: int | None
    ) -> tuple[UpstreamResult | UpstreamError | None, HttpAnswer]:
        """Send a message, signing in when it is refused for its token; return its outcome."""
        while True:
            outcome, answer = await self._exchanged(body, headers, identity)
            if answer.status not in {401, 403} or not answer.header("www-authenticate"):
                return outcome, answer
            if self._sign_ins >= MAX_SIGN_INS:
                return outcome, answer
            self._sign_ins += 1
            self._token = await self._sign_in(answer)

    async def _exchanged(
        self, body: bytes, headers: Mapping[str, str], identity: int | None
    ) -> tuple[UpstreamResult | UpstreamError | None, HttpAnswer]:
        try:
            async with self._client.stream(
                "POST",
                self._url,
                content=body,
                # Unpacked, a small answer could fill the memory.
                headers={**headers, **self._session_headers(), "accept-encoding": "identity"},
                timeout=TIMEOUT,
                follow_redirects=False,
            ) as reply:
                fields = tuple((name.lower(), value) for name, value in reply.headers.multi_items())
                kind = reply.headers.get("content-type", "")
                outcome = None
                if kind.startswith("text/event-stream"):
                    outcome = await self._of_stream(reply, identity)
                elif kind.startswith("application/json"):
                    outcome = self._of_message(await _whole(reply), identity)
                return outcome, HttpAnswer(self._url, reply.status_code, fields, b"")
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            reason = str(error) or type(error).__name__
            raise ServerUnreachable(f"{self._url} cannot be reached: {reason}") from error

    async def _of_stream(
        self, reply: httpx2.Response, identity: int | None
    ) -> UpstreamResult | UpstreamError | None:
        parser = EventParser(MAX_BYTES)
        try:
            async for piece in reply.aiter_raw():
                for event in parser.receive(piece):
                    if (outcome := self._of_message(event.data, identity)) is not None:
                        return outcome
        except StreamTooLarge as error:
            raise RequestFailed(f"{self._url} {error}.") from None
        return None

    def _of_message(
        self, data: bytes, identity: int | None
    ) -> UpstreamResult | UpstreamError | None:
        """Return the outcome in a message; a notification is passed on, all else is ignored."""
        try:
            message = msgspec.json.decode(data, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        if "method" in message:
            if "id" not in message:
                self._on_notification(message)
            return None
        error, result = message.get("error"), message.get("result")
        if isinstance(error, dict):
            code, reason = error.get("code"), error.get("message")
            return UpstreamError(
                code if isinstance(code, int) else 0, str(reason), error.get("data")
            )
        if isinstance(result, dict) and message.get("id") == identity:
            return UpstreamResult(result)
        return None


@asynccontextmanager
async def connected(
    client: httpx2.AsyncClient,
    url: str,
    *,
    token: str,
    sign_in: GetToken,
    on_notification: OnNotification,
) -> AsyncIterator[RemoteSession]:
    """Talk to the server at *url* for the time of a block; raises RequestFailed."""
    if problem := problem_of_address(url):
        raise RequestFailed(f"{url} {problem}.")
    session = RemoteSession(
        client, url, token=token, sign_in=sign_in, on_notification=on_notification
    )
    try:
        yield session
    finally:
        await session.close()


async def _whole(reply: httpx2.Response) -> bytes:
    body = b""
    async for chunk in reply.aiter_raw():
        body += chunk
        if len(body) > MAX_BYTES:
            raise RequestFailed(f"The answer has more than {MAX_BYTES} bytes.")
    return body


def _sentence(method: str, outcome: object, answer: HttpAnswer) -> str:
    if isinstance(outcome, UpstreamError):
        return f"The server refused `{method}`: {outcome.message} (code {outcome.code})"
    if answer.status in {401, 403}:
        return (
            f"The server refused `{method}` with HTTP {answer.status}: the token is not accepted."
        )
    return f"The server did not answer `{method}` as MCP has it (HTTP {answer.status})."
