"""All that a tool author sees: the context of a call, and what a tool answers."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, Literal

import msgspec

from gatepost.tools.client import NOBODY, Client
from gatepost.tools.content import Icon, Relevance
from gatepost.tools.surroundings import UNHEARD, Changes, Workspace
from gatepost.tools.template import UriTemplate
from gatepost_authz.caller import TenantContext

FailureKind = Literal[
    "validation",
    "not_found",
    "denied",
    "conflict",
    "rate_limit",
    "upstream_unavailable",
    "timeout",
    "internal",
]


Kind = Literal["tool", "document", "prompt", "completion", "listing"]
"""What a call uses: a tool, a resource, a prompt, suggestions for one of these, or a lister."""

WORDS: Mapping[Kind, str] = {
    "tool": "tool",
    "document": "resource",
    "prompt": "prompt",
    "completion": "completion",
    "listing": "list",
}
"""Each kind as the protocol and its users call it."""


class Failure(msgspec.Struct, frozen=True):
    """
    A tool did not do what was asked; each protocol projects the kind onto its own wire.

    ``message`` is written for the model: what was wrong and what would work. ``field`` names the
    argument at fault; ``retry_after`` is in seconds.
    """

    kind: FailureKind
    message: str
    field: str | None = None
    retry_after: float | None = None


class ToolFailure(Exception):
    """Raised by a tool to answer a Failure that the model can act on."""

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        *,
        field: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.failure = Failure(kind, message, field, retry_after)


class Outcome(msgspec.Struct, frozen=True):
    """
    What a tool answered: content blocks in MCP's form (``{"type": "text", "text": …}``), a
    structured value when the tool declares one, or one Failure.

    ``structured`` is a JSON value, or the same already encoded as ``msgspec.Raw``, so that a large
    answer is encoded once however many hands it passes through.
    """

    content: tuple[Mapping[str, Any], ...] = ()
    structured: Any = msgspec.UNSET
    failure: Failure | None = None


class CallContext(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The call as a tool sees it: who calls, for which tenant, and what it may use."""

    caller: TenantContext
    request_id: str
    workspace: Workspace
    client: Client = NOBODY
    """What the agent's side can do, be told and be asked; the methods below are shorter."""
    changes: Changes = UNHEARD

    async def progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        """
        Tell the client how far the work is; nothing happens when it did not ask to know.

        ``progress`` must grow with every report; ``total`` has the same unit (MCP, progress).
        """
        await self.client.progress(progress, total, message)


class Annotations(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """MCP's hints about a tool (schema ToolAnnotations); they bind nobody."""

    title: str | None = None
    read_only_hint: bool | None = None
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None


class Routed(msgspec.Struct, frozen=True):
    """An argument that the client repeats as ``Mcp-Param-<header>`` (``x-mcp-header``)."""

    path: tuple[str, ...]
    """The property names that lead to it from the root of the arguments."""
    header: str
    """The header's last part, as declared."""
    type: Literal["string", "integer", "boolean"]


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """
    Whatever a caller may use: what it is called, who may use it, and how it runs.

    ``check`` turns raw JSON arguments (bytes of an object) into what ``invoke`` takes, or raises
    ToolFailure("validation"); both are made once, when the offer is registered. ``timeout_s`` wins
    over the configured default.
    """

    kind: ClassVar[Kind]

    name: str
    description: str
    check: Callable[[bytes], Any]
    invoke: Callable[[CallContext, Any], Awaitable[Outcome]]
    title: str | None = None
    icons: tuple[Icon, ...] = ()
    scopes: frozenset[str] = frozenset()
    acr_values: tuple[str, ...] = ()
    max_age_s: int | None = None
    timeout_s: float | None = None
    pack: str = ""

    @property
    def key(self) -> str:
        """What finds it among its kind."""
        return self.name


class Tool(Offer, frozen=True, kw_only=True):
    """One tool, wherever it comes from: what clients see of it, beside what every offer has."""

    kind = "tool"

    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None = None
    annotations: Annotations = Annotations()
    routed: tuple[Routed, ...] = ()


class Completer(Offer, frozen=True, kw_only=True):
    """
    Suggestions for the arguments of a prompt, or the variables of a template.

    Its arguments are ``argument`` (a name), ``value`` (what is typed so far) and ``given`` (the
    others, by name); it answers ``values``, ``total`` and ``hasMore``.
    """

    kind = "completion"

    arguments: frozenset[str]
    """The names that can be asked about."""
    suggests: bool = False
    """Whether there are suggestions for any of them."""


class Lister(Offer, frozen=True, kw_only=True):
    """Which resources of a template there are for a caller; answers one block for each."""

    kind = "listing"


class Document(Offer, frozen=True, kw_only=True):
    """
    A resource of the protocol. Its one argument is ``uri``, and it answers blocks of contents.

    ``size`` is in bytes; ``ttl_s`` says how long a client may keep what it read.
    """

    kind = "document"

    uri: str
    mime_type: str | None = None
    size: int | None = None
    relevance: Relevance = Relevance()
    ttl_s: float = 0

    @property
    def key(self) -> str:
        """What finds it among its kind."""
        return self.uri


class Template(Offer, frozen=True, kw_only=True):
    """Resources that have one form of URI and one function; as Document otherwise."""

    kind = "document"

    template: UriTemplate
    mime_type: str | None = None
    relevance: Relevance = Relevance()
    ttl_s: float = 0
    lister: Lister | None = None
    completer: Completer | None = None

    @property
    def key(self) -> str:
        """What finds it among its kind."""
        return self.template.text


class Argument(msgspec.Struct, frozen=True, omit_defaults=True):
    """One argument of a prompt, always a text (schema PromptArgument)."""

    name: str
    title: str | None = None
    description: str | None = None
    required: bool = False


class Prompt(Offer, frozen=True, kw_only=True):
    """Messages that a person starts from; it answers one block for each."""

    kind = "prompt"

    arguments: tuple[Argument, ...] = ()
    completer: Completer | None = None


class Retry(msgspec.Struct, frozen=True):
    """
    How a client marks a call as the same one again.

    An ``idempotency`` key is one call's for a day; a ``correlation`` id is an episode's, so it
    counts only while the first call runs and shortly after (design, decision 16).
    """

    kind: Literal["idempotency", "correlation"]
    key: str


class Call(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """
    One use of one offer, before anything about it is decided; ``arguments`` is raw JSON.

    ``tool`` is what finds it among its kind: a tool's or a prompt's name, or a resource's URI.
    """

    caller: TenantContext
    tool: str
    arguments: bytes
    request_id: str
    kind: Kind = "tool"
    client: Client = NOBODY
    retry: Retry | None = None
