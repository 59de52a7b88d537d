"""The tools `find_tools` and `call_tool`, which agents with the mode `search` see."""

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

import msgspec

from gatepost.execution.cpu_thread import in_cpu_thread
from gatepost.redaction.redactor import CURRENT_CALL
from gatepost.tools.authoring.results import structured
from gatepost.tools.calls.redacted_call import RedactedCall
from gatepost.tools.offers.offer import (
    Annotations,
    CallContext,
    Effects,
    Outcome,
    Tool,
    ToolFailure,
)
from gatepost.tools.offers.offer_set import OfferSet
from gatepost.tools.schemas.raw_schema import checker
from gatepost_authz.caller import TenantContext

FIND, CALL = "find_tools", "call_tool"
SEARCH_TOOLS = frozenset({FIND, CALL})
"""Exist only for agents with the mode `search`."""

MAX_FOUND, DEFAULT_FOUND = 50, 10
MAX_QUERY = 500
DESCRIPTION_CHARACTERS = 500
"""The first characters of a description, in which words are searched."""
MIN_PREFIX = 3
LONG_S = 86_400.0
"""The called tool has a time limit of its own."""

WORD = re.compile(r"[^\W_]+")

Reachable = Callable[[TenantContext], OfferSet]
"""Returns all tools that a caller reaches."""


class ToolIndex:
    """An index of the words of tools: of names most, then of titles, then of descriptions."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.tools = tools
        self._positions: dict[str, dict[int, float]] = {}
        for number, tool in enumerate(tools):
            for text, weight in _texts(tool):
                for word in WORD.findall(text.lower()):
                    positions = self._positions.setdefault(word, {})
                    positions[number] = max(weight, positions.get(number, 0))
        self._words = sorted(self._positions)

    def best(self, query: str, limit: int) -> tuple[list[Tool], int]:
        """Return the best matches, the best first, and the number of all matches."""
        query_words = dict.fromkeys(WORD.findall(query.lower()))
        if not query_words:
            return [*self.tools[:limit]], len(self.tools)
        scores: dict[int, float] = {}
        for searched in query_words:
            for number, score in self._scores(searched).items():
                scores[number] = scores.get(number, 0) + score
        ranked = sorted(scores, key=lambda number: (-scores[number], number))
        return [self.tools[number] for number in ranked[:limit]], len(ranked)

    def _scores(self, searched: str) -> Mapping[int, float]:
        scores: dict[int, float] = {}
        for word in self._beginning(searched):
            for number, weight in self._positions[word].items():
                score = weight if word == searched else weight / 2
                scores[number] = max(score, scores.get(number, 0))
        rare = math.log(1 + len(self.tools) / max(len(scores), 1))
        return {number: score * rare for number, score in scores.items()}

    def _beginning(self, searched: str) -> Iterator[str]:
        """Yield the words that are *searched*, or begin with it if it is long enough."""
        if len(searched) < MIN_PREFIX:
            return iter([searched] if searched in self._positions else [])
        after = self._words[bisect_left(self._words, searched) :]
        return takewhile(lambda word: word.startswith(searched), after)


def _texts(tool: Tool) -> Iterator[tuple[str, float]]:
    yield tool.name, 4.0
    yield tool.title or "", 3.0
    yield tool.description[:DESCRIPTION_CHARACTERS], 1.0
    properties = tool.input_schema.get("properties")
    if isinstance(properties, Mapping):
        yield " ".join(map(str, properties)), 1.0


def search_tools(reachable: Reachable) -> Mapping[str, Tool]:
    """Return both tools, by name."""
    return {CALL: _call_tool(reachable), FIND: _find_tool(reachable)}


FIND_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "query": {
            "type": "string",
            "maxLength": MAX_QUERY,
            "description": "What the tool should do, in a few words; empty lists all tools.",
        },
        "limit": {"type": "integer", "minimum": 1, "maximum": MAX_FOUND, "default": DEFAULT_FOUND},
    },
    "required": ["query"],
    "additionalProperties": False,
}
FOUND_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "tools": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "description": {"type": "string"},
                    "inputSchema": {"type": "object"},
                },
                "required": ["name", "description", "inputSchema"],
            },
        },
        "total": {"type": "integer", "description": "The number of all matching tools."},
    },
    "required": ["tools", "total"],
}


def _find_tool(reachable: Reachable) -> Tool:
    async def find(ctx: CallContext, arguments: Mapping[str, Any]) -> Outcome:
        visible = reachable(ctx.caller)
        if visible.index is None:
            # It takes milliseconds for hundreds of tools.
            visible.index = await in_cpu_thread(ctx.caller, ToolIndex, visible.tools)
        index: ToolIndex = visible.index
        matches, total = index.best(arguments["query"], arguments.get("limit", DEFAULT_FOUND))
        results = [
            {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema}
            for tool in matches
        ]
        return structured(msgspec.json.encode({"tools": results, "total": total}))

    return Tool(
        name=FIND,
        title="Find tools",
        description="Search the available tools. Returns the names, descriptions and input "
        f"schemas of the best matches. Call a tool that you found with `{CALL}`.",
        input_schema=FIND_SCHEMA,
        output_schema=FOUND_SCHEMA,
        annotations=Annotations(read_only_hint=True, open_world_hint=False),
        effects=Effects(read_only=True, idempotent=True, open_world=False),
        check=checker(FIND_SCHEMA),
        invoke=find,
    )


CALL_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": f"The tool's name, as `{FIND}` returns it."},
        "arguments": {
            "type": "object",
            "description": "The tool's arguments, as its input schema describes them.",
        },
    },
    "required": ["name"],
    "additionalProperties": False,
}


class CallToolArguments(msgspec.Struct, forbid_unknown_fields=True):
    """The arguments of `call_tool`; those of the called tool stay as they are written."""

    name: str
    arguments: dict[str, msgspec.Raw] = {}


_decode = msgspec.json.Decoder(CallToolArguments).decode


def _checked(arguments: bytes) -> CallToolArguments:
    try:
        return _decode(arguments)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # It quotes nothing, because the arguments may hold secrets of the called tool.
        message = "Give the tool's `name` as a text and its `arguments` as an object."
        raise ToolFailure("validation", message) from None


def _call_tool(reachable: Reachable) -> Tool:
    async def call(ctx: CallContext, arguments: CallToolArguments) -> Outcome:
        services, name = ctx._services, arguments.name
        return await services.call(ctx, name, arguments.arguments, is_passed_on=True)

    def reads(arguments: CallToolArguments) -> bool:
        """Return whether the called tool only reads, so that no answer is stored for retries."""
        current = CURRENT_CALL.get()
        if not isinstance(current, RedactedCall):
            return False
        tools = reachable(current.call.caller).tools
        return any(tool.effects.read_only for tool in tools if tool.name == arguments.name)

    return Tool(
        name=CALL,
        title="Call a tool",
        description=f"Call a tool that `{FIND}` found, by its name, with its own arguments.",
        input_schema=CALL_SCHEMA,
        annotations=Annotations(read_only_hint=False),
        effects=Effects(),
        read_only_form=reads,
        forwards=True,
        timeout_s=LONG_S,
        check=_checked,
        invoke=call,
    )
