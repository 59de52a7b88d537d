"""Descriptions from where they are: fetched, or given as text; parsed aside from the loop."""

import asyncio
from typing import NamedTuple
from weakref import WeakKeyDictionary

from gatepost.openapi.document import Document
from gatepost.openapi.reading import Unreadable, canonical
from gatepost.openapi.reference import refuse_outside
from gatepost.tools.api import CallContext, ToolFailure

FETCH_S = 60.0
REDIRECTS = 5
ACCEPT = "application/json, application/yaml;q=0.9, text/yaml;q=0.8, */*;q=0.5"
PARSERS = 2
"""Descriptions that a process parses at once: each may need a hundred megabytes for a while."""

_places: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


class Fetched(NamedTuple):
    """What a URL answered, and where it was in the end."""

    data: bytes
    url: str


async def fetched(ctx: CallContext, url: str, *, most: int) -> Fetched:
    """The bytes of a description; ToolFailure when there are none, or too many."""
    reply = await ctx.http.send(
        "GET",
        url,
        headers={"Accept": ACCEPT},
        timeout_s=FETCH_S,
        max_bytes=most,
        redirects=REDIRECTS,
    )
    if reply.status != 200:
        message = f"Failed to fetch {url[:500]}: it answered {reply.status}."
        if reply.status == 429 or reply.status >= 500:
            raise ToolFailure("upstream_unavailable", message)
        raise ToolFailure("validation", message, field="spec_url")
    if reply.truncated:
        message = f"The description at {url[:500]} is larger than the {most} bytes allowed."
        raise ToolFailure("validation", message, field="spec_url")
    return Fetched(reply.body, reply.url)


async def read(data: bytes, *, field: str) -> Document:
    """The description in these bytes; ToolFailure says what is wrong with it."""
    loop = asyncio.get_running_loop()
    async with _places.setdefault(loop, asyncio.Semaphore(PARSERS)):
        try:
            return await asyncio.to_thread(described, data)
        except Unreadable as error:
            raise ToolFailure("validation", str(error), field=field) from None


def described(data: bytes) -> Document:
    """The same where nobody waits; raises Unreadable."""
    document = Document(canonical(data))
    refuse_outside(document)
    return document
