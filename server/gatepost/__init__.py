"""Gatepost puts tools behind an OAuth gate; this is what a tool author imports."""

from gatepost.tools.api import CallContext, Failure, Outcome, ToolFailure
from gatepost.tools.content import Audio, Contents, Entry, Icon, Image, Message, Relevance
from gatepost.tools.pack import Pack

__all__ = [
    "Audio",
    "CallContext",
    "Contents",
    "Entry",
    "Failure",
    "Icon",
    "Image",
    "Message",
    "Outcome",
    "Pack",
    "Relevance",
    "ToolFailure",
]
