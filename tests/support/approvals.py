"""Replicas of a runner with approvals over shared stores, and offers of tenants."""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from gatepost import CallContext, Outcome, Pack, ToolFailure
from gatepost.config.approvals import ApprovalsSettings
from gatepost.policy.approvals.notifications import (
    ApprovalChange,
    ApprovalListener,
    ApprovalNotifier,
    MessageOf,
)
from gatepost.policy.approvals.policies import plan_of
from gatepost.policy.approvals.request import ApprovalRequest, IsRevoked, none_revoked
from gatepost.policy.approvals.service import ApprovalService
from gatepost.policy.approvals.stage import ApprovalStage
from gatepost.policy.idempotency.execution import RunningCalls
from gatepost.policy.idempotency.stage import IdempotencyStage
from gatepost.policy.script_reviews.service import ScriptReviews
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.memory.records import MemoryRecords
from gatepost.storage.records import Records
from gatepost.storage.shared_store import MemorySharedStore, SharedStore
from gatepost.tools.api import Call, Effects, IdempotencyKey, Offer, Origin, Tool
from gatepost.tools.client import NOBODY, Client, SilentClient, Waiting
from gatepost.tools.offers import Prompt, Template
from gatepost.tools.redaction import Redaction
from gatepost.tools.registry import Registry
from gatepost.tools.runner import Runner
from gatepost.tools.secret import Secret
from gatepost.tools.tenant_offers import Agent, OfferSource, TenantOffers
from gatepost_authz.caller import TenantContext
from tests.support.endpoint import a_caller
from tests.support.measuring import ManualClock
from tests.support.runners import LIMIT_S, WITHIN_S, context

ACME = "acme"


ALICE = a_caller()


BOB = a_caller(subject="bob", roles=frozenset({"approver"}), claims={"name": "Bob B."})


CAROL = a_caller(subject="carol", roles=frozenset({"approver"}))


ROBOT = a_caller(subject="robot", subject_kind="client", client_id="robot")


class WaitingClient(SilentClient):
    """A client that can wait for as long as it takes."""

    def __init__(self) -> None:
        self.waits: list[Waiting] = []

    async def stand_by(self, waiting: Waiting) -> None:
        self.waits.append(waiting)
        await waiting.over()


class ApprovalDeployment:
    """What the replicas share; ``effects`` counts what was done, by the argument `what`."""

    def __init__(
        self,
        *,
        records: Records | None = None,
        shared_store: SharedStore | None = None,
        revokes: IsRevoked = none_revoked,
        **settings: Any,
    ) -> None:
        self.clock = ManualClock()
        self.records, self.shared_store = (
            records or MemoryRecords(),
            shared_store or MemorySharedStore(),
        )
        self.keyring = KeyRing.ephemeral()
        self.revokes = revokes
        self.settings = msgspec.convert(settings, ApprovalsSettings)
        self.source: OfferSource | None = None
        self.effects: Counter[str] = Counter()
        self.changes: list[ApprovalChange] = []
        self.message_of: MessageOf | None = None
        self.raises: Exception | None = None
        self.gate: asyncio.Event | None = None
        self.entered = asyncio.Event()
        self.pack = Pack("house")
        self._make()

    def _make(self) -> None:
        async def act(ctx: CallContext, what: str = "", amount: int = 0) -> Outcome:
            """Have an effect."""
            self.effects[what] += 1
            self.entered.set()
            if self.gate is not None:
                await self.gate.wait()
            if self.raises is not None:
                raise self.raises
            told = f"{what} {amount} {self.effects[what]}"
            return Outcome(({"type": "text", "text": told},))

        async def whisper(ctx: CallContext, what: str, password: Secret) -> str:
            """Have an effect that takes a secret."""
            self.effects[what] += 1
            return f"{what} {await ctx.secret(password, field='password')}"

        tool = self.pack.tool
        tool(name="act", title="Act")(act)
        tool(name="put", idempotent=True)(act)
        tool(name="look", read_only=True)(act)
        tool(name="sign", approval=True, destructive=True)(act)
        tool(name="whisper")(whisper)

    def replica(
        self,
        *listeners: ApprovalListener,
        audit: ApprovalListener | None = None,
        is_revoked: IsRevoked | None = None,
    ) -> "ApprovalReplica":
        notifier = ApprovalNotifier(
            self.shared_store, self.listen, *listeners, audit=audit, message_of=self.message_of
        )
        return ApprovalReplica(self, notifier, is_revoked or self.is_revoked)

    def is_revoked(self, caller: TenantContext) -> bool:
        """Tell whether *caller* is revoked; a test may replace `revokes`."""
        return self.revokes(caller)

    async def listen(self, change: ApprovalChange) -> None:
        """Keep *change* in `changes`."""
        self.changes.append(change)


