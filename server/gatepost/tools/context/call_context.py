"""The context of a call with the services of its tool, and the outcome that the tool answers."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar, Unpack

import msgspec

from gatepost.execution.failure import Failure, ToolFailure
from gatepost.secrets.names import REFERENCE_PREFIX
from gatepost.storage.entries import Entries
from gatepost.tools.context.client import LEVELS, NO_CLIENT, Client, LoggingLevel, lacking
from gatepost.tools.context.elicitation import (
    Elicitation,
    ElicitationRequest,
    ElicitationResult,
    InvalidAnswer,
    Root,
    Roots,
    UrlElicitation,
    put,
)
from gatepost.tools.context.idempotency_key import IdempotencyKey
from gatepost.tools.context.interfaces import (
    NO_SUBSCRIBERS,
    ChangeNotifier,
    Outbound,
    SealedStore,
    SignedHeaders,
    Workspace,
)
from gatepost.tools.context.sampling import Sampled, Sampling, SamplingMessage, SamplingOptions
from gatepost_authz.caller import TenantContext

T = TypeVar("T")
Settings = TypeVar("Settings")


class Outcome(msgspec.Struct, frozen=True):
    """
    The answer of a tool: content blocks in MCP's form (``{"type": "text", "text": …}``), a
    structured value when the tool declares one, or one Failure.

    ``structured`` is a JSON value, or one that is encoded already, as ``msgspec.Raw``.
    """

    content: tuple[Mapping[str, Any], ...] = ()
    structured: Any = msgspec.UNSET
    failure: Failure | None = None
    untrusted: str | None = None
    """
    The source of third-party text in the answer, such as "web page"; None if there is none. MCP
    clients find it in the result's `_meta`.
    """
    as_result: bool = False
    """
    Whether MCP clients get the structured value `{"result": …}`, made from ``structured`` or else
    from the text when the answer is written. Set for tools whose output schema has that form.
    """


Ability = Literal["elicitation", "elicitation.url", "sampling", "sampling.tools", "roots"]
"""The capabilities of a client that a tool can test for; "elicitation" alone means forms."""


class ToolServices(Protocol):
    """The services of all calls; one object serves all of them, so a call creates none."""

    def http(self, ctx: "CallContext") -> Outbound:
        """Return the HTTP client for this call."""

    def entries(self, ctx: "CallContext", subject: str) -> Entries:
        """Return the entries that the call's tenant stores for a subject."""

    def settings(self, kind: type[Settings]) -> Settings:
        """Return a pack's own configuration table by its type."""

    def sealed(self, ctx: "CallContext") -> SealedStore:
        """Return the store for confidential values of the call's tenant."""

    async def secret(
        self, ctx: "CallContext", name: str, field: str, *, to: str | None, fixed: bool
    ) -> str:
        """
        Return a secret of the call's tenant, which the argument *field* names.

        Raises ToolFailure if it does not exist or may not be sent to the URL *to*.
        """

    async def signed_headers(
        self, ctx: "CallContext", name: str, url: str, *, refused: SignedHeaders | None
    ) -> SignedHeaders:
        """
        Return the headers of a `[credentials]` table of the call's tenant for requests to *url*.

        Raises ToolFailure if the tenant or the URL's host is not the credential's.
        """

    async def call(
        self,
        ctx: "CallContext",
        name: str,
        arguments: Mapping[str, Any],
        *,
        is_passed_on: bool = False,
    ) -> Outcome:
        """
        Call another tool as the same caller, with all limits, approvals and records.

        With *is_passed_on* the answer is the caller's: an error of the protocol is raised with its
        code, and so is a capability that the client lacks.
        """


