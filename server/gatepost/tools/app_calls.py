"""
Find the tool that the page of an MCP App calls.

The page knows only its server's own name for the tool, and a host passes that name on.
"""

from collections.abc import Iterable, Mapping, Sequence

from gatepost.tools.api import Tool
from gatepost.tools.offers import ResourceOffer, Template
from gatepost.tools.tenant_offers import OwnedOffer

APP_SCHEME = "ui://"


def app_tools(entries: Iterable[OwnedOffer]) -> Mapping[str, Sequence[OwnedOffer]]:
    """Return the tools of all servers that have pages, by the servers' own names for them."""
    entries = tuple(entries)
    with_pages = {
        one.offer.origin.server_id
        for one in entries
        if one.offer.origin is not None
        and isinstance(one.offer, ResourceOffer | Template)
        and one.offer.key.startswith(APP_SCHEME)
    }
    found: dict[str, list[OwnedOffer]] = {}
    for entry in entries:
        origin = entry.offer.origin
        if isinstance(entry.offer, Tool) and origin is not None and origin.server_id in with_pages:
            found.setdefault(origin.key, []).append(entry)
    return found
