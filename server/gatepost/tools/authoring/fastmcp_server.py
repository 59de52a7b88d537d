"""Read what a FastMCP server offers, which runs in this process."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

import msgspec
from pydantic import AnyUrl, ValidationError

from gatepost.execution.failure import FailureKind
from gatepost.tools.authoring.function import OfferOptions, common_members
from gatepost.tools.authoring.pack_sources import GivenAccess
from gatepost.tools.authoring.prompt import check_of
from gatepost.tools.authoring.resource import NO_DOCUMENT, Read
from gatepost.tools.authoring.suggestions import completer
from gatepost.tools.authoring.tool_options import tool_with_schema
from gatepost.tools.context.client import LEVELS
from gatepost.tools.offers.offer import CallContext, Outcome, Tool, ToolFailure
from gatepost.tools.offers.offer_kinds import Prompt, PromptArgument, ResourceOffer, Template
from gatepost.tools.offers.uri_template import UriTemplate

T = TypeVar("T")
SessionWork = Callable[[Any], Awaitable[T]]

WILDCARD = re.compile(r"\{(\w+)\*\}")
"""FastMCP's form of a variable that has several segments; RFC 6570 has `{+x}`."""
NOT_IN_A_NAME = re.compile(r"[^a-z0-9_]")
NOT_FOUND = frozenset({-32002, -32602})
"""The error codes of MCP's revisions for a resource that does not exist."""


class FastMcpServer:
    """A FastMCP server of this process, and connections to it; ImportError without `fastmcp`."""

    def __init__(self, server: Any) -> None:
        # Packages of the author's, which Gatepost does not need.
        client = import_module("fastmcp.client")
        self._server, self._client = server, client.Client
        self._elicited = import_module("fastmcp.client.elicitation").ElicitResult
        self._token = import_module("fastmcp.server.auth.auth").AccessToken
        self._user = import_module("mcp.server.auth.middleware.bearer_auth").AuthenticatedUser
        self._users = import_module("mcp.server.auth.middleware.auth_context").auth_context_var
        self._refused: type[Exception] = import_module("mcp").MCPError
        _log_as_others()

    def connection(self, **handlers: Any) -> Any:
        """Return a client that connects in memory, in the era in which tools can ask."""
        return self._client(self._server, mode="legacy", **handlers)

    async def lifespan(self) -> AsyncIterator[None]:
        """Run the server's own lifespan, by a connection that stays open."""
        async with self.connection():
            yield

    def read(self, work: SessionWork[T]) -> T:
        """Return the result of *work* with a connection, in a thread: a loop may run in this."""

        async def connected() -> T:
            async with self.connection() as client:
                return await work(client)

        return _finished(connected)

    async def answer(self, ctx: CallContext, work: SessionWork[T]) -> T:
        """
        Return the result of *work* with a connection of its own for the caller.

        Raises ToolFailure for an error of the server, and what asking the client raises.
        """
        elicitation = AskedByServer(ctx, self._elicited)

        async def forward_log(message: Any) -> None:
            if message.level in LEVELS:
                await ctx.log(message.level, message.data, logger=message.logger)

        # The tasks of the connection inherit the variable.
        before = self._users.set(self._user(self._caller(ctx)))
        try:
            async with self.connection(
                progress_handler=ctx.progress,
                log_handler=forward_log,
                elicitation_handler=elicitation,
            ) as client:
                results = await elicitation.unless_refused(work(client))
        except self._refused as error:
            is_known = getattr(error, "code", 0) not in NOT_FOUND
            kind: FailureKind = "tool_error" if is_known else "not_found"
            raise ToolFailure(kind, str(error) or "The server refused the request.") from None
        finally:
            self._users.reset(before)
        if elicitation.refusal is not None:
            raise elicitation.refusal
        return results[0]

    def _caller(self, ctx: CallContext) -> Any:
        caller = ctx.caller
        identity = {"iss": caller.issuer, "sub": caller.subject, "tenant_id": caller.tenant_id}
        return self._token(
            token="",  # the token is for Gatepost alone
            client_id=caller.client_id or "",
            scopes=sorted(caller.scopes),
            expires_at=caller.expires_at,
            resource=caller.resource,
            subject=caller.subject,
            claims={**caller.claims, **identity},
        )


