"""Replicas of a runner whose calls need people, over shared stores; time is moved by hand."""

import asyncio
import json
from collections import Counter
from typing import Any

import msgspec

from gatepost import CallContext, Outcome, Pack, ToolFailure
from gatepost.config.approvals import ApprovalsSettings
from gatepost.policy.approvals.approvers import IsRevoked, none_revoked
from gatepost.policy.approvals.notifications import (
    ApprovalChange,
    ApprovalListener,
    ApprovalNotifier,
    no_message,
)
from gatepost.policy.approvals.request import ApprovalRequest
from gatepost.policy.approvals.rules import plan_of
from gatepost.policy.approvals.service import ApprovalService
from gatepost.policy.approvals.stage import ApprovalStage
from gatepost.policy.idempotency.stage import IdempotencyStage, RunningCalls
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.memory.records import MemoryRecords
from gatepost.storage.memory.relay import MemoryRelay
from gatepost.storage.records import Records
from gatepost.storage.relay import Relay
from gatepost.tools.api import Call, Retry
from gatepost.tools.client import NOBODY, Client, SilentClient, Waiting
from gatepost.tools.redaction import Redaction
from gatepost.tools.registry import Registry
from gatepost.tools.runner import Runner
from gatepost.tools.secret import Secret
from gatepost.workspace import TenantWorkspace
from gatepost_authz.caller import TenantContext
from tests.support.endpoint import Clock, a_caller

WITHIN_S = 10
LIMIT_S = 30.0
ACME = "acme"
ALICE = a_caller()
BOB = a_caller(subject="bob", roles=frozenset({"approver"}), claims={"name": "Bob B."})
CAROL = a_caller(subject="carol", roles=frozenset({"approver"}))
ROBOT = a_caller(subject="robot", subject_kind="client", client_id="robot")


class Patient(SilentClient):
    """A client that can wait for as long as it takes."""

    def __init__(self) -> None:
        self.waits: list[Waiting] = []

    async def stand_by(self, waiting: Waiting) -> None:
        self.waits.append(waiting)
        await waiting.over()


class Deployment:
    """What the replicas share; ``effects`` counts what was done, by the argument `what`."""

    def __init__(
        self,
        *,
        records: Records | None = None,
        relay: Relay | None = None,
        revokes: IsRevoked = none_revoked,
        **settings: Any,
    ) -> None:
        self.clock = Clock()
        self.records, self.relay = records or MemoryRecords(), relay or MemoryRelay()
        self.keyring = KeyRing.ephemeral()
        self.revokes = revokes
        self.settings = msgspec.convert(settings, ApprovalsSettings)
        self.effects: Counter[str] = Counter()
        self.changes: list[ApprovalChange] = []
        self.message_of = no_message
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
    ) -> "Replica":
        notifier = ApprovalNotifier(
            self.relay, self.listen, *listeners, audit=audit, message_of=self.message_of
        )
        return Replica(self, notifier, is_revoked or self.is_revoked)

    def is_revoked(self, caller: TenantContext) -> bool:
        """See `IsRevoked`; a test may replace `revokes`."""
        return self.revokes(caller)

    async def listen(self, change: ApprovalChange) -> None:
        """See `ApprovalListener`."""
        self.changes.append(change)


class Replica:
    """One process, as far as its runner, its approvals and what it runs go."""

    def __init__(
        self, deployment: Deployment, notifier: ApprovalNotifier, is_revoked: IsRevoked
    ) -> None:
        tools = self.tools = deployment.pack.tools
        redaction = Redaction()
        self.deployment = deployment
        self.runs = RunningCalls(deployment.records, deployment.relay, clock=deployment.clock)
        self.service = ApprovalService(
            deployment.records,
            deployment.keyring,
            redaction,
            notifier,
            is_revoked=is_revoked,
            clock=deployment.clock,
        )
        settings = deployment.settings
        self.service.apply(settings, plan_of(settings, tools.values()), tools)
        limits = {"timeout_s": LIMIT_S, "max_result_bytes": 4_000_000}
        approval = ApprovalStage(
            self.service,
            self.runs,
            deployment.relay,
            redaction=redaction,
            page=lambda tenant, request_id: f"https://x.example/{tenant}/{request_id}",
            **limits,
        )
        self.stages = (IdempotencyStage(self.runs, **limits), approval)
        self.runner = Runner(
            Registry(tools.values()),
            context_for=_context,
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
            retry=None if key is None else Retry("idempotency", key),
            client=client,
            depth=depth,
        )
        async with asyncio.timeout(WITHIN_S):
            return await self.runner.run(call)

    async def asked(self, tool: str = "act", **rest: Any) -> ApprovalRequest:
        """The request that a call opened, which was answered as pending."""
        before = {one.id for one in await self.service.waiting(ACME)}
        outcome = await self.call(tool, **rest)
        assert kind(outcome) == "approval_pending", outcome
        [opened] = [one for one in await self.service.waiting(ACME) if one.id not in before]
        return opened


def _context(call: Call) -> CallContext:
    space = TenantWorkspace(-1, call.caller.tenant_id)
    return CallContext(caller=call.caller, request_id=call.request_id, workspace=space)


def kind(outcome: Outcome) -> str:
    """Of its failure; "" where there is none."""
    return "" if outcome.failure is None else outcome.failure.kind


def said(outcome: Outcome) -> str:
    """Its text, or its failure's message."""
    if outcome.failure is not None:
        return outcome.failure.message
    return "\n".join(str(block["text"]) for block in outcome.content)


AWAY = ToolFailure("upstream_unavailable", "Away.", retry_after=3)
