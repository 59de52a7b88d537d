"""All that a tool author sees: the context of a call, and what a tool answers."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

import msgspec

from gatepost.tools.client import NOBODY, Client
from gatepost.tools.surroundings import UNHEARD, Changes, Workspace
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


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """
    One tool, wherever it comes from: what clients see of it, who may call it, and how it runs.

    ``check`` turns raw JSON arguments (bytes of an object) into what ``invoke`` takes, or raises
    ToolFailure("validation"); both are made once, when the tool is registered. ``timeout_s`` wins
    over the configured default.
    """

    name: str
    description: str
    input_schema: Mapping[str, Any]
    check: Callable[[bytes], Any]
    invoke: Callable[[CallContext, Any], Awaitable[Outcome]]
    output_schema: Mapping[str, Any] | None = None
    title: str | None = None
    annotations: Annotations = Annotations()
    scopes: frozenset[str] = frozenset()
    acr_values: tuple[str, ...] = ()
    max_age_s: int | None = None
    timeout_s: float | None = None
    pack: str = ""
    routed: tuple[Routed, ...] = ()
    read_only_form: Callable[[Any], bool] | None = None
    """Whether a call with these checked arguments only reads, where that depends on them."""


class Retry(msgspec.Struct, frozen=True):
    """
    How a client marks a call as the same one again.

    An ``idempotency`` key is one call's for a day; a ``correlation`` id is an episode's, so it
    counts only while the first call runs and shortly after (design, decision 16).
    """

    kind: Literal["idempotency", "correlation"]
    key: str


class Call(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One call of one tool, before anything about it is decided; ``arguments`` is raw JSON."""

    caller: TenantContext
    tool: str
    arguments: bytes
    request_id: str
    client: Client = NOBODY
    retry: Retry | None = None
