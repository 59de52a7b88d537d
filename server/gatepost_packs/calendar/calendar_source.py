"""Fetch the documents of calendars and cache them: from the web, CalDAV or the workspace."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from gatepost import REFERENCE_PREFIX, CallContext, FileHead, OutboundReply, ToolFailure
from gatepost_packs.calendar.caldav import CalDav, basic, checked
from gatepost_packs.calendar.settings import Calendar, CalendarSettings

MAX_BYTES = 32_000_000
"""Entries of all tenants in one process; the least recently used one is dropped first."""


class CacheKey(NamedTuple):
    """
    The key of a cached document. It contains the tenant, because a server may show each tenant
    another document at the same address.
    """

    tenant: str
    url: str
    user: str


class CachedDocument(NamedTuple):
    """A document, and the server's validators for this version of it."""

    validators: tuple[tuple[str, str], ...]
    body: bytes


class DocumentCache:
    """
    The cached documents. One is used only if the server confirms, now, that it is unchanged (HTTP
    304).
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._documents: OrderedDict[CacheKey, CachedDocument] = OrderedDict()

    def conditions(self, key: CacheKey) -> dict[str, str]:
        """Return the headers of a conditional request (RFC 9110 section 13.1)."""
        cached = self._documents.get(key)
        return dict(cached.validators) if cached is not None else {}

    def take(self, key: CacheKey, reply: OutboundReply) -> OutboundReply:
        """Return *reply*, or the cached document if the reply says that it is unchanged."""
        cached = self._documents.pop(key, None)
        if cached is not None:
            self._bytes -= len(cached.body)
        if reply.status == 304 and cached is not None:
            self._cache(key, cached)
            return OutboundReply(200, reply.headers, cached.body, False, reply.url)
        if reply.status == 200 and not reply.truncated:
            names = {"etag": "if-none-match", "last-modified": "if-modified-since"}
            validators = tuple(
                (condition, reply.headers[name])
                for name, condition in names.items()
                if name in reply.headers
            )
            if validators:
                self._cache(key, CachedDocument(validators, reply.body))
        return reply

    def _cache(self, key: CacheKey, document: CachedDocument) -> None:
        if len(document.body) > self._max_bytes:
            return
        self._documents[key] = document
        self._bytes += len(document.body)
        while self._bytes > self._max_bytes:
            _, oldest = self._documents.popitem(last=False)
            self._bytes -= len(oldest.body)


MAX_FILES = 500
REDIRECTS = 5
CACHE = DocumentCache()


class CalendarDocuments(msgspec.Struct, frozen=True):
    """The fetched documents of one calendar."""

    name: str
    """Its name for agents; `NAME/calendar` for one of several in a CalDAV home."""
    zone: str
    data: list[bytes]


class CalendarSource:
    """One configured calendar, fetched for one call of one tenant."""

    def __init__(
        self, ctx: CallContext, name: str, calendar: Calendar, settings: CalendarSettings
    ) -> None:
        self._ctx, self._calendar, self._settings = ctx, calendar, settings
        self.name = name
        self.zone = calendar.zone or settings.zone

    async def fetch(
        self, start: datetime, end: datetime, part: str = ""
    ) -> list[CalendarDocuments]:
        """Return its documents, or those of its *part*; ToolFailure if that fails."""
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                return await self._fetch(start, end, part)
        except TimeoutError:
            limit_s = self._settings.timeout_s
            message = f"its server did not answer within {limit_s:g} seconds"
            raise ToolFailure("timeout", message) from None

    async def _fetch(self, start: datetime, end: datetime, part: str) -> list[CalendarDocuments]:
        if self._calendar.caldav:
            return await self._from_caldav(start, end, part)
        if part:
            raise self._no_part(part, [])
        if self._calendar.url:
            return [self._documents(await self._from_web())]
        return [self._documents(await self._from_workspace())]

    def _documents(self, data: list[bytes]) -> CalendarDocuments:
        return CalendarDocuments(self.name, self.zone, data)

    async def _from_web(self) -> list[bytes]:
        url = await self._ctx.secret(self._calendar.url, field="calendar")
        user, password = await self._signs_in(url)
        key = CacheKey(self._ctx.caller.tenant_id, url, user)
        reply = await self._ctx.http.send(
            "GET",
            url,
            headers={"accept": "text/calendar, */*;q=0.1"}
            | basic(user, password)
            | CACHE.conditions(key),
            max_bytes=self._settings.max_bytes,
            timeout_s=self._settings.timeout_s,
            redirects=REDIRECTS,
            confidential=self._calendar.url.startswith(REFERENCE_PREFIX),
        )
        reply = CACHE.take(key, reply)
        return [checked(reply, expected=200).body]

    async def _from_workspace(self) -> list[bytes]:
        workspace, path = self._ctx.workspace, self._calendar.path
        item = await workspace.stat(path)
        if item.type != "folder":
            return [await workspace.read(path, limit=self._settings.max_bytes)]
        listing = await workspace.entries(path, limit=MAX_FILES)
        sizes = {
            entry.path: entry.size for entry in listing.items if entry.path.lower().endswith(".ics")
        }
        heads: Sequence[FileHead | None] = [None] * len(sizes)
        if sizes and sum(sizes.values()) <= self._settings.max_bytes:
            # One trip to the workspace for all of them takes a fraction of one for each.
            heads = await workspace.heads([*sizes], limit=max(sizes.values()))
        remaining_bytes, data = self._settings.max_bytes, []
        for name, head in zip(sizes, heads, strict=True):
            is_whole = head is not None and head.size == len(head.data) <= remaining_bytes
            data.append(
                head.data
                if head is not None and is_whole
                else await workspace.read(name, limit=max(remaining_bytes, 1))
            )
            remaining_bytes -= len(data[-1])
        return data

    async def _from_caldav(
        self, start: datetime, end: datetime, part: str
    ) -> list[CalendarDocuments]:
        url = await self._ctx.secret(self._calendar.caldav, field="calendar")
        user, password = await self._signs_in(url)
        server = CalDav(self._ctx.http, url, user=user, password=password)
        collections = await server.collections()
        matching = [collection for collection in collections if collection.answers_to(part)]
        if not matching or (part and not matching[0].name):
            raise self._no_part(
                part, [collection.name for collection in collections if collection.name]
            )
        documents, remaining_bytes = [], self._settings.max_bytes
        for collection in matching:
            data = await server.events(collection.url, start, end, max(remaining_bytes, 1))
            remaining_bytes -= sum(len(document) for document in data)
            name = f"{self.name}/{collection.name}" if collection.name else self.name
            documents.append(CalendarDocuments(name, self.zone, data))
        return documents

    async def _signs_in(self, url: str) -> tuple[str, str]:
        """Return the credentials for *url*, which always come from the operator."""
        user, password = [
            await self._ctx.secret(reference, field="calendar", to=url, fixed=True)
            for reference in (self._calendar.user, self._calendar.password)
        ]
        return user, password

    def _no_part(self, part: str, names: list[str]) -> ToolFailure:
        choices = ", ".join(f"{self.name}/{name}" for name in names) or f"{self.name} alone"
        message = f"There is no calendar {self.name}/{part}. There are: {choices}."
        return ToolFailure("not_found", message, field="calendar")
