"""Answer the lists: definitions of tools, prompts, resources and skills, in pages."""

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal
from weakref import WeakKeyDictionary

import msgspec
from msgspec import UNSET

from gatepost.execution.cpu_thread import in_cpu_thread
from gatepost.mcp.jsonrpc import INVALID_PARAMS, JsonRpcError
from gatepost.mcp.request import Params
from gatepost.mcp.responses import completed
from gatepost.mcp.revisions import MODERN
from gatepost.secrets.keyring import KeyRing
from gatepost.tools.calls.registry import Registry
from gatepost.tools.offers.app_calls import OLDER_UI_RESOURCE, UI, UI_RESOURCE
from gatepost.tools.offers.offer import Offer, Tool
from gatepost.tools.offers.offer_kinds import Prompt, ResourceOffer, Skill, Template
from gatepost.tools.offers.offer_set import OfferSet
from gatepost_authz.caller import TenantContext

ADDED_IN = {
    "title": "2025-06-18",
    "outputSchema": "2025-06-18",
    "_meta": "2025-06-18",
    "lastModified": "2025-06-18",
    "icons": "2025-11-25",
}
"""The revision that added a member of a definition; all other members are older."""


def described(offer: Offer, revision: str) -> Mapping[str, Any]:
    """Return the definition of an offer in the form of one revision."""
    if isinstance(offer, Skill):
        return offer.entry
    definition: dict[str, Any] = {"name": offer.name, "description": offer.description}
    if offer.title:
        definition["title"] = offer.title
    if isinstance(offer, Tool):
        definition |= _tool(offer, revision)
    elif isinstance(offer, ResourceOffer | Template):
        definition |= _document(offer)
    elif isinstance(offer, Prompt) and offer.arguments:
        definition["arguments"] = msgspec.to_builtins(offer.arguments)
    if offer.icons:
        definition["icons"] = msgspec.to_builtins(offer.icons)
    if offer.meta:
        definition["_meta"] = with_both_spellings(offer.meta)
    return in_revision(definition, revision)


def in_revision(definition: Mapping[str, Any], revision: str) -> Mapping[str, Any]:
    """Return a definition without the members that *revision* does not know."""
    absent = _absent_in(revision)
    if not absent:
        return definition
    members = {name: value for name, value in definition.items() if name not in absent}
    if "uri" in members or "uriTemplate" in members:
        hints = members.pop("annotations", {})
        if remaining := {name: value for name, value in hints.items() if name not in absent}:
            members["annotations"] = remaining
    if "arguments" in members:
        members["arguments"] = [
            in_revision(argument, revision) for argument in members["arguments"]
        ]
    return members


@lru_cache(maxsize=16)
def _absent_in(revision: str) -> frozenset[str]:
    """Return the members that a revision does not know."""
    # Revisions are dates, so comparing their names compares their age.
    return frozenset(member for member, since in ADDED_IN.items() if revision < since)


