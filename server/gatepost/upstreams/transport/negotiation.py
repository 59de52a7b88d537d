"""Identify an upstream over HTTP, with `server/discover` or with a handshake and its session."""

from collections.abc import Mapping
from typing import Any

import msgspec

from gatepost.mcp.revisions import MODERN
from gatepost.upstreams.connection import (
    ConnectionFailure,
    ServerDescription,
    UpstreamError,
    UpstreamResult,
)
from gatepost.upstreams.transport import era, outgoing
from gatepost.upstreams.transport.answers import first_outcome
from gatepost.upstreams.transport.failures import invalid, raise_for_refusal, reported
from gatepost.upstreams.transport.http_requester import HttpRequester

WITHIN_S = 20.0
"""How long each of these requests may take."""
MAX_SESSION_ID = 1_024


class UpstreamPeer(msgspec.Struct):
    """The known facts about the server of a connection, and its session if it has one."""

    description: ServerDescription
    session_id: str | None = None
    credential_version: str = ""
    log_level: str | None = None
    users: int = 0
    """The requests that run in this session."""
    is_lost: bool = False

    def headers(self) -> dict[str, str]:
        """Return the headers of each request to it."""
        headers = outgoing.common_headers(self.description.era, self.description.revision)
        if self.session_id is not None:
            headers["mcp-session-id"] = self.session_id
        return headers


async def discover(
    requester: HttpRequester, identity: int
) -> ServerDescription | era.NegotiationStep:
    """Ask for the newest revision; return what to do if the server does not know it."""
    params = {"_meta": outgoing.modern_meta({})}
    headers = outgoing.common_headers("modern", MODERN) | {"mcp-method": "server/discover"}
    body = outgoing.message("server/discover", params, identity)
    name = requester.server.name
    async with requester.open("POST", headers, body, timeout_s=WITHIN_S) as reply:
        raise_for_refusal(name, reply)
        try:
            with reported(name):
                outcome = await first_outcome(name, reply, identity)
        except ConnectionFailure as failed:
            if failed.reason != "invalid":
                raise
            outcome = None
    return era.of_discovery(outcome)


async def open_session(
    requester: HttpRequester, identity: int, capabilities: Mapping[str, Any]
) -> UpstreamPeer:
    """Open a session in the newest revision that both speak; raises ConnectionFailure."""
    name = requester.server.name
    version = await requester.credential_version()
    outcome, session_id = await _initialize(
        requester, identity, era.HANDSHAKE_REVISIONS[0], capabilities
    )
    if isinstance(outcome, UpstreamError):
        revision = era.second_offer(outcome, era.HANDSHAKE_REVISIONS[0])
        if revision is not None:
            outcome, session_id = await _initialize(requester, identity, revision, capabilities)
    if not isinstance(outcome, UpstreamResult):
        raise invalid(name, "answered neither `server/discover` nor `initialize` as MCP has it")
    description = era.of_handshake(outcome)
    if description is None:
        raise invalid(name, "speaks no revision of MCP that this gate speaks")
    peer = UpstreamPeer(description, session_id, version)
    notification = outgoing.message("notifications/initialized", {})
    async with requester.open("POST", peer.headers(), notification, timeout_s=WITHIN_S) as reply:
        raise_for_refusal(name, reply)
        if reply.status >= 400:
            raise invalid(name, f"refused `notifications/initialized` (HTTP {reply.status})")
    return peer


async def _initialize(
    requester: HttpRequester, identity: int, revision: str, capabilities: Mapping[str, Any]
) -> tuple[UpstreamResult | UpstreamError | None, str | None]:
    name = requester.server.name
    body = outgoing.initialize(identity, revision, capabilities)
    headers = outgoing.common_headers(None, revision)
    async with requester.open("POST", headers, body, timeout_s=WITHIN_S) as reply:
        raise_for_refusal(name, reply)
        session_id = reply.headers.get("mcp-session-id")
        if session_id is not None and not is_session_id(session_id):
            raise invalid(name, "sent a session id that is not visible ASCII")
        return await first_outcome(name, reply, identity), session_id


def is_session_id(text: str) -> bool:
    """Return whether a session id has only the characters that the protocol allows (S-14)."""
    return 0 < len(text) <= MAX_SESSION_ID and all("!" <= char <= "~" for char in text)
