"""What is offered → its definition in a list, in the words of each revision."""

from collections.abc import Mapping
from typing import Any

import msgspec

from gatepost.mcp.era import MODERN
from gatepost.tools.api import Offer, Tool
from gatepost.tools.offer import Document, Prompt, Skill, Template

SINCE = {
    "title": "2025-06-18",
    "outputSchema": "2025-06-18",
    "_meta": "2025-06-18",
    "lastModified": "2025-06-18",
    "icons": "2025-11-25",
}
"""The revision that a member of a definition came with; the others were there before."""


def described(offer: Offer, revision: str) -> Mapping[str, Any]:
    """An offer as one revision knows it."""
    if isinstance(offer, Skill):
        return offer.entry
    shown: dict[str, Any] = {"name": offer.name, "description": offer.description}
    if offer.title:
        shown["title"] = offer.title
    if isinstance(offer, Tool):
        shown |= _tool(offer, revision)
    elif isinstance(offer, Document | Template):
        shown |= _document(offer)
    elif isinstance(offer, Prompt) and offer.arguments:
        shown["arguments"] = msgspec.to_builtins(offer.arguments)
    if offer.icons:
        shown["icons"] = msgspec.to_builtins(offer.icons)
    return known(shown, revision)


def known(definition: Mapping[str, Any], revision: str) -> Mapping[str, Any]:
    """A definition of the newest revision without what an older one has no word for."""
    # Revisions are dates, so their order is that of their names.
    late = {member for member, since in SINCE.items() if revision < since}
    if not late:
        return definition
    shown = {name: value for name, value in definition.items() if name not in late}
    if "uri" in shown or "uriTemplate" in shown:
        hints = shown.pop("annotations", {})
        if kept := {name: value for name, value in hints.items() if name not in late}:
            shown["annotations"] = kept
    if "arguments" in shown:
        shown["arguments"] = [known(argument, revision) for argument in shown["arguments"]]
    return shown


def offers_output(schema: Mapping[str, Any], revision: str) -> bool:
    """Whether a revision can express this output schema: before 2026 only objects."""
    return revision == MODERN or schema.get("type") == "object"


def _tool(tool: Tool, revision: str) -> dict[str, Any]:
    shown: dict[str, Any] = {"inputSchema": tool.input_schema}
    if tool.output_schema is not None and offers_output(tool.output_schema, revision):
        shown["outputSchema"] = tool.output_schema
    if annotations := msgspec.to_builtins(tool.annotations):
        shown["annotations"] = annotations
    return shown


def _document(offer: Document | Template) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    if isinstance(offer, Document):
        shown["uri"] = offer.uri
        if offer.size is not None:
            shown["size"] = offer.size
    else:
        shown["uriTemplate"] = offer.template.text
    if offer.mime_type is not None:
        shown["mimeType"] = offer.mime_type
    if relevance := msgspec.to_builtins(offer.relevance):
        shown["annotations"] = relevance
    return shown
