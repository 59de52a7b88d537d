"""The options of tools, and the names of the options of everything that a pack offers."""

from collections.abc import Callable
from typing import Any, get_type_hints

from gatepost.tools.api import Annotations, Effects, TaskSupport
from gatepost.tools.effects import FileWrite
from gatepost.tools.function import OfferOptions as CommonOptions
from gatepost.tools.resource import ResourceOptions


class ToolOptions(CommonOptions, total=False):
    """The options of a tool; the hints are MCP's ToolAnnotations."""

    read_only: bool
    destructive: bool
    idempotent: bool
    open_world: bool
    effects: Effects
    """
    The tool's real effects, if its published hints must differ, for instance because they copy
    another product's documentation. Lists show the hints; Gatepost's decisions use the effects.
    """
    task_support: TaskSupport
    """
    ``optional``: if the client supports tasks, a call becomes a task when it starts. It is answered
    at once and survives its connection. ``required``: MCP clients without task support are
    refused. Default: ``forbidden``.
    """
    detaches: bool
    """
    The function decides when it becomes a task, with ``await ctx.detach()``. A request for input
    before that ends the call, which is then repeated from its start (2026-07-28, multi round-trip
    requests). Put all effects after it.
    """
    read_only_form: Callable[[Any], bool]
    """
    For a tool that reads or writes depending on its arguments (`git status`, GET). The function
    gets the checked arguments, a dictionary by name, and returns whether this call only reads.
    """
    writes: FileWrite
    """The file that a call writes; approvers see how it would change."""
    approval: bool
    """Whether every call needs an approval, unless `approvals.auto_approve` names the tool."""
    untrusted: str
    """
    The source of third-party text in the tool's answers and failures, such as "web page". MCP
    clients find it in the `_meta` of each result.
    """


COMMON_OPTIONS = frozenset(get_type_hints(CommonOptions))
OF_PROMPTS = COMMON_OPTIONS | {"name"}
OF_TOOLS = frozenset(get_type_hints(ToolOptions)) | {"name", "output_schema"}
OF_RESOURCES = frozenset(get_type_hints(ResourceOptions)) | {"name"}
"""The names of all options; any other name is refused when the pack loads."""


def hints_of(options: ToolOptions) -> Annotations:
    """Return the hints that clients see in a list."""
    return Annotations(
        title=options.get("title"),
        read_only_hint=options.get("read_only"),
        destructive_hint=options.get("destructive"),
        idempotent_hint=options.get("idempotent"),
        open_world_hint=options.get("open_world"),
    )
