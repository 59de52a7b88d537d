"""Decide which era of the protocol an upstream speaks, from its first answers; pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from gatepost.mcp.jsonrpc import INVALID_REQUEST, UNSUPPORTED_VERSION
from gatepost.mcp.request import SERVER_INFO
from gatepost.mcp.revisions import BEFORE_STREAMABLE, HANDSHAKE, MODERN
from gatepost.upstreams.connection import (
    ServerDescription,
    UpstreamError,
    UpstreamResult,
)

HANDSHAKE_REVISIONS = (*HANDSHAKE, BEFORE_STREAMABLE)
"""The revisions with a handshake that we speak, newest first."""
SDK_ERROR = -32000
"""The code that the TypeScript SDK and servers made after its examples have for most errors."""
SDK_CODES = frozenset({SDK_ERROR, INVALID_REQUEST})
UNSUPPORTED = "Bad Request: Unsupported protocol version"
SESSION_LOST = (
    # The TypeScript SDK, 1.x and 2.x: its one session is gone with an earlier process.
    "server not initialized",
    # The examples of the SDK, 1.x, and servers made after them, such as server-everything.
    "no valid session id",
    "invalid or missing session id",
    "invalid session id",
    "session not found",
)
"""How such a message begins, in lower case and without "Bad Request: "."""
MAX_NAME = 255
MAX_INSTRUCTIONS = 100_000

NegotiationStep = Literal["initialize", "incompatible"]
DiscoveryAnswer = UpstreamResult | UpstreamError | None


def of_discovery(outcome: DiscoveryAnswer) -> ServerDescription | NegotiationStep:
    """
    Return the description of a modern server, or what to do about another.

    *outcome* is the answer to `server/discover`, None if it was refused with an HTTP status 4xx or
    was no message. Only a server that lists revisions and shares none with us is incompatible.
    """
    if isinstance(outcome, UpstreamResult):
        offered = texts(outcome.value.get("supportedVersions"))
        if MODERN in offered:
            return described(outcome.value, _own_info(outcome.value), "modern", MODERN)
        return "initialize"
    if outcome is None or outcome.code != UNSUPPORTED_VERSION:
        return "initialize"
    offered = supported_in(outcome)
    return (
        "initialize" if not offered or set(offered) & set(HANDSHAKE_REVISIONS) else "incompatible"
    )


def of_handshake(outcome: UpstreamResult) -> ServerDescription | None:
    """Return the description of a server with a handshake; None if we do not speak its revision."""
    revision = outcome.value.get("protocolVersion")
    if revision not in HANDSHAKE_REVISIONS:
        return None
    info = outcome.value.get("serverInfo")
    return described(outcome.value, info if isinstance(info, dict) else {}, "session", revision)


def second_offer(refusal: UpstreamError, first: str) -> str | None:
    """Return the revision to offer after a server refused the *first* one and named others."""
    return next(
        (
            revision
            for revision in HANDSHAKE_REVISIONS
            if revision in supported_in(refusal) and revision != first
        ),
        None,
    )


def refuses_version(status: int, refusal: UpstreamError) -> bool:
    """Return whether a request was refused, unrun, because the server speaks another revision."""
    if refusal.code == UNSUPPORTED_VERSION:
        return True
    return status == 400 and says_unsupported_version(refusal)


def refuses_session(status: int, refusal: UpstreamError | None) -> bool:
    """
    Return whether a request with a session id was refused, unrun, because the session is gone.

    The specification has 404 for it.
    """
    if status == 404:
        return True
    return status == 400 and refusal is not None and says_no_session(refusal)


def says_unsupported_version(refusal: UpstreamError) -> bool:
    """
    Return whether an error is that of an SDK's server which does not speak our revision.

    The SDKs have no code of its own for it. Those for TypeScript (1.x and 2.x) answer -32000 and
    "Bad Request: Unsupported protocol version: …", the one for Python 1.x answers -32600.
    """
    return refusal.code in SDK_CODES and refusal.message.startswith(UNSUPPORTED)


def says_no_session(refusal: UpstreamError) -> bool:
    """Return whether an error is that of a server which answers 400 for an unknown session."""
    message = refusal.message.lower().removeprefix("bad request: ")
    return refusal.code in SDK_CODES and message.startswith(SESSION_LOST)


def supported_in(refusal: UpstreamError) -> Sequence[str]:
    """Return the revisions that an error names."""
    return texts(refusal.data.get("supported")) if isinstance(refusal.data, dict) else ()


def texts(value: Any) -> Sequence[str]:
    """Return the strings of a list; nothing for any other value."""
    if not isinstance(value, list):
        return ()
    return [text for text in value[:100] if isinstance(text, str)]


def described(
    value: Mapping[str, Any],
    info: Mapping[str, Any],
    era: Literal["modern", "session"],
    revision: str,
) -> ServerDescription:
    """Return a server's description; members of the wrong type count as absent."""
    capabilities = value.get("capabilities")
    return ServerDescription(
        era=era,
        revision=revision,
        capabilities=capabilities if isinstance(capabilities, dict) else {},
        name=_text(info.get("name"), MAX_NAME),
        version=_text(info.get("version"), MAX_NAME),
        instructions=_text(value.get("instructions"), MAX_INSTRUCTIONS),
    )


def _own_info(value: Mapping[str, Any]) -> Mapping[str, Any]:
    meta = value.get("_meta")
    info = meta.get(SERVER_INFO) if isinstance(meta, dict) else None
    return info if isinstance(info, dict) else {}


def _text(value: Any, max_chars: int) -> str:
    return value[:max_chars] if isinstance(value, str) else ""


class KnownEra(msgspec.Struct):
    """The remembered era of a server, for all connections to one registration."""

    era: Literal["modern", "session"] | None = None
