"""Make a pack of a FastMCP server that runs in this process."""

import asyncio
import importlib
from collections.abc import Callable, Collection, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from gatepost import CallContext, Outcome, Pack, ToolFailure

T = TypeVar("T")


def fastmcp_pack(
    name: str,
    server: Any,
    *,
    scopes: Mapping[str, Collection[str]] | Collection[str] = (),
    approval: Collection[str] = (),
) -> Pack:
    """
    Return a pack with the tools of a FastMCP server, which runs in this process.

    *scopes* are the scopes of all tools, or those of each tool by its name; *approval* names the
    tools whose calls a person approves. The tools' own hints are taken over. They are read now: a
    tool that is added later needs a reload. Tools cannot ask the client. Raises ValueError if a
    tool's name or schema cannot be used, or one that is named here does not exist, and ImportError
    without `fastmcp`.
    """
    client_of = importlib.import_module("fastmcp").Client  # it is no dependency of Gatepost
    each = scopes.values() if isinstance(scopes, Mapping) else (scopes,)
    if any(isinstance(one, str) for one in (*each, approval)):
        raise TypeError(f"{name}: scopes and approval are collections of texts, not a text")

    async def listed() -> list[Any]:
        async with client_of(server) as client:
            return list(await client.list_tools())

    pack, tools = Pack(name), _run(listed)
    named = {*approval, *(scopes if isinstance(scopes, Mapping) else ())}
    if unknown := sorted(named - {tool.name for tool in tools}):
        raise ValueError(f"{name}: the server has no tool {', '.join(unknown)}")
    for tool in tools:
        wanted = scopes.get(tool.name, ()) if isinstance(scopes, Mapping) else scopes
        hints = tool.annotations
        told = {
            "read_only": getattr(hints, "read_only_hint", None),
            "destructive": getattr(hints, "destructive_hint", None),
            "idempotent": getattr(hints, "idempotent_hint", None),
            "open_world": getattr(hints, "open_world_hint", None),
        }
        pack.add(
            tool.name,
            description=tool.description or tool.title or tool.name,
            input_schema=tool.input_schema,
            invoke=_invoking(client_of, server, tool.name),
            output_schema=tool.output_schema,
            title=tool.title,
            scopes=frozenset(wanted),
            approval=tool.name in approval,
            **{hint: value for hint, value in told.items() if value is not None},
        )
    return pack


def _invoking(client_of: Any, server: Any, tool: str) -> Callable[[CallContext, Any], Any]:
    async def invoke(ctx: CallContext, arguments: Any) -> Outcome:
        # A connection for each call, so that no session of one caller serves another.
        async with client_of(server, progress_handler=ctx.progress) as client:
            answer = await client.call_tool_mcp(tool, arguments)
        content = tuple(
            block.model_dump(mode="json", by_alias=True, exclude_none=True)
            for block in answer.content
        )
        if answer.is_error:
            told = " ".join(block["text"] for block in content if block["type"] == "text")
            raise ToolFailure("tool_error", told or "The tool failed.")
        structured = answer.structured_content
        return Outcome(content) if structured is None else Outcome(content, structured)

    return invoke


def _run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine function to its end, in a thread: a loop may run in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(work())).result()
