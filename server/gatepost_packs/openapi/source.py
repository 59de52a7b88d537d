"""Fetches or takes descriptions, and parses them in a thread."""

import asyncio
from typing import NamedTuple
from weakref import WeakKeyDictionary

from gatepost import CallContext, ToolFailure
from gatepost_packs.openapi.description.document import ApiDescription
from gatepost_packs.openapi.description.reading import DescriptionUnreadable, canonical
from gatepost_packs.openapi.description.reference import refuse_outside

FETCH_S = 60.0
REDIRECTS = 5
ACCEPT = "application/json, application/yaml;q=0.9, text/yaml;q=0.8, */*;q=0.5"
PARSERS = 2
"""Descriptions that a process parses at once: each may need a hundred megabytes meanwhile."""

_parsers: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


class FetchedDescription(NamedTuple):
    """The body at a URL, and the URL after redirects."""

    data: bytes
    url: str


async def fetched(ctx: CallContext, url: str, *, most: int) -> FetchedDescription:
    """Return the bytes of a description; ToolFailure if there are none, or too many."""
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
    return FetchedDescription(reply.body, reply.url)


async def read(data: bytes, *, field: str) -> ApiDescription:
    """Return the description in these bytes; ToolFailure says what is wrong with it."""
    loop = asyncio.get_running_loop()
    async with _parsers.setdefault(loop, asyncio.Semaphore(PARSERS)):
        try:
            return await asyncio.to_thread(described, data)
        except DescriptionUnreadable as error:
            raise ToolFailure("validation", str(error), field=field) from None


def described(data: bytes) -> ApiDescription:
    """Return the description, parsed in this thread; raise Unreadable."""
    document = ApiDescription(canonical(data))
    refuse_outside(document)
    return document
