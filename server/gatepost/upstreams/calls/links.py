"""Keep the resources that a result names apart from those of other servers."""

from collections.abc import Callable, Mapping

import msgspec

from gatepost.tools.offers.offer import Outcome
from gatepost.upstreams.calls.outcome import ContentBlock

OwnerOf = Callable[[str], str | None]
"""Returns the id of the server that answers when the caller reads a URI here, if any does."""


def own_links(outcome: Outcome, server_id: str, owner_of: OwnerOf) -> Outcome:
    """
    Return an outcome that names no resource of another owner.

    A URI belongs to the server that is registered longest. Another server's link would lead there,
    and its content would pass as that server's.
    """
    if not any(block.get("type") in ("resource_link", "resource") for block in outcome.content):
        return outcome
    content = tuple(_without_foreign_uri(block, server_id, owner_of) for block in outcome.content)
    return msgspec.structs.replace(outcome, content=content)


def _without_foreign_uri(block: ContentBlock, server_id: str, owner_of: OwnerOf) -> ContentBlock:
    inner = block.get("resource")
    holder = inner if block.get("type") == "resource" else block
    uri = holder.get("uri") if isinstance(holder, Mapping) else None
    if not isinstance(holder, Mapping) or not isinstance(uri, str):
        return block
    if owner_of(uri) in (None, server_id):
        return block
    if isinstance(text := holder.get("text"), str):
        return {"type": "text", "text": text}
    note = "[A resource was left out: its URI belongs to another server behind this gate.]"
    return {"type": "text", "text": note}
