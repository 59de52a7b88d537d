"""Fetch the lists of an upstream: only those that it declares, all at once, within bounds."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from gatepost.upstreams.assembly import FetchedLists
from gatepost.upstreams.catalogue import LeftOut, Section
from gatepost.upstreams.connection import (
    ConnectionFailure,
    RequestOptions,
    UpstreamConnection,
    UpstreamError,
    UpstreamRequest,
    UpstreamResult,
)
from gatepost.upstreams.definitions import read_list
from gatepost.upstreams.upstream_server import UpstreamServer

MAX_ITEMS = 1_000
"""Maximum number of definitions of one list."""
MAX_PAGES = 100
MAX_BYTES = 4_000_000
"""Maximum number of bytes of all definitions of a server, as JSON."""
MAX_CURSOR = 4_096
DAY_MS = 86_400_000
PAGE_S = 30.0
"""How long one page may take, in seconds."""

LISTS: Mapping[Section, tuple[str, str, str]] = {
    "tools": ("tools", "tools/list", "tools"),
    "resources": ("resources", "resources/list", "resources"),
    "templates": ("resources", "resources/templates/list", "resourceTemplates"),
    "prompts": ("prompts", "prompts/list", "prompts"),
}
"""For each section the capability that declares it, the method, and the member of the result."""

METHOD_NOT_FOUND = -32601
_NOT_HERE = {"error": {"code": METHOD_NOT_FOUND, "message": "Not supported while listing."}}

_encode = msgspec.json.encode


class ListedSection(msgspec.Struct, kw_only=True):
    """The items of one list so far."""

    items: list[Any]
    left_out: tuple[LeftOut, ...] = ()
    whole: bool = True
    ttl_ms: int = DAY_MS
    failure: str = ""


async def fetched(connection: UpstreamConnection, server: UpstreamServer) -> FetchedLists:
    """
    Return what the upstream lists.

    Raises ConnectionFailure if it does not answer, or answers none of its lists. If one list
    fails, the others count.
    """
    description = await connection.describe()
    sections = [
        section
        for section, (capability, _, _) in LISTS.items()
        if capability in description.capabilities
    ]
    listing = _Listing(connection, server)
    results = await asyncio.gather(*(listing.section(section) for section in sections))
    by_section = dict(zip(sections, results, strict=True))
    failed = frozenset(section for section, listed in by_section.items() if listed.failure)
    failure = next((result.failure for result in results if result.failure), "")
    if failed and len(failed) == len(sections):
        raise listing.first_failure or ConnectionFailure("invalid", failure)
    # Canonical JSON of megabytes takes seconds.
    definitions, left_out = await asyncio.to_thread(_read, by_section)
    return FetchedLists(
        description=description,
        definitions=definitions,
        left_out=left_out,
        whole=frozenset(section for section, listed in by_section.items() if listed.whole) - failed,
        failed=failed,
        failure=failure,
        ttl_ms=min((result.ttl_ms for result in results), default=DAY_MS),
    )


def _read(sections: Mapping[Section, ListedSection]) -> tuple[tuple[Any, ...], tuple[LeftOut, ...]]:
    definitions: list[Any] = []
    left_out: list[LeftOut] = []
    for section, listed in sections.items():
        if not listed.failure:
            read, unreadable = read_list(section, listed.items)
            definitions += read
            left_out += [*unreadable, *listed.left_out]
    return tuple(definitions), tuple(left_out)


class _Listing:
    """One fetch; its lists share the bounds."""

    def __init__(self, connection: UpstreamConnection, server: UpstreamServer) -> None:
        self._connection, self._server = connection, server
        self._bytes = 0
        self.first_failure: ConnectionFailure | None = None

    async def section(self, section: Section) -> ListedSection:
        """Return the items of one list, or why it failed."""
        listed = ListedSection(items=[])
        try:
            await self._pages(section, listed)
        except ConnectionFailure as failure:
            self.first_failure = self.first_failure or failure
            listed.failure = failure.message
        return listed

    async def _pages(self, section: Section, listed: ListedSection) -> None:
        _, method, member = LISTS[section]
        cursors: set[str] = set()
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            result = await self._page(method, cursor)
            if result is None:
                if section == "templates":
                    return  # many servers with resources have no templates, and no such method
                raise self._invalid(f"declares {section} but does not know {method}")
            items = result.get(member)
            if not isinstance(items, list):
                raise self._invalid(f"answers {method} without a list")
            listed.ttl_ms = min(listed.ttl_ms, _ttl_ms(result))
            if reason := self._take(items, listed):
                _stop(section, listed, reason)
                return
            cursor = result.get("nextCursor")
            if cursor is None or cursor == "":
                return
            if not isinstance(cursor, str) or len(cursor) > MAX_CURSOR:
                raise self._invalid(f"answers {method} with an invalid cursor")
            if cursor in cursors:
                _stop(section, listed, "the server gives the same page again")
                return
            cursors.add(cursor)
        _stop(section, listed, f"the list has more than {MAX_PAGES} pages")

    def _take(self, items: list[Any], listed: ListedSection) -> str | None:
        """Add the items that fit; return why the list ends here, or None."""
        for item in items:
            if len(listed.items) >= MAX_ITEMS:
                return f"the list has more than {MAX_ITEMS:,} definitions"
            self._bytes += len(_encode(item))
            if self._bytes > MAX_BYTES:
                return f"all definitions together have more than {MAX_BYTES:,} bytes"
            listed.items.append(item)
        return None

    async def _page(self, method: str, cursor: str | None) -> Mapping[str, Any] | None:
        """Return the result of one page; None if the server does not know the method."""
        params = {} if cursor is None else {"cursor": cursor}
        seconds = min(PAGE_S, self._server.timeout_s)
        options = RequestOptions(timeout_s=seconds, idle_s=seconds, max_bytes=MAX_BYTES)
        async with self._connection.exchange(method, params, options) as exchange:
            async for message in exchange.messages():
                if isinstance(message, UpstreamResult):
                    return message.value
                if isinstance(message, UpstreamError):
                    if message.code == METHOD_NOT_FOUND:
                        return None
                    raise self._invalid(f"answers {method} with the error {message.code}")
                if isinstance(message, UpstreamRequest):
                    is_ping = message.method == "ping"
                    await exchange.respond(message.id, {"result": {}} if is_ping else _NOT_HERE)
        raise self._invalid(f"does not answer {method}")

    def _invalid(self, problem: str) -> ConnectionFailure:
        return ConnectionFailure("invalid", f"The server {self._server.name} {problem}.")


def _stop(section: Section, listed: ListedSection, reason: str) -> None:
    listed.whole = False
    sentence = f"{reason}; only the first {len(listed.items):,} are offered"
    listed.left_out = (LeftOut(section=section, key="", reason=sentence),)


def _ttl_ms(result: Mapping[str, Any]) -> int:
    ttl = result.get("ttlMs")
    is_number = isinstance(ttl, int) and not isinstance(ttl, bool)
    return max(0, min(ttl, DAY_MS)) if is_number and ttl is not None else DAY_MS
