"""A pack: functions of one subject, made into tools by a decorator."""

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Set
from typing import Any, TypedDict, TypeVar, Unpack

from gatepost.tools.answer import Answer, returned_by
from gatepost.tools.api import Annotations, CallContext, Outcome, TaskSupport, Tool
from gatepost.tools.routing import routed_arguments
from gatepost.tools.schema import arguments_of, checker
from gatepost_authz.challenge import words

NAME = re.compile(r"[a-z0-9_]{1,64}", re.ASCII)
"""The grammar of tool and pack names: safe in headers, metrics, URLs and every client."""

Function = TypeVar("Function", bound=Callable[..., Any])
Invoke = Callable[[CallContext, Any], Awaitable[Outcome]]


class Options(TypedDict, total=False):
    """What a tool's author may say about it; the hints are MCP's ToolAnnotations."""

    title: str
    """A name for people."""
    scopes: Set[str]
    """All that a caller needs."""
    read_only: bool
    destructive: bool
    idempotent: bool
    open_world: bool
    timeout_s: float
    """Seconds the tool may run; default: the configured one."""
    acr_values: tuple[str, ...]
    """Sign-ins that are strong enough (RFC 9470)."""
    max_age_s: int
    """Seconds since the sign-in, at most (RFC 9470)."""
    task_support: TaskSupport
    """
    ``optional``: where the client takes tasks, a call becomes one as it starts; it is answered at
    once and outlives its connection. ``required``: MCP clients that take none are refused. Default:
    ``forbidden``.
    """
    detaches: bool
    """
    The function says itself when it becomes a task, by ``await ctx.detach()``. What it asks before
    is asked in the answer of the call, which is then repeated from its start (2026-07-28, multi
    round-trip requests); so effects belong after it.
    """
    read_only_form: Callable[[Any], bool]
    """
    For a tool that reads or writes depending on what it is asked (`git status`, GET): tells from
    the checked arguments, a dictionary by name, whether this call only reads.
    """


class Pack:
    """Tools of one subject; ``tools`` holds them by name."""

    def __init__(self, name: str) -> None:
        self.name = _named("pack", name)
        self.tools: dict[str, Tool] = {}

    def tool(
        self, *, name: str | None = None, **options: Unpack[Options]
    ) -> Callable[[Function], Function]:
        """
        Make the decorated function a tool of this pack; the function itself stays as it is.

        Its first parameter is the CallContext, the others become the arguments, the docstring
        becomes the description; *name* is the function's own unless given. A plain function runs
        in a thread. TypeError or ValueError when the function cannot be a tool.
        """

        def register(function: Function) -> Function:
            description = inspect.getdoc(function)
            if not description:
                raise TypeError(f"{function.__name__} needs a docstring: the model reads it")
            arguments, returned = arguments_of(function), returned_by(function)
            self._add(
                self._described(
                    options,
                    name=name or function.__name__,
                    description=description,
                    input_schema=arguments.schema,
                    output_schema=returned.schema,
                    check=arguments.check,
                    invoke=_invoke(function, returned.answer),
                )
            )
            return function

        return register

    def add(
        self,
        name: str,
        *,
        description: str,
        input_schema: Mapping[str, Any],
        invoke: Invoke,
        **options: Unpack[Options],
    ) -> Tool:
        """
        Add a tool that brings its own JSON Schema; ``invoke`` gets arguments that satisfy it.

        ValueError when the schema is invalid, of an unknown dialect, or not of an object.
        """
        if input_schema.get("type") != "object":
            raise ValueError(f"{name}: the input schema must have `type: object` at its root")
        return self._add(
            self._described(
                options,
                name=name,
                description=description,
                input_schema=input_schema,
                check=checker(input_schema),
                invoke=invoke,
            )
        )

    def _described(self, options: Options, *, name: str, **made: Any) -> Tool:
        support = options.get("task_support", "forbidden")
        if support == "forbidden":
            if options.get("detaches"):
                raise ValueError(f"{name}: what detaches becomes a task; allow it by task_support")
        elif not options.get("detaches"):
            made["invoke"] = _detached(made["invoke"])
        return Tool(
            name=_named("tool", name),
            title=options.get("title"),
            annotations=Annotations(
                title=options.get("title"),
                read_only_hint=options.get("read_only"),
                destructive_hint=options.get("destructive"),
                idempotent_hint=options.get("idempotent"),
                open_world_hint=options.get("open_world"),
            ),
            scopes=frozenset(_words(name, "scopes", options.get("scopes", ()))),
            acr_values=_words(name, "acr_values", options.get("acr_values", ())),
            max_age_s=options.get("max_age_s"),
            timeout_s=options.get("timeout_s"),
            pack=self.name,
            routed=routed_arguments(made["input_schema"]),
            task_support=support,
            read_only_form=options.get("read_only_form"),
            **made,
        )

    def _add(self, tool: Tool) -> Tool:
        if tool.name in self.tools:
            raise ValueError(f"the pack {self.name} has two tools named {tool.name}")
        self.tools[tool.name] = tool
        return tool


def _named(kind: str, name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError(f"{kind} name {name!r} must be 1 to 64 of a-z, 0-9 and _")
    return name


def _words(tool: str, option: str, values: Iterable[str]) -> tuple[str, ...]:
    """Values that a challenge can name; a text alone would be taken for its letters."""
    if isinstance(values, str):
        raise TypeError(f"{tool}: {option} is a collection of texts, not a text")
    words(values)
    return tuple(values)


def _detached(invoke: Invoke) -> Invoke:
    """The same as a task from its start, where the client takes one."""

    async def detached(ctx: CallContext, arguments: Any) -> Outcome:
        await ctx.detach()
        return await invoke(ctx, arguments)

    return detached


def _invoke(function: Callable[..., Any], answer: Answer) -> Invoke:
    if inspect.iscoroutinefunction(function):

        async def invoke(ctx: CallContext, arguments: Any) -> Outcome:
            return answer(await function(ctx, **arguments))

    else:

        async def invoke(ctx: CallContext, arguments: Any) -> Outcome:
            # A cancelled call stops waiting for its thread; the thread itself runs on.
            return answer(await asyncio.to_thread(function, ctx, **arguments))

    return invoke