class AskedByServer:
    """
    Sends the requests of the server's tools to the client.

    A request can end the call: the client gets it as the answer, and calls again. The
    server's own error handling must not see that, so the connection is closed instead.
    """

    def __init__(self, ctx: CallContext, result: Any) -> None:
        self._ctx, self._result = ctx, result
        self.refusal: BaseException | None = None
        self._refused = asyncio.Event()

    async def __call__(self, message: str, shape: Any, params: Any, context: Any) -> Any:
        """Answer `elicitation/create`, as FastMCP calls its handler."""
        if (url := getattr(params, "url", None)) is not None:
            elicitation: Awaitable[Any] = self._ctx.ask_url(message, url)
        else:
            elicitation = self._ctx.ask(message, params.requested_schema)
        # In a task of its own: what ends a call is no Exception, and would end the connection.
        task = asyncio.ensure_future(elicitation)
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
        if (refusal := task.exception()) is not None:
            self.refusal = refusal
            self._refused.set()
            await asyncio.Event().wait()
        answer = task.result()
        return self._result(action=answer.action, content=answer.content)

    async def unless_refused(self, work: Awaitable[T]) -> list[T]:
        """Return the result of *work* as a list, empty if asking ended the call before."""
        task = asyncio.ensure_future(work)
        refused = asyncio.ensure_future(self._refused.wait())
        try:
            await asyncio.wait({task, refused}, return_when=asyncio.FIRST_COMPLETED)
            return [] if self.refusal is not None else [await task]
        finally:
            task.cancel()
            refused.cancel()


class FastMcpLists(msgspec.Struct):
    """The lists of a server."""

    tools: list[Any]
    resources: list[Any]
    templates: list[Any]
    prompts: list[Any]


class FastMcpOffers(NamedTuple):
    """The offers of a server, and the function that runs its lifespan."""

    tools: tuple[Tool, ...]
    resources: tuple[ResourceOffer, ...]
    templates: tuple[Template, ...]
    prompts: tuple[Prompt, ...]
    lifespan: Callable[[], AsyncIterator[None]]


def offers_of_server(pack: str, server: Any, access: GivenAccess) -> FastMcpOffers:
    """Return all offers of a FastMCP server; raises as `Pack.from_fastmcp` does."""
    connected = FastMcpServer(server)
    listed_offers = connected.read(_offers)
    other_names = [
        *(str(resource.uri) for resource in listed_offers.resources),
        *(_template(template) for template in listed_offers.templates),
        *(prompt.name for prompt in listed_offers.prompts),
    ]
    access.check([tool.name for tool in listed_offers.tools], other_names)
    templates: list[Template] = []
    for template in listed_offers.templates:
        templates.append(_template_offer(pack, connected, template, access, tuple(templates)))
    return FastMcpOffers(
        tuple(_tool(pack, connected, tool, access) for tool in listed_offers.tools),
        tuple(_resource(pack, connected, item, access) for item in listed_offers.resources),
        tuple(templates),
        tuple(_prompt(pack, connected, prompt, access) for prompt in listed_offers.prompts),
        connected.lifespan,
    )


async def _offers(client: Any) -> FastMcpLists:
    return FastMcpLists(
        await client.list_tools(),
        await client.list_resources(),
        await client.list_resource_templates(),
        await client.list_prompts(),
    )


def _tool(pack: str, server: FastMcpServer, tool: Any, access: GivenAccess) -> Tool:
    async def invoke(ctx: CallContext, arguments: Any) -> Outcome:
        answer = await server.answer(ctx, lambda client: client.call_tool_mcp(tool.name, arguments))
        content = tuple(map(_block, answer.content))
        if answer.is_error:
            text = " ".join(block["text"] for block in content if block["type"] == "text")
            raise ToolFailure("tool_error", text or "The tool failed.")
        structured = answer.structured_content
        return Outcome(content) if structured is None else Outcome(content, structured)

    hints = tool.annotations
    options = {
        "read_only": getattr(hints, "read_only_hint", None),
        "destructive": getattr(hints, "destructive_hint", None),
        "idempotent": getattr(hints, "idempotent_hint", None),
        "open_world": getattr(hints, "open_world_hint", None),
    }
    return tool_with_schema(
        pack,
        tool.name,
        description=_description(tool),
        input_schema=tool.input_schema,
        invoke=invoke,
        output_schema=tool.output_schema,
        title=tool.title,
        scopes=access.scopes_of(tool.name),
        approval=access.needs_approval(tool.name),
        **{hint: value for hint, value in options.items() if value is not None},
    )


