"""The method table: for each method name, the eras that serve it and its handler."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

import msgspec

from gatepost.mcp.completion import complete
from gatepost.mcp.event_stream import EventStream
from gatepost.mcp.prompts import get_prompt, list_prompts
from gatepost.mcp.request import SKILLS, TASKS, Exchange, Params
from gatepost.mcp.resources import list_documents, list_templates, read_document
from gatepost.mcp.server import McpRequest, McpServer, MethodHandler
from gatepost.mcp.sessions.settings import set_level, subscribe, unsubscribe
from gatepost.mcp.skills import get_skill, list_skills, read_folder
from gatepost.mcp.subscriptions import LISTEN, listen
from gatepost.mcp.task_methods import cancel_task, get_task, update_task
from gatepost.mcp.tool_calls import call_tool

Opener = Callable[[McpServer, Exchange, bytes, Params], Awaitable[EventStream]]


async def discover(server: McpServer, ask: McpRequest) -> bytes:
    """Answer `server/discover`."""
    await server.registry.prepare(ask.caller)
    return server.discovery(ask.caller)


async def ping(server: McpServer, ask: McpRequest) -> bytes:
    """Answer `ping` with an empty object, without `_meta`."""
    return b"{}"


async def list_tools(server: McpServer, ask: McpRequest) -> bytes:
    """Answer `tools/list`."""
    await server.registry.prepare(ask.caller)
    return await server.listing.page("tools", ask.caller, ask.params, ask.revision)


class Method(msgspec.Struct, frozen=True):
    """One method: the eras that serve it, its handler and the header that repeats its name."""

    name: str
    handler: MethodHandler | None
    """The handler; None if the answer is a stream that stays open."""
    modern: bool = True
    legacy: bool = True
    capability: str = ""
    """The server capability without which the method does not exist (V-08)."""
    mirrors: Literal["name", "uri", "task_id"] | None = None
    """The parameter that `Mcp-Name` repeats, by its name in Params."""
    may_ask: bool = False
    """Whether it may be answered with requests for input (M-01)."""
    opener: Opener | None = None
    """Opens the stream of a method without a handler."""
    in_session: bool = False
    """Whether it needs a session."""
    runs: bool = False
    """Whether the runner counts it against the rate limits; others are counted before dispatch."""


METHODS = (
    Method("server/discover", discover, legacy=False),
    Method("ping", ping, modern=False),
    Method("logging/setLevel", set_level, modern=False, capability="logging", in_session=True),
    Method("tools/list", list_tools, capability="tools"),
    Method("tools/call", call_tool, capability="tools", mirrors="name", may_ask=True, runs=True),
    Method("tasks/get", get_task, legacy=False, capability=TASKS, mirrors="task_id"),
    Method("tasks/update", update_task, legacy=False, capability=TASKS, mirrors="task_id"),
    Method("tasks/cancel", cancel_task, legacy=False, capability=TASKS, mirrors="task_id"),
    Method("resources/list", list_documents, capability="resources", runs=True),
    Method("resources/templates/list", list_templates, capability="resources"),
    Method(
        "resources/read",
        read_document,
        capability="resources",
        mirrors="uri",
        may_ask=True,
        runs=True,
    ),
    Method("resources/subscribe", subscribe, modern=False, capability="resources", in_session=True),
    Method(
        "resources/unsubscribe", unsubscribe, modern=False, capability="resources", in_session=True
    ),
    Method("prompts/list", list_prompts, capability="prompts"),
    Method(
        "prompts/get", get_prompt, capability="prompts", mirrors="name", may_ask=True, runs=True
    ),
    Method("completion/complete", complete, capability="completions", runs=True),
    Method("skills/list", list_skills, legacy=False, capability=SKILLS),
    Method("skills/get", get_skill, legacy=False, capability=SKILLS, runs=True),
    Method("resources/directory/read", read_folder, legacy=False, capability=SKILLS, runs=True),
    Method(LISTEN, None, legacy=False, opener=listen),
)
INITIALIZE = "initialize"
"""Served by the endpoint itself, because its answer carries the session id."""


def served(capabilities: Mapping[str, Any], *, modern: bool) -> dict[str, Method]:
    """Return the methods, by name, that a server with these capabilities has in one era."""
    has = {*capabilities, *capabilities.get("extensions", ())}
    return {
        method.name: method
        for method in METHODS
        if (method.modern if modern else method.legacy)
        and (not method.capability or method.capability in has)
    }
