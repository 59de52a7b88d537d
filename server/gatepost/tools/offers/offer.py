"""Offers and tools, the calls of them, and the types that their authors see."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, Literal, TypeVar

import msgspec

from gatepost.execution.failure import Failure as Failure
from gatepost.execution.failure import FailureKind as FailureKind
from gatepost.execution.failure import ToolFailure as ToolFailure
from gatepost.tools.context.call_context import CallContext as CallContext
from gatepost.tools.context.call_context import Outcome as Outcome
from gatepost.tools.context.client import NO_CLIENT, Client
from gatepost.tools.context.content import Icon
from gatepost.tools.context.idempotency_key import IdempotencyKey as IdempotencyKey
from gatepost.tools.offers.effects import Annotations as Annotations
from gatepost.tools.offers.effects import Effects as Effects
from gatepost.tools.offers.effects import FileWrite
from gatepost.tools.offers.offer_origin import Origin as Origin
from gatepost.tools.schemas.header_arguments import Routed
from gatepost.tools.schemas.secret import SecretPath
from gatepost_authz.caller import TenantContext

T = TypeVar("T")

OFFER_NAME = re.compile(r"[a-z0-9_]{1,64}", re.ASCII)
"""The grammar of names of tools, prompts and packs, which is safe in headers, metrics and URLs."""

OfferKind = Literal["tool", "document", "prompt", "completion", "listing", "skill"]
"""The kind of offer: "completion" suggests arguments, "listing" lists resources."""

WORDS: Mapping[OfferKind, str] = {
    "tool": "tool",
    "document": "resource",
    "prompt": "prompt",
    "completion": "completion",
    "listing": "list",
    "skill": "skill",
}
"""Each kind as the protocol and its users call it."""
FAILURE_EVENTS: Mapping[OfferKind, str] = {
    "tool": "tool_failed",
    "document": "document_failed",
    "prompt": "prompt_failed",
    "completion": "completion_failed",
    "listing": "listing_failed",
    "skill": "skill_failed",
}
"""The log event of each kind for a call that raises an unexpected exception."""
NOT_AUDITED: frozenset[OfferKind] = frozenset({"completion", "listing"})
"""Kinds without audit records: they only read, and clients call them with every keystroke."""


TaskSupport = Literal["forbidden", "optional", "required"]
Invoke = Callable[[CallContext, Any], Awaitable[Outcome]]


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """
    Anything that a caller may use: its name, who may use it, and how it runs.

    ``check`` turns raw JSON arguments (bytes of an object) into what ``invoke`` takes, or raises
    ToolFailure("validation"). Both are made once, when the offer is registered. ``timeout_s`` wins
    over the configured default.
    """

    kind: ClassVar[OfferKind]

    name: str
    description: str
    check: Callable[[bytes], Any]
    invoke: Invoke
    title: str | None = None
    icons: tuple[Icon, ...] = ()
    scopes: frozenset[str] = frozenset()
    acr_values: tuple[str, ...] = ()
    max_age_s: int | None = None
    timeout_s: float | None = None
    pack: str = ""
    reads_texts: bool = False
    """Whether the check of arguments may parse the content of a text, such as JSON."""
    secret_arguments: tuple[SecretPath, ...] = ()
    """The places of secrets in its arguments; their values appear in no message, log or record."""
    forwards: bool = False
    """
    Whether its arguments contain those of another call. Its secrets are unknown, so no record has
    them.
    """
    origin: Origin | None = None
    """The upstream that defines it; None: a pack of this server."""
    meta: Mapping[str, Any] = {}
    """The `_meta` of its definition, such as the user interface of an MCP App."""

    @property
    def key(self) -> str:
        """Return the key that identifies it among its kind."""
        return self.name


class Tool(Offer, frozen=True, kw_only=True):
    """One tool, wherever it comes from: the fields that only tools have."""

    kind = "tool"

    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None = None
    annotations: Annotations = Annotations()
    effects: Effects = Effects()
    """Equal to the annotations, unless the author states them separately."""
    routed: tuple[Routed, ...] = ()
    task_support: TaskSupport = "forbidden"
    """Whether a call may, or for MCP clients must, become a task."""
    detaches: bool = False
    """Whether it decides itself when its call becomes a task; default: before the tool starts."""
    read_only_form: Callable[[Any], bool] | None = None
    """Returns whether a call only reads, if that depends on its (checked) arguments."""
    approval: bool = False
    """Whether every call of it needs an approval, unless the configuration says otherwise."""
    writes: FileWrite | None = None
    """The file that a call writes, for approvers."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """
    One use of one offer, before anything about it is decided; ``arguments`` is raw JSON.

    ``name`` identifies the offer among its kind: a tool's or a prompt's name, or a resource's URI.
    """

    caller: TenantContext
    name: str
    arguments: bytes
    request_id: str
    kind: OfferKind = "tool"
    client: Client = NO_CLIENT
    idempotency_key: IdempotencyKey | None = None
    lasting: bool = False
    """Whether it may continue after its caller's token has expired; the waiting code handles it."""
    correlation: str | None = None
    """The caller's own id for the work that this call is part of, for logs and further calls."""
    depth: int = 0
    """How many calls of other tools led to this one."""
    peer: str = ""
    """The address that it comes from, for the record only; tools do not learn it."""
    resumes: bool = False
    """Whether an earlier run of its task began it, so that it was approved then."""
