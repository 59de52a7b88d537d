"""Gatepost puts tools behind an OAuth gate; this is what a tool author imports."""

from gatepost.tools.api import CallContext, Failure, Outcome, ToolFailure
from gatepost.tools.pack import Pack

__all__ = ["CallContext", "Failure", "Outcome", "Pack", "ToolFailure"]
