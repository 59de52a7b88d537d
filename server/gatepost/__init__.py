"""Gatepost puts tools behind an OAuth gate; this is what a tool author imports."""

from gatepost.tools.api import CallContext, Failure, Outcome, ToolFailure
from gatepost.tools.asking import Answered, Elicitation, Roots, UrlElicitation
from gatepost.tools.pack import Pack
from gatepost.tools.sampling import Sampled, Sampling

__all__ = [
    "Answered",
    "CallContext",
    "Elicitation",
    "Failure",
    "Outcome",
    "Pack",
    "Roots",
    "Sampled",
    "Sampling",
    "ToolFailure",
    "UrlElicitation",
]
