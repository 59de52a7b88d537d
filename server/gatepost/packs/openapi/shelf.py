"""The APIs that a tenant has loaded: kept for every replica, at hand in this one."""

import asyncio
import secrets
import time
import zlib
from collections import OrderedDict

import msgspec

from gatepost.openapi.document import Document
from gatepost.openapi.reading import MOST_BYTES, Unreadable
from gatepost.packs.openapi.credential import Credential, forget
from gatepost.packs.openapi.settings import OpenapiSettings
from gatepost.tools.api import CallContext, ToolFailure

RECORDS, DOCUMENTS = "apis", "api_documents"
"""Two subjects, so that a list of names does not fetch megabytes of descriptions."""
AT_HAND = 64_000_000
"""Bytes of descriptions that one process keeps open."""
SMALL = 200_000
"""Descriptions up to this size are opened at once, larger ones in a thread."""
TRIES = 5


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One loaded API, beside its description."""

    name: str
    title: str
    version: str
    endpoint_count: int
    document: str
    """The key of its description; another one each time that it is loaded."""
    spec_url: str = ""
    base_url: str = ""
    """In place of what the description says."""
    credential: Credential = Credential()


class Shelf:
    """Open descriptions of all tenants, the last used ones; nobody finds another tenant's."""

    def __init__(self, most: int = AT_HAND) -> None:
        self._most = most
        self._weight = 0
        self._open: OrderedDict[tuple[str, str], Document] = OrderedDict()

    def get(self, tenant: str, key: str) -> Document | None:
        """The description, if it is at hand."""
        document = self._open.get((tenant, key))
        if document is not None:
            self._open.move_to_end((tenant, key))
        return document

    def put(self, tenant: str, key: str, document: Document) -> None:
        """Keep it at hand, and the ones that were used before it as far as there is room."""
        if (tenant, key) in self._open:
            return
        self._open[tenant, key] = document
        self._weight += document.weight
        while self._weight > self._most and len(self._open) > 1:
            _, oldest = self._open.popitem(last=False)
            self._weight -= oldest.weight


SHELF = Shelf()


async def keep(ctx: CallContext, record: Record, data: bytes) -> Record:
    """Put an API on the shelf, in the place of the one of its name; ToolFailure when it is full."""
    records, documents = ctx.entries(RECORDS), ctx.entries(DOCUMENTS)
    record = msgspec.structs.replace(record, document=secrets.token_hex(16))
    packed = await asyncio.to_thread(zlib.compress, data)
    await documents.put(record.document, packed, now=time.time(), revision=0)
    for _ in range(TRIES):
        before = await records.get(record.name)
        most = ctx.settings(OpenapiSettings).apis_per_tenant
        if before is None and len(await records.all()) >= most:
            break
        revision = before.revision if before is not None else 0
        encoded = msgspec.msgpack.encode(record)
        if await records.put(record.name, encoded, now=time.time(), revision=revision):
            if before is not None:
                old = msgspec.msgpack.decode(before.value, type=Record)
                await documents.delete(old.document)
                await forget(ctx, old.credential)
            return record
    await documents.delete(record.document)
    await forget(ctx, record.credential)
    if before is None:
        names = ", ".join(sorted(entry.key for entry in await records.all()))
        message = f"There are {most} APIs already, which is all there may be. Replace one: {names}."
        raise ToolFailure("denied", message, field="name")
    message = f"The API {record.name!r} is being loaded by others. Try again."
    raise ToolFailure("conflict", message, field="name")


async def shelved(ctx: CallContext) -> list[Record]:
    """Every API of the tenant, by name."""
    entries = await ctx.entries(RECORDS).all()
    return [msgspec.msgpack.decode(entry.value, type=Record) for entry in entries]


async def found(ctx: CallContext, name: str) -> tuple[Record, Document]:
    """The API of that name and its description; ToolFailure names those that there are."""
    for _ in range(TRIES):
        entry = await ctx.entries(RECORDS).get(name)
        if entry is None:
            break
        record = msgspec.msgpack.decode(entry.value, type=Record)
        document = await _document(ctx, record)
        if document is not None:
            return record, document
        # Somebody loaded it anew between the two looks.
    names = ", ".join(record.name for record in await shelved(ctx))
    told = f"Loaded are: {names}." if names else "None is loaded yet."
    message = f"API {name[:100]!r} not found. {told} openapi_load loads one."
    raise ToolFailure("not_found", message, field="name")


async def _document(ctx: CallContext, record: Record) -> Document | None:
    tenant = ctx.caller.tenant_id
    document = SHELF.get(tenant, record.document)
    if document is None:
        entry = await ctx.entries(DOCUMENTS).get(record.document)
        if entry is None:
            return None
        packed = entry.value
        if len(packed) < SMALL:
            document = _unpacked(packed)
        else:
            document = await asyncio.to_thread(_unpacked, packed)
        SHELF.put(tenant, record.document, document)
    return document


def _unpacked(packed: bytes) -> Document:
    unpacking = zlib.decompressobj()
    data = unpacking.decompress(packed, MOST_BYTES * 4)
    if unpacking.unconsumed_tail:
        raise Unreadable("The kept description is larger than any that is kept.")
    return Document(data)