def with_both_spellings(meta: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `_meta` with its user interface in both spellings, if it has either of them."""
    nested = meta.get(UI)
    uri = nested.get(UI_RESOURCE) if isinstance(nested, Mapping) else None
    flat = meta.get(OLDER_UI_RESOURCE)
    if isinstance(uri, str) and flat is None:
        return {**meta, OLDER_UI_RESOURCE: uri}
    if isinstance(flat, str) and uri is None and (nested is None or isinstance(nested, Mapping)):
        return {**meta, UI: {**(nested or {}), UI_RESOURCE: flat}}
    return meta


def offers_output(schema: Mapping[str, Any], revision: str) -> bool:
    """Return whether a revision allows this output schema: before 2026 only objects."""
    return revision == MODERN or schema.get("type") == "object"


def _tool(tool: Tool, revision: str) -> dict[str, Any]:
    members: dict[str, Any] = {"inputSchema": tool.input_schema}
    if tool.output_schema is not None and offers_output(tool.output_schema, revision):
        members["outputSchema"] = tool.output_schema
    if annotations := msgspec.to_builtins(tool.annotations):
        members["annotations"] = annotations
    return members


def _document(offer: ResourceOffer | Template) -> dict[str, Any]:
    members: dict[str, Any] = {}
    if isinstance(offer, ResourceOffer):
        members["uri"] = offer.uri
        if offer.size is not None:
            members["size"] = offer.size
    else:
        members["uriTemplate"] = offer.template.text
    if offer.mime_type is not None:
        members["mimeType"] = offer.mime_type
    if relevance := msgspec.to_builtins(offer.relevance):
        members["annotations"] = relevance
    return members


TTL_MS = 300_000
"""How long a client may keep a list; lists change when the server reloads its configuration."""

PAGE_SIZE = 500
REMEMBERED_SETS = 256
"""Permission sets whose lists are kept."""
PURPOSE = "cursor"

Member = Literal["tools", "prompts", "resources", "resourceTemplates", "skills"]
"""The member of a result that holds a list."""

_encode = msgspec.json.encode


class EncodedList(msgspec.Struct, frozen=True):
    """One encoded list: the keys in order, and the definition of each."""

    keys: tuple[str, ...]
    definitions: tuple[bytes, ...]
    version: bytes
    """Digest of the list; a cursor is valid only for the list it was issued for."""
    single_page: bytes
    """The whole result, if the list fits in one page."""
    ttl_ms: int
    """How long a client may keep it."""


class OfferLists:
    """
    Lists what a permission set can reach, sorted by name or URI.

    All pages belong to one list. Once the list has changed, its cursors are refused, and the client
    begins again.

    *meta* holds the encoded members at the end of every modern result. All cache hints are
    `private`, because the lists depend on the caller's scopes (C-06).
    """

    def __init__(
        self, registry: Registry, *, keyring: KeyRing, meta: bytes, page_size: int
    ) -> None:
        self._registry = registry
        self._keyring = keyring
        self._meta = meta
        self.page_size = page_size
        # The lists of a snapshot are dropped together with it.
        self._encoded: WeakKeyDictionary[OfferSet, dict[tuple[Member, str], EncodedList]] = (
            WeakKeyDictionary()
        )

    async def prepare(self, member: Member, caller: TenantContext, revision: str) -> EncodedList:
        """Return the list; a long one is encoded in a thread at its first request."""
        visible = self._registry.visible(caller)
        if len(_offers(visible, member)) <= self.page_size:
            return self.encoded_list(member, caller, revision)
        lists = self._lists_of(visible)
        if (member, revision) not in lists:
            work = in_cpu_thread(caller, self._list, visible, member, revision, bounded=False)
            lists[member, revision] = await work
        return lists[member, revision]

    async def page(
        self, member: Member, caller: TenantContext, params: Params, revision: str
    ) -> bytes:
        """Return one page of a list; raises JsonRpcError for a cursor issued for another list."""
        encoded = await self.prepare(member, caller, revision)
        if len(encoded.keys) <= self.page_size and params.cursor in (UNSET, None):
            return encoded.single_page
        return self._paged(member, caller, params, revision, encoded)

    def merged(
        self,
        caller: TenantContext,
        params: Params,
        revision: str,
        entries: Mapping[str, Mapping[str, Any]],
        max_bytes: int,
    ) -> bytes:
        """
        Return one page of the fixed resources together with *entries*, sorted by URI.

        *entries* are at least one more than a page of those after `last_uri`, if there are so many.
        A page holds at most *max_bytes* bytes. An entry that alone is longer is left out; a fixed
        resource that is longer has a page of its own.
        """
        fixed = self.encoded_list("resources", caller, revision)
        definitions = dict(zip(fixed.keys, fixed.definitions, strict=True))
        context = _bound_to(caller, "resources", revision, fixed.version)
        after = self._last_key(params, context)
        keys = sorted(key for key in entries.keys() | definitions.keys() if key > after)
        page: list[bytes] = []
        size = end = 0
        for key in keys[: self.page_size]:
            # A fixed resource wins, as it does when the URI is read.
            definition = definitions.get(key) or _encode(in_revision(entries[key], revision))
            if len(definition) <= max_bytes or key in definitions:
                size += len(definition)
                if page and size > max_bytes:
                    break
                page.append(definition)
            end += 1
        cursor = self._cursor(context, keys, end)
        return self._result("resources", page, cursor, revision, 0)

    def last_uri(self, caller: TenantContext, params: Params, revision: str) -> str:
        """
        Return the last URI of the page before the requested one, "" if that is the first.

        Raises JsonRpcError for a cursor issued for another list.
        """
        fixed = self.encoded_list("resources", caller, revision)
        return self._last_key(params, _bound_to(caller, "resources", revision, fixed.version))

    def encoded_list(self, member: Member, caller: TenantContext, revision: str) -> EncodedList:
        """Return the list; it is encoded at a permission set's first request."""
        visible = self._registry.visible(caller)
        lists = self._lists_of(visible)
        encoded = lists.get((member, revision))
        if encoded is None:
            encoded = lists[member, revision] = self._list(visible, member, revision)
        return encoded

    def _lists_of(self, visible: OfferSet) -> dict[tuple[Member, str], EncodedList]:
        lists = self._encoded.get(visible)
        if lists is None:
            if len(self._encoded) >= REMEMBERED_SETS:
                del self._encoded[next(iter(self._encoded))]
            lists = self._encoded[visible] = {}
        return lists

    def _list(self, visible: OfferSet, member: Member, revision: str) -> EncodedList:
        offers = _offers(visible, member)
        ttl_ms = TTL_MS if visible.ttl_ms is None else min(visible.ttl_ms, TTL_MS)
        definitions = tuple(_encode(described(offer, revision)) for offer in offers)
        version = hashlib.sha256(b"\n".join(definitions)).digest()
        single_page = b""
        if len(offers) <= self.page_size:
            single_page = self._result(member, definitions, None, revision, ttl_ms)
        keys = tuple(offer.key for offer in offers)
        return EncodedList(keys, definitions, version, single_page, ttl_ms)

    def _paged(
        self,
        member: Member,
        caller: TenantContext,
        params: Params,
        revision: str,
        encoded: EncodedList,
    ) -> bytes:
        context = _bound_to(caller, member, revision, encoded.version)
        # Continue after the last entry shown, even if that entry no longer exists.
        start = bisect_right(encoded.keys, self._last_key(params, context))
        end = start + self.page_size
        cursor = self._cursor(context, encoded.keys, end)
        return self._result(
            member, encoded.definitions[start:end], cursor, revision, encoded.ttl_ms
        )

    def _last_key(self, params: Params, context: bytes) -> str:
        """Return the key of the last entry shown; raises JsonRpcError for an invalid cursor."""
        if params.cursor is UNSET or params.cursor is None:
            return ""
        after = self._keyring.open(PURPOSE, params.cursor, context=context)
        if after is None:
            raise JsonRpcError(INVALID_PARAMS, "Invalid cursor")
        return after.decode()

    def _cursor(self, context: bytes, keys: Sequence[str], end: int) -> str | None:
        """Return the cursor of the page that begins at *end*; None if there is none."""
        if end >= len(keys):
            return None
        return self._keyring.seal(PURPOSE, keys[end - 1].encode(), context=context)

    def _result(
        self,
        member: Member,
        definitions: Iterable[bytes],
        cursor: str | None,
        revision: str,
        ttl_ms: int,
    ) -> bytes:
        body = b'"%b":[%b]' % (member.encode(), b",".join(definitions))
        if cursor is not None:
            body += b',"nextCursor":' + _encode(cursor)
        return completed(body, revision, self._meta, ttl_ms=ttl_ms)


def _offers(visible: OfferSet, member: Member) -> Sequence[Offer]:
    if member == "tools":
        return visible.tools
    if member == "prompts":
        return visible.prompts
    if member == "skills":
        return visible.skills
    return visible.documents if member == "resources" else visible.templates


def _bound_to(caller: TenantContext, member: Member, revision: str, version: bytes) -> bytes:
    """Return the caller and the list that a cursor is bound to (C-10)."""
    owner = (*caller.identity_key, caller.resource)
    return _encode((*owner, member, revision, version))
