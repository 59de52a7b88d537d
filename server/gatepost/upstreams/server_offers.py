"""Turn an upstream's catalogue into offers, with the scopes and effects of its registration."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Protocol

import msgspec

from gatepost.tools.authoring.prompt import check_of
from gatepost.tools.authoring.resource import NO_DOCUMENT, Read
from gatepost.tools.authoring.suggestions import completer
from gatepost.tools.context.content import Icon, Relevance
from gatepost.tools.offers.offer import (
    Annotations,
    Effects,
    Invoke,
    Offer,
    Origin,
    TaskSupport,
    Tool,
    ToolFailure,
)
from gatepost.tools.offers.offer_kinds import (
    Completer,
    Prompt,
    PromptArgument,
    ResourceOffer,
    Template,
)
from gatepost.tools.offers.tenant_offers import UPSTREAM_SEPARATOR
from gatepost.tools.offers.uri_template import UriTemplate, is_uri
from gatepost.tools.schemas.header_arguments import routed_arguments
from gatepost.tools.schemas.secret import secret_arguments
from gatepost.upstreams.catalogue import Catalogue, Definition, LeftOut
from gatepost.upstreams.cleaning import visible_line
from gatepost.upstreams.compiled_schemas import compiled
from gatepost.upstreams.offered_names import offered_name, server_scope, tool_prefix
from gatepost.upstreams.upstream_server import UpstreamServer
from gatepost_authz.challenge import words

UNTRUSTED_EFFECTS = Effects(read_only=False, destructive=True, idempotent=False, open_world=True)
"""The possible effects of a tool of an untrusted upstream, whatever its annotations say."""
GRACE_S = 1.0
"""
How much later a call ends here than at its upstream, because the upstream's failure says more and
is counted.
"""
TASKS_EXTENSION = "io.modelcontextprotocol/tasks"


class OfferCalls(Protocol):
    """
    Creates the functions that run when an offer is used; `gatepost.upstreams.calls` implements it.
    """

    def tool(self, server: UpstreamServer, definition: Definition) -> Invoke:
        """Return what calls a tool; it gets the checked arguments, a JSON object."""

    def resource(self, server: UpstreamServer, definition: Definition) -> Invoke:
        """Return what reads a resource; it gets the URI."""

    def template(self, server: UpstreamServer, definition: Definition) -> Invoke:
        """Return what reads a resource of a template; it gets the URI, which matches."""

    def prompt(self, server: UpstreamServer, definition: Definition) -> Invoke:
        """Return what gets a prompt; it gets the arguments, texts by name."""

    def completion(self, server: UpstreamServer, definition: Definition) -> Invoke:
        """Return what completes an argument; it gets a `CompletionRequest`."""


class ServerOffers(msgspec.Struct, frozen=True):
    """The offers of one server, and the definitions that are left out of them."""

    server: UpstreamServer
    offers: tuple[Offer, ...]
    left_out: tuple[LeftOut, ...]


def server_offers(server: UpstreamServer, catalogue: Catalogue, calls: OfferCalls) -> ServerOffers:
    """Return the offers of a server; it takes time, so call it in a thread."""
    builder = _ServerOfferBuilder(server, catalogue, calls)
    offers: list[Offer] = []
    left_out: list[LeftOut] = []
    for definition in catalogue.definitions:
        if definition.section == "tools" and not is_chosen(definition.key, server.tools):
            continue
        try:
            offers.append(builder.offer(definition))
        except (ValueError, TypeError, RecursionError) as problem:
            reason = f"it cannot be offered: {visible_line(str(problem))}"
            left_out.append(
                LeftOut(section=definition.section, key=visible_line(definition.key), reason=reason)
            )
    return ServerOffers(server, tuple(offers), tuple(left_out))


def is_chosen(key: str, patterns: Iterable[str]) -> bool:
    """Return whether patterns offer a tool; `!` excludes, and exclusions alone offer the rest."""
    included = [pattern for pattern in patterns if not pattern.startswith("!")]
    if any(fnmatchcase(key, pattern[1:]) for pattern in patterns if pattern.startswith("!")):
        return False
    return not included or any(fnmatchcase(key, pattern) for pattern in included)


def scopes_of(server: UpstreamServer, key: str) -> frozenset[str]:
    """Return the scopes of all patterns that match a key, or `mcp:{server}` if none does."""
    matching = [scopes for pattern, scopes in server.scopes.items() if fnmatchcase(key, pattern)]
    unmatched = frozenset({server_scope(server.name)})
    needed = frozenset[str]().union(*matching) if matching else unmatched
    words(needed)  # refuses values that a challenge cannot contain
    return needed


def effects_of(annotations: Annotations) -> Effects:
    """Return the effects of a trusted tool; a missing annotation has MCP's default."""
    read_only = annotations.read_only_hint is True
    return Effects(
        read_only=read_only,
        destructive=not read_only and annotations.destructive_hint is not False,
        idempotent=annotations.idempotent_hint is True,
        open_world=annotations.open_world_hint is not False,
    )


def task_support(definition: Definition, capabilities: Mapping[str, Any]) -> TaskSupport:
    """Return whether a tool can be a task at the upstream, which must declare tasks itself."""
    is_maker = makes_tasks(capabilities)
    support = definition.value.get("execution", {}).get("taskSupport")
    if support == "required" and (is_maker or "tasks" in capabilities):
        return "required"
    if is_maker or (support == "optional" and "tasks" in capabilities):
        return "optional"
    return "forbidden"


