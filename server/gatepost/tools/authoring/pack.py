"""A pack: functions of one subject that decorators turn into tools, resources and prompts."""

import inspect
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, Unpack, overload

from gatepost.tools.authoring.fastmcp_server import offers_of_server
from gatepost.tools.authoring.function import (
    OfferOptions,
    check_function,
    check_options,
    checked_name,
    description_of,
    owner_of,
)
from gatepost.tools.authoring.lifespan import Lifespan
from gatepost.tools.authoring.pack_sources import (
    ApiOptions,
    FastApiApp,
    GivenAccess,
    OperationOptions,
    Scopes,
    openapi_maker,
    pack_name,
    title_of,
)
from gatepost.tools.authoring.prompt import PromptFunction, prompt
from gatepost.tools.authoring.resource import ResourceFunction, ResourceOptions, document
from gatepost.tools.authoring.results import converting, returned_by
from gatepost.tools.authoring.schema import arguments_of
from gatepost.tools.authoring.skill import offers_of, read_skill
from gatepost.tools.authoring.tool_methods import marked_methods
from gatepost.tools.authoring.tool_options import (
    COMMON_OPTIONS,
    OF_PROMPTS,
    OF_RESOURCES,
    OF_TOOLS,
    ToolOptions,
    described_tool,
    tool_with_schema,
)
from gatepost.tools.offers.offer import WORDS, Invoke, Offer, Tool
from gatepost.tools.offers.offer_kinds import Prompt, ResourceOffer, Skill, Template

P = ParamSpec("P")
R = TypeVar("R")
AnyOffer = TypeVar("AnyOffer", bound=Offer)
Function = TypeVar("Function", bound=Callable[..., Any])


