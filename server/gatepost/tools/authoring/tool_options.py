"""The options of tools, the tools with them, and the names of the options of all offers."""

from collections.abc import Callable, Mapping
from typing import Any, Unpack, get_type_hints

from gatepost.tools.authoring.function import OfferOptions, check_options, common_members
from gatepost.tools.authoring.resource import ResourceOptions
from gatepost.tools.authoring.results import detached, holding, labelled, vetted
from gatepost.tools.offers.effects import FileWrite, effects_of
from gatepost.tools.offers.offer import Annotations, Effects, Invoke, TaskSupport, Tool
from gatepost.tools.schemas.header_arguments import routed_arguments
from gatepost.tools.schemas.raw_schema import checker, validator_of
from gatepost.tools.schemas.secret import secret_arguments, with_hints


class ToolOptions(OfferOptions, total=False):
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


COMMON_OPTIONS = frozenset(get_type_hints(OfferOptions))
OF_PROMPTS = COMMON_OPTIONS | {"name"}
OF_TOOLS = frozenset(get_type_hints(ToolOptions)) | {"name", "output_schema"}
OF_RESOURCES = frozenset(get_type_hints(ResourceOptions)) | {"name"}
"""The names of all options; any other name is refused when the pack loads."""


def described_tool(pack: str, name: str, options: ToolOptions, **members: Any) -> Tool:
    """
    Return the tool of a pack with its options.

    Raises ValueError for an invalid schema, and for options that contradict each other.
    """
    for schema in (members["input_schema"], members["output_schema"]):
        if schema is not None:
            validator_of(schema)
    support = options.get("task_support", "forbidden")
    secrets = secret_arguments(members["input_schema"])
    if secrets:
        if support != "forbidden":
            raise ValueError(
                f"{name}: a tool that takes secrets cannot become a task, whose record would "
                "keep them; leave task_support out"
            )
        members["input_schema"] = with_hints(members["input_schema"])
    if support == "forbidden":
        if options.get("detaches"):
            raise ValueError(f"{name}: what detaches becomes a task; allow it by task_support")
    elif not options.get("detaches"):
        members["invoke"] = detached(members["invoke"])
    members["invoke"] = labelled(members["invoke"], options.get("untrusted"))
    hints = hints_of(options)
    return Tool(
        annotations=hints,
        effects=options.get("effects") or effects_of(hints),
        routed=routed_arguments(members["input_schema"]),
        secret_arguments=secrets,
        **common_members("tool", name, pack, options),
        task_support=support,
        detaches=options.get("detaches", False),
        read_only_form=options.get("read_only_form"),
        approval=options.get("approval", False),
        writes=options.get("writes"),
        **members,
    )


def tool_with_schema(
    pack: str,
    name: str,
    *,
    description: str,
    input_schema: Mapping[str, Any],
    invoke: Invoke,
    output_schema: Mapping[str, Any] | None,
    **options: Unpack[ToolOptions],
) -> Tool:
    """Return a tool with its own JSON Schema, as `Pack.add` describes it; raises as that does."""
    all_options = {**options, "output_schema": output_schema}
    check_options(f"pack {pack}, tool {name}", all_options, OF_TOOLS)
    if input_schema.get("type") != "object":
        raise ValueError(f"{name}: the input schema must have `type: object` at its root")
    return described_tool(
        pack,
        name,
        options,
        description=description,
        input_schema=input_schema,
        output_schema=output_schema,
        check=checker(input_schema),
        invoke=vetted(invoke) if output_schema is None else holding(invoke, output_schema),
    )


def hints_of(options: ToolOptions) -> Annotations:
    """Return the hints that clients see in a list."""
    return Annotations(
        title=options.get("title"),
        read_only_hint=options.get("read_only"),
        destructive_hint=options.get("destructive"),
        idempotent_hint=options.get("idempotent"),
        open_world_hint=options.get("open_world"),
    )
