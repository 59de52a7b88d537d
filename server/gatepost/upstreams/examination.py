"""Examine an upstream for an operator: sign in, list its tools, and report problems."""

from collections.abc import Mapping
from typing import Any

import msgspec

from gatepost.upstreams.connection import (
    ConnectionFailure,
    FailureReason,
    RequestOptions,
    ServerDescription,
    UpstreamConnection,
    UpstreamError,
    UpstreamResult,
)
from gatepost.upstreams.upstream_server import UpstreamServer

TIMEOUT_S = 30.0
MAX_PAGES = 50
ADVICE: Mapping[FailureReason, str] = {
    "unreachable": "Check its address or command, and whether it runs.",
    "denied": "Check its URL and `network.allow_hosts`, and its credential.",
    "unauthorized": "Check its API key, headers or credential.",
    "overloaded": "Try again later.",
    "timeout": "Check whether it is overloaded, or set a longer `timeout_s`.",
    "invalid": "Check whether its URL is that of an MCP endpoint (Streamable HTTP).",
    "session_lost": "Try again; if this repeats, its sessions do not last.",
    "outcome_unknown": "Try again; if this repeats, something closes its connections.",
}


class ExaminedServer(msgspec.Struct, frozen=True):
    """The result of an examination."""

    healthy: bool
    steps: tuple[str, ...]
    sentence: str
    """The problem and what to do about it, or that there is none."""


async def examined(server: UpstreamServer, connection: UpstreamConnection) -> ExaminedServer:
    """Return what a connection to a server finds; raises nothing that the server causes."""
    steps: list[str] = []
    try:
        description = await connection.describe()
        steps.append(_introduced(description))
        if "tools" not in description.capabilities:
            return ExaminedServer(
                True, tuple(steps), f"{server.name} can be used. It declares no tools."
            )
        count = await _tools(connection)
    except ConnectionFailure as failure:
        sentence = f"{failure.message} {ADVICE[failure.reason]}"
        return ExaminedServer(False, tuple(steps), sentence)
    steps.append(f"lists {count} tool{'' if count == 1 else 's'}")
    return ExaminedServer(True, tuple(steps), f"{server.name} can be used.")


def _introduced(description: ServerDescription) -> str:
    shown_name = (
        f" as {terminal_text(description.name)} {terminal_text(description.version)}".rstrip()
    )
    declared = (
        ", ".join(sorted(terminal_text(name) for name in description.capabilities)) or "nothing"
    )
    era = "without sessions" if description.era == "modern" else "with sessions"
    return (
        f"answers{shown_name}, in revision {description.revision} ({era}); it declares {declared}"
    )


async def _tools(connection: UpstreamConnection) -> int:
    count, params = 0, dict[str, Any]()
    for _ in range(MAX_PAGES):
        page = await _listed(connection, params)
        tools, cursor = page.get("tools"), page.get("nextCursor")
        if not isinstance(tools, list):
            raise ConnectionFailure("invalid", "Its answer to `tools/list` has no list of tools.")
        count += len(tools)
        if not isinstance(cursor, str) or not cursor:
            break
        params = {"cursor": cursor}
    return count


async def _listed(connection: UpstreamConnection, params: Mapping[str, Any]) -> Mapping[str, Any]:
    options = RequestOptions(timeout_s=TIMEOUT_S, idle_s=TIMEOUT_S)
    async with connection.exchange("tools/list", params, options) as exchange:
        async for message in exchange.messages():
            if isinstance(message, UpstreamResult):
                return message.value
            if isinstance(message, UpstreamError):
                raise ConnectionFailure(
                    "invalid", f"It answered `tools/list` with the error {message.code}."
                )
    raise ConnectionFailure("invalid", "It did not answer `tools/list`.")


def terminal_text(text: str) -> str:
    """Return a server's own text without what a terminal could obey."""
    return "".join(char if char.isprintable() else "?" for char in text[:80])
