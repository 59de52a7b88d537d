"""Gatepost puts tools behind an OAuth gate; this is what a tool author imports."""

from gatepost.tools.api import CallContext, Failure, Outcome, ToolFailure
from gatepost.tools.asking import Answered, Elicitation, Roots, UrlElicitation
from gatepost.tools.content import Audio, Contents, Entry, Icon, Image, Message, Relevance
from gatepost.tools.pack import Pack
from gatepost.tools.sampling import Sampled, Sampling
from gatepost.tools.secret import Secret

__all__ = [
    "Answered",
    "Audio",
    "CallContext",
    "Contents",
    "Elicitation",
    "Entry",
    "Failure",
    "Icon",
    "Image",
    "Message",
    "Outcome",
    "Pack",
    "Relevance",
    "Roots",
    "Sampled",
    "Sampling",
    "Secret",
    "ToolFailure",
    "UrlElicitation",
]
