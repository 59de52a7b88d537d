"""Gatepost puts tools behind an OAuth gate; this is what a tool author imports."""

import importlib
import typing

if typing.TYPE_CHECKING:
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

_PLACES = {
    "gatepost.tools.api": ("CallContext", "Failure", "Outcome", "ToolFailure"),
    "gatepost.tools.asking": ("Answered", "Elicitation", "Roots", "UrlElicitation"),
    "gatepost.tools.content": (
        "Audio", "Contents", "Entry", "Icon", "Image", "Message", "Relevance",
    ),
    "gatepost.tools.pack": ("Pack",),
    "gatepost.tools.sampling": ("Sampled", "Sampling"),
    "gatepost.tools.secret": ("Secret",),
}  # fmt: skip

if not typing.TYPE_CHECKING:
    # By name, when it is asked for: whatever is imported of `gatepost.…` imports this file first,
    # and the command line would wait for all of it before it says a word. Type checkers look at
    # the imports above, and find a misspelt name.
    def __getattr__(name: str) -> object:
        for place, names in _PLACES.items():
            if name in names:
                found = globals()[name] = getattr(importlib.import_module(place), name)
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