class CallContext(msgspec.Struct, frozen=True, kw_only=True):
    """
    The call as a tool sees it: who calls, for which tenant, and what it may use.

    **Tools that send requests to the client** (`ask`, `ask_url`, `sample`, `roots`, `ask_together`)
    run again. A client of 2026-07-28 gets the open requests as the answer to its call, and calls
    again with the answers: the tool then runs from its beginning, and requests that are answered
    return at once. So put effects after the last request. Older clients get the requests while the
    tool waits. If the client lacks the capability, the method raises MissingCapability, which
    Gatepost answers for you; `can` tells you beforehand.

    Each request has a key, by which its answer is found: "question-1", "question-2"… in the order
    of the requests; give keys if the order may differ. A form with another text is a new request.
    """

    caller: TenantContext
    request_id: str
    workspace: Workspace
    client: Client = NO_CLIENT
    """The client: its capabilities, and how to reach it; the methods below are shorter."""
    changes: ChangeNotifier = NO_SUBSCRIBERS
    requested_keys: list[str] = []
    """The keys of the requests that this run has sent so far."""
    correlation: str | None = None
    """The caller's id for the work that this call is part of; pass it on, but do not trust it."""
    depth: int = 0
    """How many calls of other tools led to this one."""
    lasting: bool = False
    """Whether it may run on after its caller's token has expired: it may become a task."""
    idempotency_key: IdempotencyKey | None = None
    """The caller's key for this call; another server gets one that is derived from it."""

    services: ToolServices | None = None
    """The services behind the methods below; None only if a function is called directly."""

    @property
    def http(self) -> Outbound:
        """Return the HTTP client of the tool, for public addresses and allowed hosts only."""
        return self._services.http(self)

    @property
    def _services(self) -> ToolServices:
        if self.services is None:
            raise RuntimeError("this context was made by hand and lends nothing")
        return self.services

    def entries(self, subject: str) -> Entries:
        """Return the tenant's durable entries of a subject."""
        return self._services.entries(self, subject)

    @property
    def sealed(self) -> SealedStore:
        """Return the store of data that the tenant's packs keep encrypted; see Sealed."""
        return self._services.sealed(self)

    def settings(self, kind: type[Settings]) -> Settings:
        """Return the pack's own settings, by their type."""
        return self._services.settings(kind)

    async def secret(
        self,
        text: str,
        *,
        field: str,
        literals: bool = True,
        to: str | None = None,
        fixed: bool = False,
    ) -> str:
        """
        Return the tenant's secret if the argument is `secret:NAME`, else the argument itself.

        *to* is the URL that it will be sent to: a secret goes to the hosts that it is bound to
        only, and one that is bound to none where the configuration or your code *fixed* the host.
        Without *to* a bound secret goes nowhere. Only for arguments that are declared as Secret.
        ToolFailure if there is no such secret, it may not go there, or *literals* are not taken.
        """
        if text.startswith(REFERENCE_PREFIX):
            name = text.removeprefix(REFERENCE_PREFIX)
            return await self._services.secret(self, name, field, to=to, fixed=fixed)
        if not literals:
            message = f"`{field}` takes no literal value here; name a secret: secret:NAME."
            raise ToolFailure("validation", message, field=field)
        return text

    async def signed_headers(
        self, name: str, url: str, *, refused: SignedHeaders | None = None
    ) -> SignedHeaders:
        """
        Return the headers of `[credentials.NAME]` for requests to *url*, other ones than *refused*.

        ToolFailure if the tenant may not use it, its `hosts` lack the URL's, or it cannot be had.
        """
        return await self._services.signed_headers(self, name, url, refused=refused)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> "Outcome":
        """Call another tool as this call's caller, at most four deep; failures are Outcomes."""
        return await self._services.call(self, name, arguments)

    def without_client(self) -> "CallContext":
        """Return this context for work that must not ask the client or tell it anything."""
        return msgspec.structs.replace(self, client=NO_CLIENT)

    def progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> Coroutine[Any, Any, None]:
        """
        Tell the client how far the work is; nothing happens when it did not ask to know.

        ``progress`` must grow with every report; ``total`` has the same unit (MCP, progress).
        """
        return self.client.progress(progress, total, message)

    async def detach(self) -> None:
        """
        Go on as a task, here and now; for tools that are declared with ``detaches``.

        Earlier requests go to the client as the answer of its call; later requests wait in the
        task. Nothing happens where the client takes no tasks: the call then runs to its end within
        its request.
        """
        await self.client.detach()

    async def log(self, level: LoggingLevel, data: Any, *, logger: str | None = None) -> None:
        """
        Send a log message to the client, if it asked for that level; *data* is any JSON value.

        The message leaves the server, so it must contain no secrets, no personal data, and nothing
        that helps an attacker. Messages that come too fast are dropped.
        """
        if level not in LEVELS:
            raise ValueError(f"{level!r} is no level; there are {', '.join(LEVELS)}")
        if not isinstance(logger, str | None):
            raise TypeError("the logger of a log message is text")  # other types are not searched
        client = self.client
        # Decided first: a message that is dropped need not be searched for secrets.
        if client.admits_log(level, data):
            await client.log(level, data, logger)
        elif client.wants_log(level):
            await asyncio.sleep(0)  # a loop that logs a million rows must let other tasks run

    def can(self, ability: Ability) -> bool:
        """Return whether the client has this capability."""
        feature, _, part = ability.partition(".")
        return not lacking(self.client.capabilities, {feature: {part: {}} if part else {}})

    async def ask(
        self, message: str, fields: type[T] | Mapping[str, Any], *, key: str | None = None
    ) -> ElicitationResult[T]:
        """
        Ask the person at the client to fill in a form; see Elicitation for *fields*.

        ToolFailure when the answer cannot be taken.
        """
        answered: ElicitationResult[T] = await self._ask(key, Elicitation(message, fields))
        return answered

    async def ask_url(
        self, message: str, url: str, *, key: str | None = None
    ) -> ElicitationResult[None]:
        """
        Ask the person to open a page of yours, for data that no form may ask for (UrlElicitation).

        "accept" says that the person agreed, not that anything was done there: look that up in the
        page's data, under this caller.
        """
        answered: ElicitationResult[None] = await self._ask(key, UrlElicitation(message, url))
        return answered

    async def sample(
        self,
        messages: str | Sequence[SamplingMessage],
        *,
        max_tokens: int,
        key: str | None = None,
        **options: Unpack[SamplingOptions],
    ) -> Sampled:
        """
        Let the client's own model answer; see Sampling.

        MCP is giving this up (2026-07-28 deprecates it): a model of your own does not depend on
        what clients can do.
        """
        sampled: Sampled = await self._ask(key, Sampling(messages, max_tokens, **options))
        return sampled

    async def roots(self, *, key: str | None = None) -> tuple[Root, ...]:
        """Return the folders that the client works in; their paths are on the client's machine."""
        roots: tuple[Root, ...] = await self._ask(key, Roots())
        return roots

    async def ask_together(self, requests: Mapping[str, ElicitationRequest[Any]]) -> dict[str, Any]:
        """
        Ask several things at once, which costs one round: Elicitation, UrlElicitation, Sampling and
        Roots by the tool's own keys; the answers come by the same keys.
        """
        if twice := requests.keys() & set(self.requested_keys):
            raise ValueError(f"{', '.join(sorted(twice))}: a key is for one request of a run")
        self.requested_keys.extend(requests)
        try:
            return await put(self.client, requests)
        except InvalidAnswer as described_error:
            raise ToolFailure(
                "validation", f"The answer cannot be used: {described_error}."
            ) from None

    async def _ask(self, key: str | None, request: ElicitationRequest[Any]) -> Any:
        key = key or f"question-{len(self.requested_keys) + 1}"
        return (await self.ask_together({key: request}))[key]