class Pack:
    """
    Tools, resources, prompts and skills of one subject.

    ``tools`` and ``prompts`` hold them by name, ``documents`` and ``skills`` by URI, ``templates``
    by the text of their URI template.
    """

    def __init__(self, name: str) -> None:
        self.name = checked_name("pack", name)
        self.tools: dict[str, Tool] = {}
        self.documents: dict[str, ResourceOffer] = {}
        self.templates: dict[str, Template] = {}
        self.prompts: dict[str, Prompt] = {}
        self.skills: dict[str, Skill] = {}
        self.lifespans: list[Lifespan[Any]] = []

    @classmethod
    def from_openapi(
        cls,
        document: Mapping[str, Any] | Path | str,
        *,
        name: str = "",
        scopes: Scopes = (),
        approval: Collection[str] = (),
        **options: Unpack[ApiOptions],
    ) -> "Pack":
        """
        Return a pack with a tool for each operation of an OpenAPI description.

        *document* is the description itself, or the path of a YAML or JSON file. For a description
        at a URL, write a table `[packs.openapi.apis.NAME]`. *name* defaults to the title or the
        file's name. *scopes* are what a caller needs for all tools, or a dictionary with those of
        each tool and of `"*"`, all others. *approval* names the tools whose calls need an approval.
        Raises ValueError if the description cannot be used or there is no such tool, and TypeError
        for an unknown option.
        """
        make = openapi_maker("pack_of_description")
        pack: Pack = make(pack_name(name, title_of(document)), document, options)
        GivenAccess(pack.name, scopes, approval).restrict(pack.tools)
        return pack

    @classmethod
    def from_fastapi(
        cls,
        app: FastApiApp,
        *,
        name: str = "",
        scopes: Scopes = (),
        approval: Collection[str] = (),
        **options: Unpack[OperationOptions],
    ) -> "Pack":
        """
        Return a pack with a tool for each operation of a FastAPI app, which runs in this process.

        Calls go to it without a socket, and its lifespan runs with the server. The caller is
        `gatepost_authz.caller_of(request.scope)`. *name* defaults to its title; the rest is as in
        `from_openapi`.
        """
        pack: Pack = openapi_maker("pack_of_app")(pack_name(name, app.title), app, options)
        GivenAccess(pack.name, scopes, approval).restrict(pack.tools)
        return pack

    @classmethod
    def from_fastmcp(
        cls,
        server: Any,
        *,
        name: str = "",
        scopes: Scopes = (),
        approval: Collection[str] = (),
    ) -> "Pack":
        """
        Return a pack with what a FastMCP server, or the SDK's MCPServer, offers in this process.

        Tools, resources, templates and prompts are read now; the server's lifespan runs with
        Gatepost. Each call has its own connection, in which `get_access_token()` is the caller,
        without the token itself. Progress, log messages and elicitation reach the client; sampling
        and roots are refused. *name* defaults to the server's; the rest is as in `from_openapi`.
        *scopes* may also name prompts, and resources by URI or URI template. Raises ValueError if
        an offer cannot be used, and ImportError without `fastmcp` 4 or newer.
        """
        pack = cls(pack_name(name, server.name))
        offers = offers_of_server(pack.name, server, GivenAccess(pack.name, scopes, approval))
        for tool in offers.tools:
            pack._add(pack.tools, tool)
        pack.documents.update((offer.key, offer) for offer in offers.resources)
        pack.templates.update((offer.key, offer) for offer in offers.templates)
        pack.prompts.update((offer.key, offer) for offer in offers.prompts)
        pack.lifespan(offers.lifespan)
        return pack

    @property
    def offers(self) -> tuple[Offer, ...]:
        """Return all offers of the pack."""
        kinds = (self.tools, self.documents, self.templates, self.prompts, self.skills)
        return tuple(offer for kind in kinds for offer in kind.values())

    @overload
    def tool(self, function: Function, /) -> Function: ...

    @overload
    def tool(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        output_schema: Mapping[str, Any] | None = None,
        **options: Unpack[ToolOptions],
    ) -> Callable[[Function], Function]: ...

    def tool(
        self,
        function: Function | None = None,
        /,
        *,
        name: str | None = None,
        output_schema: Mapping[str, Any] | None = None,
        **options: Unpack[ToolOptions],
    ) -> Any:
        """
        Make the decorated function a tool of this pack; the function itself does not change.

        Its first parameter is the CallContext and the others become the arguments. The docstring
        becomes the description. *name* defaults to the function's name. A plain function runs in
        a thread. *output_schema* is for functions that return `str` or `Outcome`; for `str` it is
        an object whose only member is the required string `result`. Without options, you can
        write `@pack.tool` alone. Raises TypeError or ValueError if the function cannot be a tool,
        or an option is unknown or has the wrong type.
        """

        def register(function: Function) -> Function:
            all_options = {**options, "name": name, "output_schema": output_schema}
            check_options(owner_of(self.name, "tool", function), all_options, OF_TOOLS)
            arguments, returned = arguments_of(function), returned_by(function, output_schema)
            self._add(
                self.tools,
                described_tool(
                    self.name,
                    name or function.__name__,
                    options,
                    description=description_of(function),
                    input_schema=arguments.schema,
                    output_schema=returned.schema,
                    check=arguments.check,
                    reads_texts=arguments.reads_texts,
                    invoke=converting(function, returned.answer),
                ),
            )
            return function

        return self._decorated(function, register, '@pack.tool(name="...")')

    def resource(
        self, uri: str, *, name: str | None = None, **options: Unpack[ResourceOptions]
    ) -> Callable[[Callable[P, R]], ResourceFunction[P, R]]:
        """
        Make the decorated function return the resource at *uri*, or those of a URI template.

        In `report://{quarter}` the variable is one segment, in `files://{+path}` it may contain
        `/`, and `{?from,to}` at the end is a query. Each variable is a parameter of the function,
        after the context. The function returns text, bytes, Contents, a list of these, or any
        value as JSON; None means that there is no such resource. Raises TypeError or ValueError
        if the function cannot be a resource.
        """
        if not isinstance(uri, str):
            # Without parentheses, the decorator gets the function instead of a URI.
            raise TypeError(
                f"{owner_of(self.name, 'resource', uri)}: a resource needs a URI; write "
                '@pack.resource("report://...")'
            )

        def register(function: Callable[P, R]) -> ResourceFunction[P, R]:
            all_options = {**options, "name": name}
            check_options(owner_of(self.name, "resource", function), all_options, OF_RESOURCES)
            offer = document(function, uri, name, self.name, options)
            if isinstance(offer, ResourceOffer):
                self._add(self.documents, offer)
            else:
                self._add(self.templates, offer)
            return ResourceFunction(function, offer, self._keep_template)

        return register

    @overload
    def prompt(self, function: Callable[P, R], /) -> PromptFunction[P, R]: ...

    @overload
    def prompt(
        self, function: None = None, /, *, name: str | None = None, **options: Unpack[OfferOptions]
    ) -> Callable[[Callable[P, R]], PromptFunction[P, R]]: ...

    def prompt(
        self,
        function: Callable[P, R] | None = None,
        /,
        *,
        name: str | None = None,
        **options: Unpack[OfferOptions],
    ) -> Any:
        """
        Make the decorated function a prompt: its parameters after the context are strings.

        It returns a string, which becomes the user's message, a Message, or a list of Messages.
        Without options, you can write `@pack.prompt` alone. Raises TypeError or ValueError if the
        function cannot be a prompt, or an option is unknown or has the wrong type.
        """

        def register(function: Callable[P, R]) -> PromptFunction[P, R]:
            all_options = {**options, "name": name}
            check_options(owner_of(self.name, "prompt", function), all_options, OF_PROMPTS)
            offer = self._add(self.prompts, prompt(function, name, self.name, options))
            return PromptFunction(function, offer, self._keep_prompt)

        return self._decorated(function, register, '@pack.prompt(name="...")')

    def skill(self, folder: Path | str, **options: Unpack[OfferOptions]) -> Skill:
        """
        Offer the skill in *folder*, and each of its files as a resource below `skill://<pack>/`.

        The folder contains a `SKILL.md` that begins with its name and description (Agent Skills).
        It is read now; later changes take effect after a restart. Raises ValueError if the skill
        is invalid.
        """
        check_options(f"pack {self.name}, skill {folder}", options, COMMON_OPTIONS)
        read = read_skill(Path(folder), authority=self.name)
        offer, documents = offers_of(read, self.name, options)
        for file in documents:
            self._add(self.documents, file)
        return self._add(self.skills, offer)

    def lifespan(self, function: Callable[[], AsyncIterator[R]], /) -> Lifespan[R]:
        """
        Run the decorated async generator with the server: up to its `yield` before the server is
        ready, and the rest after the last call.

        It takes no arguments. Tools get what it yields by `Annotated[…, Depends(function)]`. Every
        server process runs it. If it raises, the server does not start. Raises TypeError if it is
        no async generator function.
        """
        if not inspect.isasyncgenfunction(function) or inspect.signature(function).parameters:
            raise TypeError(
                f"{owner_of(self.name, 'lifespan', function)}: write an async generator function "
                "without parameters and with one `yield`"
            )
        lifespan = Lifespan(self.name, function)
        self.lifespans.append(lifespan)
        return lifespan

    def add_object(self, value: object) -> None:
        """
        Offer the methods of an object that are marked with `@tool_method`.

        Raises ValueError if it has none, and otherwise as `tool`.
        """
        methods = [*marked_methods(value)]
        if not methods:
            raise ValueError(f"{type(value).__name__} has no method with @tool_method")
        for method, options in methods:
            self.tool(**options)(method)

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
        **options: Unpack[ToolOptions],
    ) -> Tool:
        """
        Add a tool with its own JSON Schema; ``invoke`` gets arguments that satisfy the schema.

        With *output_schema*, its outcomes need a structured value that satisfies that schema. Mark
        arguments that hold secrets with `"x-gatepost-secret": true`, as the type Secret does.
        Raises ValueError if a schema is invalid, has an unknown dialect, refers to something
        outside itself, is too large, or (for arguments) is not an object.
        """
        tool = tool_with_schema(
            self.name,
            name,
            description=description,
            input_schema=input_schema,
            invoke=invoke,
            output_schema=output_schema,
            **options,
        )
        return self._add(self.tools, tool)

    def _decorated(self, function: Any, register: Callable[[Any], Any], written: str) -> Any:
        """Return the decorator, or apply it if it was written without parentheses."""
        if function is None:
            return register
        check_function(f"pack {self.name}", function, written)
        return register(function)

    def _add(self, offers: dict[str, AnyOffer], offer: AnyOffer) -> AnyOffer:
        if offer.key in offers:
            noun = WORDS[offer.kind]
            raise ValueError(f"the pack {self.name} has two {noun}s named {offer.key}")
        offers[offer.key] = offer
        return offer
