"""The method table: name → who may ask it in which era, and what answers."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

import msgspec

from gatepost.mcp.calling import call_tool
from gatepost.mcp.completion import complete
from gatepost.mcp.documents import list_documents, list_templates, read_document
from gatepost.mcp.exchange import Exchange
from gatepost.mcp.level import set_level
from gatepost.mcp.line import Line
from gatepost.mcp.params import SKILLS, TASKS, Params
from gatepost.mcp.prompts import get_prompt, list_prompts
from gatepost.mcp.server import Ask, Server
from gatepost.mcp.skills import get_skill, list_skills, read_folder
from gatepost.mcp.subscriptions import LISTEN, listen
from gatepost.mcp.tasks import cancel_task, get_task, update_task
from gatepost.mcp.watching import subscribe, unsubscribe

Handler = Callable[[Server, Ask], Awaitable[bytes]]
Opener = Callable[[Server, Exchange, bytes, Params], Awaitable[Line]]


async def discover(server: Server, ask: Ask) -> bytes:
    """`server/discover`."""
    return server.discovery


async def ping(server: Server, ask: Ask) -> bytes:
    """`ping`: an empty object, with nothing in it at all."""
    return b"{}"


async def list_tools(server: Server, ask: Ask) -> bytes:
    """`tools/list`."""
    return server.listing.page("tools", ask.caller, ask.params, ask.revision)


class Method(msgspec.Struct, frozen=True):
    """One method: where it is served, and what a client may learn from its headers."""

    name: str
    handler: Handler | None
    """None for a method whose answer is a stream that stays open."""
    modern: bool = True
    legacy: bool = True
    needs: str = ""
    """The server capability without which nobody has heard of the method (V-08)."""
    mirrors: Literal["name", "uri", "task_id"] | None = None
    """The member of its parameters, as Params calls it, that `Mcp-Name` repeats."""
    asks: bool = False
    """Whether its answer may be questions (M-01)."""
    opener: Opener | None = None
    """What opens that stream."""


METHODS = (
    Method("server/discover", discover, legacy=False),
    Method("ping", ping, modern=False),
    Method("logging/setLevel", set_level, modern=False, needs="logging"),
    Method("tools/list", list_tools, needs="tools"),
    Method("tools/call", call_tool, needs="tools", mirrors="name", asks=True),
    Method("tasks/get", get_task, legacy=False, needs=TASKS, mirrors="task_id"),
    Method("tasks/update", update_task, legacy=False, needs=TASKS, mirrors="task_id"),
    Method("tasks/cancel", cancel_task, legacy=False, needs=TASKS, mirrors="task_id"),
    Method("resources/list", list_documents, needs="resources"),
    Method("resources/templates/list", list_templates, needs="resources"),
    Method("resources/read", read_document, needs="resources", mirrors="uri", asks=True),
    Method("resources/subscribe", subscribe, modern=False, needs="resources"),
    Method("resources/unsubscribe", unsubscribe, modern=False, needs="resources"),
    Method("prompts/list", list_prompts, needs="prompts"),
    Method("prompts/get", get_prompt, needs="prompts", mirrors="name", asks=True),
    Method("completion/complete", complete, needs="completions"),
    Method("skills/list", list_skills, legacy=False, needs=SKILLS),
    Method("skills/get", get_skill, legacy=False, needs=SKILLS),
    Method("resources/directory/read", read_folder, legacy=False, needs=SKILLS),
    Method(LISTEN, None, legacy=False, opener=listen),
)
INITIALIZE = "initialize"
"""Served by the endpoint itself: its answer carries the session id."""


def served(capabilities: Mapping[str, Any], *, modern: bool) -> dict[str, Method]:
    """The methods of one era that a server with these capabilities has, by name."""
    has = {*capabilities, *capabilities.get("extensions", ())}
    return {
        method.name: method
        for method in METHODS
        if (method.modern if modern else method.legacy)
        and (not method.needs or method.needs in has)
    }