def _resource(
    pack: str, server: FastMcpServer, resource: Any, access: GivenAccess
) -> ResourceOffer:
    uri = str(resource.uri)
    return ResourceOffer(
        uri=uri,
        size=resource.size,
        check=lambda _: _served(uri),
        **_document(pack, server, resource, access.scopes_of(uri)),
    )


def _template_offer(
    pack: str,
    server: FastMcpServer,
    definition: Any,
    access: GivenAccess,
    earlier: tuple[Template, ...],
) -> Template:
    template = UriTemplate(_template(definition))
    scopes = access.scopes_of(template.text)
    # FastMCP serves the first template that matches; the gate chooses the most literal one.
    hidden = [offer.template for offer in earlier if not offer.scopes <= scopes]

    def check(arguments: bytes) -> str:
        uri = msgspec.json.decode(arguments, type=Read).uri
        if template.match(uri) is None or any(
            hidden_template.match(uri) is not None for hidden_template in hidden
        ):
            raise ToolFailure("not_found", NO_DOCUMENT)
        return _served(uri)

    members = _document(pack, server, definition, scopes)
    offer = Template(template=template, check=check, **members)
    return msgspec.structs.replace(offer, completer=completer(offer, template.names, {}))


def _served(uri: str) -> str:
    """
    Return the URI; ToolFailure if FastMCP serves another, which may have other scopes.

    FastMCP reads URIs as pydantic spells them: `https://INTRA:443/x` as `https://intra/x`.
    """
    try:
        if str(AnyUrl(uri)) == uri:
            return uri
    except ValidationError:
        pass
    raise ToolFailure("not_found", NO_DOCUMENT)


def _document(
    pack: str, server: FastMcpServer, definition: Any, scopes: frozenset[str]
) -> dict[str, Any]:
    """Return the members that a resource and a template share; *definition* is FastMCP's form."""

    async def invoke(ctx: CallContext, uri: str) -> Outcome:
        answer = await server.answer(ctx, lambda client: client.read_resource_mcp(uri))
        return Outcome(tuple(map(_block, answer.contents)))

    name = NOT_IN_A_NAME.sub("_", definition.name.lower())[:64] or "resource"
    return {
        **common_members(
            "resource", name, pack, {"scopes": scopes, "title": definition.title or definition.name}
        ),
        "description": _description(definition),
        "mime_type": definition.mime_type,
        "invoke": invoke,
    }


def _prompt(pack: str, server: FastMcpServer, definition: Any, access: GivenAccess) -> Prompt:
    arguments = tuple(
        PromptArgument(argument.name, argument.title, argument.description, bool(argument.required))
        for argument in definition.arguments or ()
    )
    names = [argument.name for argument in arguments]

    async def invoke(ctx: CallContext, values: Mapping[str, str]) -> Outcome:
        answer = await server.answer(
            ctx, lambda client: client.get_prompt_mcp(definition.name, dict(values))
        )
        return Outcome(tuple(map(_block, answer.messages)))

    options: OfferOptions = {"scopes": access.scopes_of(definition.name), "title": definition.title}
    offer = Prompt(
        description=_description(definition),
        arguments=arguments,
        check=check_of(arguments),
        invoke=invoke,
        **common_members("prompt", definition.name, pack, options),
    )
    return msgspec.structs.replace(offer, completer=completer(offer, names, {}))


def _template(definition: Any) -> str:
    return WILDCARD.sub(r"{+\1}", definition.uri_template)


def _description(definition: Any) -> str:
    return str(definition.description or definition.title or definition.name)


def _block(model: Any) -> dict[str, Any]:
    """Return a model of the SDK in MCP's form."""
    block: dict[str, Any] = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return block


def _log_as_others() -> None:
    """Remove FastMCP's own handlers, because they write exceptions with the secrets in them."""
    log = logging.getLogger("fastmcp")
    log.handlers.clear()
    log.setLevel(logging.NOTSET)
    log.propagate = True


def _finished(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(work())).result()