class ApprovalReplica:
    """One process, as far as its runner, its approvals and what it runs go."""

    def __init__(
        self, deployment: ApprovalDeployment, notifier: ApprovalNotifier, is_revoked: IsRevoked
    ) -> None:
        tools = self.tools = deployment.pack.tools
        redaction = Redaction()
        self.deployment = deployment
        self.runs = RunningCalls(
            deployment.records, deployment.shared_store, clock=deployment.clock
        )
        self.scripts = ScriptReviews(
            deployment.records, notifier, is_revoked=is_revoked, clock=deployment.clock
        )
        self.service = ApprovalService(
            deployment.records,
            deployment.keyring,
            redaction,
            notifier,
            self.scripts,
            is_revoked=is_revoked,
            clock=deployment.clock,
        )
        settings = deployment.settings
        registry = self.registry = Registry(tools.values(), source=deployment.source)
        beside = None if deployment.source is None else registry
        self.service.apply(settings, plan_of(settings, tools.values()), tools, beside)
        limits = {"timeout_s": LIMIT_S, "max_result_bytes": 4_000_000}
        approval = ApprovalStage(
            self.service,
            self.runs,
            deployment.shared_store,
            redaction=redaction,
            page=lambda tenant, request_id: f"https://x.example/{tenant}/{request_id}",
            **limits,
        )
        self.stages = (IdempotencyStage(self.runs, **limits), approval)
        self.runner = Runner(
            registry,
            context_for=context,
            stages=self.stages,
            clock=deployment.clock,
            **limits,
        )

    async def call(
        self,
        tool: str = "act",
        caller: TenantContext = ALICE,
        *,
        raw: bytes | None = None,
        key: str | None = None,
        client: Client = NOBODY,
        depth: int = 0,
        **arguments: Any,
    ) -> Outcome:
        """One call; bounded, since a test that hangs says nothing."""
        call = Call(
            caller=caller,
            name=tool,
            arguments=json.dumps(arguments or {"what": "a"}).encode() if raw is None else raw,
            request_id="request-1",
            idempotency_key=None if key is None else IdempotencyKey("idempotency", key),
            client=client,
            depth=depth,
        )
        async with asyncio.timeout(WITHIN_S):
            return await self.runner.run(call)

    async def asked(self, tool: str = "act", **rest: Any) -> ApprovalRequest:
        """Make a call that must be answered as pending; return its request."""
        before = {one.id for one in await self.service.waiting(ACME)}
        outcome = await self.call(tool, **rest)
        assert failure_kind(outcome) == "approval_pending", outcome
        [opened] = [one for one in await self.service.waiting(ACME) if one.id not in before]
        return opened


def failure_kind(outcome: Outcome) -> str:
    """Return the kind of its failure; "" where there is none."""
    return "" if outcome.failure is None else outcome.failure.kind


def text_of(outcome: Outcome) -> str:
    """Return its text, or its failure's message."""
    if outcome.failure is not None:
        return outcome.failure.message
    return "\n".join(str(block["text"]) for block in outcome.content)


AWAY = ToolFailure("upstream_unavailable", "Away.", retry_after=3)


CHANGES = Effects(read_only=False, destructive=True, idempotent=False, open_world=True)
"""What a tool counts as whose upstream is not trusted."""


ANY: Mapping[str, Any] = {"type": "object"}


class MemorySource:
    """Has what `put` gave it; loads a tenant's offers once, and fails while it is `down`."""

    def __init__(self) -> None:
        self._stored: dict[str, TenantOffers] = {}
        self._at_hand: dict[str, TenantOffers] = {}
        self.loads: list[str] = []
        self.down = False

    def put(
        self,
        tenant: str,
        *offers: Offer,
        agents: Mapping[str, Agent] | None = None,
        ttl_ms: int | None = None,
    ) -> TenantOffers:
        """Replace what the tenant has."""
        beside = self._stored[tenant] = TenantOffers(offers, agents=agents, ttl_ms=ttl_ms)
        if tenant in self._at_hand:
            self._at_hand[tenant] = beside
        return beside

    def drop(self) -> None:
        """Have nothing at hand any more, as after a restart."""
        self._at_hand.clear()

    def at_hand(self, caller: TenantContext) -> TenantOffers | None:
        """See `OfferSource`."""
        return self._at_hand.get(caller.tenant_id)

    async def load(self, caller: TenantContext) -> TenantOffers:
        """See `OfferSource`."""
        if self.down:
            raise StoreUnavailable("the store is down")
        tenant = caller.tenant_id
        self.loads.append(tenant)
        self._at_hand[tenant] = self._stored.get(tenant, TenantOffers())
        return self._at_hand[tenant]


class ToolUpstream:
    """One server of one tenant; each of its tools answers its *word*."""

    def __init__(self, name: str = "crm", *, server_id: str = "id-1", word: str = "") -> None:
        self.name, self.server_id, self.word = name, server_id, word or name
        self.calls: list[tuple[str, Any]] = []
        self.pack = Pack(f"mcp_{name}")

    @property
    def capability(self) -> str:
        return f"mcp:{self.server_id}"

    def tool(
        self,
        name: str,
        description: str = "Do something.",
        *,
        schema: Mapping[str, Any] = ANY,
        invoke: Callable[[CallContext, Any], Any] | None = None,
        **changes: Any,
    ) -> Tool:
        """A tool that notes its calls, and changes things unless told otherwise."""

        async def answer(ctx: CallContext, arguments: Any) -> Outcome:
            self.calls.append((ctx.caller.tenant_id, arguments))
            return Outcome(({"type": "text", "text": f"{self.word} {name}"},))

        served = f"mcp_{self.name}__{name}"
        made = Pack(self.pack.name).add(
            served, description=description, input_schema=schema, invoke=invoke or answer
        )
        return replace(
            made, **({"effects": CHANGES, "origin": self.origin(name, description)} | changes)
        )

    def origin(self, key: str, definition: str) -> Origin:
        digest = hashlib.sha256(definition.encode()).hexdigest()
        return Origin(server_id=self.server_id, server=self.name, key=key, digest=digest)

    def others(self) -> tuple[Offer, ...]:
        """What was added to its pack beside tools; completers and listers stay as they are."""
        kept = (self.pack.documents, self.pack.templates, self.pack.prompts)
        return tuple(self._own(one) for kind in kept for one in kind.values())

    def _own(self, offer: Offer) -> Offer:
        own = replace(offer, origin=self.origin(offer.key, offer.description))
        assert not isinstance(own, Prompt | Template) or own.origin is not None
        return own
