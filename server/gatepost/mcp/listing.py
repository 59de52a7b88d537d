"""What a caller is shown: lists, encoded once per permission set and revision, page by page."""

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from gatepost.keyring import KeyRing
from gatepost.mcp.definition import described
from gatepost.mcp.jsonrpc import INVALID_PARAMS, Refused
from gatepost.mcp.params import Params
from gatepost.mcp.project import completed
from gatepost.tools.api import Offer
from gatepost.tools.registry import Registry, Visible
from gatepost_authz.caller import TenantContext

TTL_MS = 300_000
"""How long a client may keep a list; offers change when the server is configured anew."""

PAGE_SIZE = 500
REMEMBERED_LISTS = 256
PURPOSE = "cursor"

Member = Literal["tools", "prompts", "resources", "resourceTemplates", "skills"]
"""The member of a result that holds a list."""

_encode = msgspec.json.encode


class Listed(msgspec.Struct, frozen=True):
    """One list, encoded: each definition by its key, in the order of the keys."""

    keys: tuple[str, ...]
    definitions: tuple[bytes, ...]
    version: bytes
    """Digest of the list: a cursor of another one is not good here."""
    whole: bytes
    """The result, where one page holds it all."""


class Listing:
    """
    Lists what a permission set reaches, in the order of names and URIs.

    *tail* are the encoded members that end every modern result. All hints are `private`: what is
    listed depends on the caller's scopes (C-06).
    """

    def __init__(
        self, registry: Registry, *, keyring: KeyRing, tail: bytes, page_size: int = PAGE_SIZE
    ) -> None:
        self._registry = registry
        self._keyring = keyring
        self._tail = tail
        self._page_size = page_size
        self._encoded: dict[tuple[Visible, Member, str], Listed] = {}

    def page(self, member: Member, caller: TenantContext, params: Params, revision: str) -> bytes:
        """One page of a list; Refused for a cursor that was not given out for exactly this."""
        listed = self.listed(member, caller, revision)
        if len(listed.keys) <= self._page_size and params.cursor in (UNSET, None):
            return listed.whole
        return self._paged(member, caller, params, revision, listed)

    def merged(
        self,
        caller: TenantContext,
        params: Params,
        revision: str,
        entries: Mapping[str, Mapping[str, Any]],
    ) -> bytes:
        """One page of the resources there are anyway and those found just now, by URI."""
        fixed = self.listed("resources", caller, revision)
        found = {uri: _encode(entry) for uri, entry in entries.items()}
        # What stands fixed wins, as it does when the URI is read.
        found |= dict(zip(fixed.keys, fixed.definitions, strict=True))
        keys = tuple(sorted(found))
        listed = Listed(keys, tuple(found[key] for key in keys), fixed.version, b"")
        return self._paged("resources", caller, params, revision, listed, ttl_ms=0)

    def listed(self, member: Member, caller: TenantContext, revision: str) -> Listed:
        """The list, encoded when a permission set first asks for it."""
        key = (self._registry.visible(caller), member, revision)
        listed = self._encoded.get(key)
        if listed is None:
            listed = self._list(member, _offers(key[0], member), revision)
            if len(self._encoded) >= REMEMBERED_LISTS:
                self._encoded.pop(next(iter(self._encoded)))
            self._encoded[key] = listed
        return listed

    def _list(self, member: Member, offers: Sequence[Offer], revision: str) -> Listed:
        definitions = tuple(_encode(described(offer, revision)) for offer in offers)
        version = hashlib.sha256(b"\n".join(definitions)).digest()
        whole = b""
        if len(offers) <= self._page_size:
            whole = self._result(member, definitions, None, revision, TTL_MS)
        return Listed(tuple(offer.key for offer in offers), definitions, version, whole)

    def _paged(
        self,
        member: Member,
        caller: TenantContext,
        params: Params,
        revision: str,
        listed: Listed,
        *,
        ttl_ms: int = TTL_MS,
    ) -> bytes:
        context = _bound_to(caller, member, revision, listed.version)
        start = 0
        if params.cursor is not UNSET and params.cursor is not None:
            after = self._keyring.open(PURPOSE, params.cursor, context=context)
            if after is None:
                raise Refused(INVALID_PARAMS, "Invalid cursor")
            # Behind the last one shown, also when that one is gone meanwhile.
            start = bisect_right(listed.keys, after.decode())
        end = start + self._page_size
        cursor = None
        if end < len(listed.keys):
            last = listed.keys[end - 1].encode()
            cursor = self._keyring.seal(PURPOSE, last, context=context)
        return self._result(member, listed.definitions[start:end], cursor, revision, ttl_ms)

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
        return completed(body, revision, self._tail, ttl_ms=ttl_ms)


def _offers(visible: Visible, member: Member) -> Sequence[Offer]:
    if member == "tools":
        return visible.tools
    if member == "prompts":
        return visible.prompts
    if member == "skills":
        return visible.skills
    return visible.documents if member == "resources" else visible.templates


def _bound_to(caller: TenantContext, member: Member, revision: str, version: bytes) -> bytes:
    """Whose cursor it is and in which list it points (C-10)."""
    owner = (*caller.principal_key, caller.client_id, caller.resource)
    return _encode((*owner, member, revision, version))
