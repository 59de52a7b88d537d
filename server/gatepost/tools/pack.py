"""A pack: functions of one subject, made into tools, resources and prompts by decorators."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, Unpack

from gatepost.tools.answer import Answer, holding, returned_by, vetted
from gatepost.tools.api import (
    WORDS,
    Annotations,
    CallContext,
    Offer,
    Outcome,
    TaskSupport,
    Tool,
)
from gatepost.tools.dialect import validator_of
from gatepost.tools.document import Resource, ResourceOptions, document
from gatepost.tools.function import Options as CommonOptions
from gatepost.tools.function import awaited, description_of, named, settled
from gatepost.tools.offer import Document, Prompt, Skill, Template
from gatepost.tools.prompt import PromptFunction, prompt
from gatepost.tools.routing import routed_arguments
from gatepost.tools.schema import arguments_of, checker
from gatepost.tools.secret import secret_arguments, with_hints
from gatepost.tools.skill import offers_of, read_skill

P = ParamSpec("P")
R = TypeVar("R")
AnyOffer = TypeVar("AnyOffer", bound=Offer)
Function = TypeVar("Function", bound=Callable[..., Any])
Invoke = Callable[[CallContext, Any], Awaitable[Outcome]]


class Options(CommonOptions, total=False):
    """What a tool's author may say about it; the hints are MCP's ToolAnnotations."""

    read_only: bool
    destructive: bool
    idempotent: bool
    open_world: bool
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
    approval: bool
    """Whether a person has to approve every call, unless `approvals.auto_approve` names it."""


class Pack:
    """
    Tools, resources, prompts and skills of one subject.

    ``tools`` and ``prompts`` hold them by name, ``documents`` and ``skills`` by URI, ``templates``
    by the text of their URI template.
    """

    def __init__(self, name: str) -> None:
        self.name = named("pack", name)
        self.tools: dict[str, Tool] = {}
        self.documents: dict[str, Document] = {}
        self.templates: dict[str, Template] = {}
        self.prompts: dict[str, Prompt] = {}
        self.skills: dict[str, Skill] = {}

    @property
    def offers(self) -> tuple[Offer, ...]:
        """Everything in it."""
        kinds = (self.tools, self.documents, self.templates, self.prompts, self.skills)
        return tuple(offer for kind in kinds for offer in kind.values())

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
            description = description_of(function)
            arguments, returned = arguments_of(function), returned_by(function)
            self._add(
                self.tools,
                self._described(
                    options,
                    name=name or function.__name__,
                    description=description,
                    input_schema=arguments.schema,
                    output_schema=returned.schema,
                    check=arguments.check,
                    invoke=_invoke(function, returned.answer),
                ),
            )
            return function

        return register

    def resource(
        self, uri: str, *, name: str | None = None, **options: Unpack[ResourceOptions]
    ) -> Callable[[Callable[P, R]], Resource[P, R]]:
        """
        Make the decorated function answer the resource at *uri*, or those of a URI template.

        `report://{quarter}` has one variable that is one segment, `files://{+path}` one that may
        hold `/`, `{?from,to}` at the end means a query; each is a parameter of the function after
        the context. It answers text, bytes, Contents, a list of these, or any value as JSON, and
        None where there is nothing. TypeError or ValueError when the function cannot.
        """

        def register(function: Callable[P, R]) -> Resource[P, R]:
            offer = document(function, uri, name, self.name, options)
            if isinstance(offer, Document):
                self._add(self.documents, offer)
            else:
                self._add(self.templates, offer)
            return Resource(function, offer, self._keep_template)

        return register

    def prompt(
        self, *, name: str | None = None, **options: Unpack[CommonOptions]
    ) -> Callable[[Callable[P, R]], PromptFunction[P, R]]:
        """
        Make the decorated function a prompt: its parameters after the context are texts.

        It answers a text, which is the user's, a Message, or a list of them. TypeError or
        ValueError when the function cannot be one.
        """

        def register(function: Callable[P, R]) -> PromptFunction[P, R]:
            offer = self._add(self.prompts, prompt(function, name, self.name, options))
            return PromptFunction(function, offer, self._keep_prompt)

        return register

    def skill(self, folder: Path | str, **options: Unpack[CommonOptions]) -> Skill:
        """
        Offer the skill in *folder*, and each of its files as a resource below `skill://<pack>/`.

        The folder holds a `SKILL.md` that begins with its name and description (Agent Skills). It
        is read now; what changes later counts after a restart. ValueError says what is wrong.
        """
        read = read_skill(Path(folder), authority=self.name)
        offer, documents = offers_of(read, self.name, options)
        for file in documents:
            self._add(self.documents, file)
        return self._add(self.skills, offer)

    def _keep_template(self, template: Template) -> None:
        self.templates[template.key] = template

    def _keep_prompt(self, offer: Prompt) -> None:
        self.prompts[offer.key] = offer

    def add(
        self,
        name: str,
        *,
        description: str,
        input_schema: Mapping[str, Any],
        invoke: Invoke,
        output_schema: Mapping[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> Tool:
        """
        Add a tool that brings its own JSON Schema; ``invoke`` gets arguments that satisfy it.

        With *output_schema* its outcomes have a structured value that satisfies that one.
        Arguments that hold secrets have `"x-gatepost-secret": true`; see Secret. ValueError when a
        schema is invalid, of an unknown dialect, refers to something outside of itself, is too
        large, or (for arguments) not of an object.
        """
        if input_schema.get("type") != "object":
            raise ValueError(f"{name}: the input schema must have `type: object` at its root")
        return self._add(
            self.tools,
            self._described(
                options,
                name=name,
                description=description,
                input_schema=input_schema,
                output_schema=output_schema,
                check=checker(input_schema),
                invoke=vetted(invoke) if output_schema is None else holding(invoke, output_schema),
            ),
        )

    def _described(self, options: Options, *, name: str, **made: Any) -> Tool:
        for schema in (made["input_schema"], made["output_schema"]):
            if schema is not None:
                validator_of(schema)
        support = options.get("task_support", "forbidden")
        secrets = secret_arguments(made["input_schema"])
        if secrets:
            if support != "forbidden":
                raise ValueError(
                    f"{name}: a tool that takes secrets cannot become a task, whose record would "
                    "keep them; leave task_support out"
                )
            made["input_schema"] = with_hints(made["input_schema"])
        if support == "forbidden":
            if options.get("detaches"):
                raise ValueError(f"{name}: what detaches becomes a task; allow it by task_support")
        elif not options.get("detaches"):
            made["invoke"] = _detached(made["invoke"])
        return Tool(
            annotations=Annotations(
                title=options.get("title"),
                read_only_hint=options.get("read_only"),
                destructive_hint=options.get("destructive"),
                idempotent_hint=options.get("idempotent"),
                open_world_hint=options.get("open_world"),
            ),
            routed=routed_arguments(made["input_schema"]),
            secret_arguments=secrets,
            **settled("tool", name, self.name, options),
            task_support=support,
            detaches=options.get("detaches", False),
            read_only_form=options.get("read_only_form"),
            approval=options.get("approval", False),
            **made,
        )

    def _add(self, kept: dict[str, AnyOffer], offer: AnyOffer) -> AnyOffer:
        if offer.key in kept:
            word = WORDS[offer.kind]
            raise ValueError(f"the pack {self.name} has two {word}s named {offer.key}")
        kept[offer.key] = offer
        return offer


def _detached(invoke: Invoke) -> Invoke:
    """The same as a task from its start, where the client takes one."""

    async def detached(ctx: CallContext, arguments: Any) -> Outcome:
        await ctx.detach()
        return await invoke(ctx, arguments)

    return detached


def _invoke(function: Callable[..., Any], answer: Answer) -> Invoke:
    work = awaited(function)

    async def invoke(ctx: CallContext, arguments: Any) -> Outcome:
        return answer(await work(ctx, **arguments))

    return invoke