def makes_tasks(capabilities: Mapping[str, Any]) -> bool:
    """Return whether the server decides itself, for each call, if it becomes a task."""
    extensions = capabilities.get("extensions")
    return isinstance(extensions, Mapping) and TASKS_EXTENSION in extensions


def place_of(server: UpstreamServer) -> str:
    """Return a digest of a registration and of where its server is: its URL, or its program."""
    program = server.program
    command = None if program is None else (program.command, program.args)
    identity = msgspec.json.encode((server.id, server.url, command))
    return hashlib.sha256(identity).hexdigest()[:16]


class _ServerOfferBuilder:
    def __init__(self, server: UpstreamServer, catalogue: Catalogue, calls: OfferCalls) -> None:
        self._server, self._calls = server, calls
        self._capabilities = catalogue.capabilities
        self._completes = "completions" in catalogue.capabilities
        self._location = place_of(server)
        self._pack = tool_prefix(server.name).removesuffix(UPSTREAM_SEPARATOR)

    def offer(self, definition: Definition) -> Offer:
        """Return the offer of a definition; raises ValueError or TypeError."""
        if definition.section == "tools":
            return self._tool(definition)
        if definition.section == "prompts":
            return self._prompt(definition)
        if definition.section == "resources":
            return self._resource(definition)
        return self._template(definition)

    def _common(self, definition: Definition) -> dict[str, Any]:
        value, server = definition.value, self._server
        return {
            "description": value.get("description", ""),
            "title": value.get("title"),
            "icons": tuple(msgspec.convert(value.get("icons", []), list[Icon])),
            "scopes": scopes_of(server, definition.key),
            "timeout_s": server.timeout_s + GRACE_S,
            "pack": self._pack,
            "origin": Origin(
                server.id, server.name, definition.key, definition.digest, self._location
            ),
            "meta": value.get("_meta", {}),
        }

    def _tool(self, definition: Definition) -> Tool:
        value, server = definition.value, self._server
        schema = value["inputSchema"]
        annotations = msgspec.convert(value.get("annotations", {}), Annotations)
        return Tool(
            name=offered_name(server.name, server.renames.get(definition.key, definition.key)),
            check=compiled(schema),
            invoke=self._calls.tool(server, definition),
            input_schema=schema,
            output_schema=value.get("outputSchema"),
            annotations=annotations,
            effects=effects_of(annotations) if server.trusted else UNTRUSTED_EFFECTS,
            routed=routed_arguments(schema),
            # An upstream must not hide arguments from approvers and the record.
            secret_arguments=secret_arguments(schema) if server.trusted else (),
            task_support=task_support(definition, self._capabilities),
            detaches=makes_tasks(self._capabilities),
            **self._common(definition),
        )

    def _prompt(self, definition: Definition) -> Prompt:
        arguments = tuple(
            msgspec.convert(argument, PromptArgument) for argument in definition.value["arguments"]
        )
        offer = Prompt(
            name=offered_name(self._server.name, definition.key),
            arguments=arguments,
            check=check_of(arguments),
            invoke=self._calls.prompt(self._server, definition),
            **self._common(definition),
        )
        prompt_completer = self._completer(
            offer, definition, [argument.name for argument in arguments]
        )
        return msgspec.structs.replace(offer, completer=prompt_completer)

    def _resource(self, definition: Definition) -> ResourceOffer:
        if not is_uri(uri := definition.key):
            raise ValueError("its URI is not valid")
        value = definition.value
        size = value.get("size")
        return ResourceOffer(
            name=value["name"],
            uri=uri,
            size=size if isinstance(size, int) and size >= 0 else None,
            mime_type=value.get("mimeType"),
            relevance=msgspec.convert(value.get("annotations", {}), Relevance),
            check=lambda _: uri,
            invoke=self._calls.resource(self._server, definition),
            **self._common(definition),
        )

    def _template(self, definition: Definition) -> Template:
        template, value = UriTemplate(definition.key), definition.value
        offer = Template(
            name=value["name"],
            template=template,
            mime_type=value.get("mimeType"),
            relevance=msgspec.convert(value.get("annotations", {}), Relevance),
            check=_template_check(template),
            invoke=self._calls.template(self._server, definition),
            **self._common(definition),
        )
        template_completer = self._completer(offer, definition, template.names)
        return msgspec.structs.replace(offer, completer=template_completer)

    def _completer(
        self, offer: Prompt | Template, definition: Definition, arguments: Iterable[str]
    ) -> Completer:
        completing = msgspec.structs.replace(completer(offer, arguments, {}), origin=offer.origin)
        if not self._completes:
            return completing
        invoke = self._calls.completion(self._server, definition)
        return msgspec.structs.replace(completing, suggests=True, invoke=invoke)


def _template_check(template: UriTemplate) -> Callable[[bytes], str]:
    def check(raw: bytes) -> str:
        uri = msgspec.json.decode(raw, type=Read).uri
        if template.match(uri) is None:
            raise ToolFailure("not_found", NO_DOCUMENT)
        return uri

    return check
