"""
Keep the tools of MCP Apps and their pages together.

A page knows only its server's own name for a tool, and a host passes that name on.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from gatepost.tools.offers.offer import Tool
from gatepost.tools.offers.offer_kinds import ResourceOffer, Template
from gatepost.tools.offers.tenant_offers import OwnedOffer

APP_SCHEME = "ui://"
UI, UI_RESOURCE, OLDER_UI_RESOURCE = "ui", "resourceUri", "ui/resourceUri"
"""The places of the page in the `_meta` of a tool: two members, or an older one."""


def app_tools(entries: Iterable[OwnedOffer]) -> Mapping[str, Sequence[OwnedOffer]]:
    """Return the tools of all servers that have pages, by the servers' own names for them."""
    entries = tuple(entries)
    with_pages = {
        entry.offer.origin.server_id
        for entry in entries
        if entry.offer.origin is not None
        and isinstance(entry.offer, ResourceOffer | Template)
        and entry.offer.key.startswith(APP_SCHEME)
    }
    by_key: dict[str, list[OwnedOffer]] = {}
    for entry in entries:
        origin = entry.offer.origin
        if isinstance(entry.offer, Tool) and origin is not None and origin.server_id in with_pages:
            by_key.setdefault(origin.key, []).append(entry)
    return by_key


def with_own_pages(
    entries: Iterable[OwnedOffer], owners_of: Callable[[str], Iterable[str]]
) -> tuple[OwnedOffer, ...]:
    """
    Return entries whose tools name no page that another server answers.

    *owners_of* returns the ids of the servers of which one answers when a URI is read; a page of
    another server would be shown as that of this tool, and call its tools.
    """

    def without_foreign_pages(entry: OwnedOffer) -> OwnedOffer:
        tool = entry.offer
        if not isinstance(tool, Tool) or tool.origin is None:
            return entry
        foreign = [uri for uri in _pages(tool.meta) if {*owners_of(uri)} - {tool.origin.server_id}]
        if not foreign:
            return entry
        meta = {name: value for name, value in tool.meta.items() if name != OLDER_UI_RESOURCE}
        if isinstance(nested := meta.get(UI), Mapping):
            meta[UI] = {name: value for name, value in nested.items() if name != UI_RESOURCE}
        cleaned = msgspec.structs.replace(tool, meta=meta)
        return msgspec.structs.replace(entry, offer=cleaned, owner=cleaned)

    return tuple(without_foreign_pages(entry) for entry in entries)


def _pages(meta: Mapping[str, object]) -> list[str]:
    nested = meta.get(UI)
    uris = (
        meta.get(OLDER_UI_RESOURCE),
        nested.get(UI_RESOURCE) if isinstance(nested, Mapping) else None,
    )
    return [uri for uri in uris if isinstance(uri, str)]
