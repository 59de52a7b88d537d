"""Read the APIs that a tenant loads, store them for every replica, and cache them."""

import asyncio
import secrets
import time
import zlib
from collections import OrderedDict
from typing import NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from gatepost import CallContext, ToolFailure
from gatepost_packs.openapi.credential import CallCredential, forget
from gatepost_packs.openapi.description.document import ApiDescription
from gatepost_packs.openapi.description.reading import MAX_BYTES, DescriptionUnreadable, canonical
from gatepost_packs.openapi.description.reference import refuse_outside
from gatepost_packs.openapi.settings import OpenapiSettings

RECORDS, DOCUMENTS = "apis", "api_documents"
"""Two subjects, so that listing the names does not fetch megabytes of descriptions."""
CACHED_BYTES = 64_000_000
"""Bytes of descriptions that one process caches."""
PARSED_AT_ONCE_BYTES = 200_000
"""Descriptions up to this size are parsed at once, larger ones in a thread."""
TRIES = 5


class ApiRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One loaded API without its description."""

    name: str
    title: str
    version: str
    endpoint_count: int
    document: str
    """The key of its description; a new one each time that it is loaded."""
    spec_url: str = ""
    base_url: str = ""
    """Replaces the server of the description."""
    credential: CallCredential = CallCredential()


class ApiStore:
    """
    The most recently used descriptions of all tenants, by tenant; tenants do not share entries.
    """

    def __init__(self) -> None:
        self._weight = 0
        self._open: OrderedDict[tuple[str, str], ApiDescription] = OrderedDict()

    def get(self, tenant: str, key: str) -> ApiDescription | None:
        """Return the description if it is cached."""
        document = self._open.get((tenant, key))
        if document is not None:
            self._open.move_to_end((tenant, key))
        return document

    def put(self, tenant: str, key: str, document: ApiDescription) -> None:
        """Cache it, and drop the least recently used ones beyond the limit."""
        if (tenant, key) in self._open:
            return
        self._open[tenant, key] = document
        self._weight += document.weight
        while self._weight > CACHED_BYTES and len(self._open) > 1:
            _, oldest = self._open.popitem(last=False)
            self._weight -= oldest.weight


CACHE = ApiStore()


async def store_api(ctx: CallContext, record: ApiRecord, data: bytes) -> ApiRecord:
    """Store an API, replacing the one of its name; ToolFailure at the tenant's limit."""
    records, documents = ctx.entries(RECORDS), ctx.entries(DOCUMENTS)
    record = msgspec.structs.replace(record, document=secrets.token_hex(16))
    packed = await asyncio.to_thread(zlib.compress, data)
    await documents.put(record.document, packed, now=time.time(), revision=0)
    for _ in range(TRIES):
        before = await records.get(record.name)
        limit = ctx.settings(OpenapiSettings).apis_per_tenant
        if before is None and await records.count() >= limit:
            break
        revision = before.revision if before is not None else 0
        encoded = msgspec.msgpack.encode(record)
        if await records.put(record.name, encoded, now=time.time(), revision=revision):
            if before is not None:
                old = msgspec.msgpack.decode(before.value, type=ApiRecord)
                await documents.delete(old.document)
                await forget(ctx, old.credential)
            return record
    await documents.delete(record.document)
    await forget(ctx, record.credential)
    if before is None:
        names = ", ".join(sorted(entry.key for entry in await records.all()))
        message = (
            f"There are {limit} APIs already, the most that are allowed. Replace one of: {names}."
        )
        raise ToolFailure("denied", message, field="name")
    message = f"Other calls are loading the API {record.name!r}. Try again."
    raise ToolFailure("conflict", message, field="name")


async def loaded_apis(ctx: CallContext) -> list[ApiRecord]:
    """Return every API of the tenant, by name."""
    entries = await ctx.entries(RECORDS).all()
    return [msgspec.msgpack.decode(entry.value, type=ApiRecord) for entry in entries]


async def find_api(ctx: CallContext, name: str) -> tuple[ApiRecord, ApiDescription]:
    """Return the API of that name and its description; ToolFailure names the loaded ones."""
    for _ in range(TRIES):
        entry = await ctx.entries(RECORDS).get(name)
        if entry is None:
            break
        record = msgspec.msgpack.decode(entry.value, type=ApiRecord)
        document = await _document(ctx, record)
        if document is not None:
            return record, document
        # Another call loaded it again between the two reads.
    names = ", ".join(record.name for record in await loaded_apis(ctx))
    loaded = f"Loaded are: {names}." if names else "None is loaded yet."
    message = f"API {name[:100]!r} not found. {loaded} openapi_load loads one."
    raise ToolFailure("not_found", message, field="name")


async def _document(ctx: CallContext, record: ApiRecord) -> ApiDescription | None:
    tenant = ctx.caller.tenant_id
    document = CACHE.get(tenant, record.document)
    if document is None:
        entry = await ctx.entries(DOCUMENTS).get(record.document)
        if entry is None:
            return None
        packed = entry.value
        if len(packed) < PARSED_AT_ONCE_BYTES:
            document = _unpacked(packed)
        else:
            document = await asyncio.to_thread(_unpacked, packed)
        CACHE.put(tenant, record.document, document)
    return document


def _unpacked(packed: bytes) -> ApiDescription:
    unpacking = zlib.decompressobj()
    data = unpacking.decompress(packed, MAX_BYTES * 4)
    if unpacking.unconsumed_tail:
        raise DescriptionUnreadable("The stored description exceeds the size limit.")
    return ApiDescription(data)


FETCH_S = 60.0
REDIRECTS = 5
ACCEPT = "application/json, application/yaml;q=0.9, text/yaml;q=0.8, */*;q=0.5"
PARSERS = 2
"""The number of descriptions that a process parses at once; each may need a hundred megabytes."""

_parsers: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


class FetchedDescription(NamedTuple):
    """The body at a URL, and the URL after redirects."""

    data: bytes
    url: str


async def fetched(ctx: CallContext, url: str, *, max_bytes: int) -> FetchedDescription:
    """Return the bytes of a description; ToolFailure if there are none, or too many."""
    reply = await ctx.http.send(
        "GET",
        url,
        headers={"Accept": ACCEPT},
        timeout_s=FETCH_S,
        max_bytes=max_bytes,
        redirects=REDIRECTS,
    )
    if reply.status != 200:
        message = f"Failed to fetch {url[:500]}: it answered {reply.status}."
        if reply.status == 429 or reply.status >= 500:
            raise ToolFailure("upstream_unavailable", message)
        raise ToolFailure("validation", message, field="spec_url")
    if reply.truncated:
        message = f"The description at {url[:500]} is larger than the {max_bytes} bytes allowed."
        raise ToolFailure("validation", message, field="spec_url")
    return FetchedDescription(reply.body, reply.url)


async def read(data: bytes, *, field: str) -> ApiDescription:
    """Return the description in these bytes; raises ToolFailure, which names the problem."""
    loop = asyncio.get_running_loop()
    async with _parsers.setdefault(loop, asyncio.Semaphore(PARSERS)):
        try:
            return await asyncio.to_thread(described, data)
        except DescriptionUnreadable as error:
            raise ToolFailure("validation", str(error), field=field) from None


def described(data: bytes) -> ApiDescription:
    """Return the description, parsed in this thread; raise DescriptionUnreadable."""
    document = ApiDescription(canonical(data))
    refuse_outside(document)
    return document
