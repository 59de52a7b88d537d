"""Replicas of a runner over shared stores, with idempotency keys or with approvals."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from gatepost import CallContext, Outcome, Pack, ToolFailure
from gatepost.config.approvals import ApprovalsSettings
from gatepost.policy.approvals.approval_request import ApprovalRequest
from gatepost.policy.approvals.notifications import (
    ApprovalChange,
    ApprovalListener,
    ApprovalNotifier,
    MessageOf,
)
from gatepost.policy.approvals.policies import IsRevoked, none_revoked
from gatepost.policy.approvals.service import ApprovalService
from gatepost.policy.approvals.stage import ApprovalStage
from gatepost.policy.idempotency.execution import RunningCalls
from gatepost.policy.idempotency.idempotency_record import DAY_S
from gatepost.policy.idempotency.stage import IdempotencyStage
from gatepost.policy.script_reviews.service import ScriptReviews
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.memory.records import MemoryRecords
from gatepost.storage.records import Records
from gatepost.storage.shared_store import MemorySharedStore, SharedStore
from gatepost.tools.authoring.pack import ToolOptions
from gatepost.tools.calls.redaction import Redaction
from gatepost.tools.calls.registry import Registry
from gatepost.tools.calls.runner import Runner
from gatepost.tools.calls.stage import Stage
from gatepost.tools.context.client import NO_CLIENT, Client, InputRequest, SilentClient, Waiting
from gatepost.tools.offers.offer import Call, IdempotencyKey
from gatepost.tools.offers.tenant_offers import OfferSource
from gatepost.tools.schemas.secret import Secret
from gatepost.workspace import TenantWorkspace
from gatepost_authz.caller import TenantContext
from tests.support.endpoint import a_caller
from tests.support.measuring import ManualClock

WITHIN_S = 10


LIMIT_S = 30.0


class IdempotencyDeployment:
    """
    Several replicas; ``effects`` counts what was done, by the tool's argument `what`.

    A tool named `…_held` waits for ``gate``, and says by ``entered`` that it runs.
    """

    def __init__(
        self,
        *,
        records: Records | None = None,
        shared_store: SharedStore | None = None,
        stages: Sequence[Stage] = (),
        limit_s: float = LIMIT_S,
        max_result_bytes: int = 4_000_000,
    ) -> None:
        self.clock = ManualClock()
        self.records = records or MemoryRecords()
        self.shared_store = shared_store or MemorySharedStore()
        self.effects: Counter[str] = Counter()
        self.gate = asyncio.Event()
        self.entered = asyncio.Event()
        self.raises: BaseException | None = None
        self.answers: Outcome | None = None
        self.pack = Pack("house")
        self.stages, self.limit_s, self.max_result_bytes = stages, limit_s, max_result_bytes
        kinds: dict[str, ToolOptions] = {
            "act": {},
            "put": {"idempotent": True},
            "look": {"read_only": True},
            "form": {"read_only_form": lambda arguments: arguments["what"].startswith("GET")},
        }
        for name, options in kinds.items():
            self._make(name, options)

    def _make(self, name: str, options: ToolOptions) -> None:
        async def act(ctx: CallContext, what: str = "", number: float = 0) -> Outcome:
            return await self._act(what, held=False)

        async def held(ctx: CallContext, what: str = "", number: float = 0) -> Outcome:
            return await self._act(what, held=True)

        for function, tool in ((act, name), (held, f"{name}_held")):
            function.__doc__ = "Have an effect."
            self.pack.tool(name=tool, **options)(function)

    async def _act(self, what: str, *, held: bool) -> Outcome:
        self.effects[what] += 1
        if held:
            self.entered.set()
            await self.gate.wait()
        if self.raises is not None:
            raise self.raises
        if self.answers is not None:
            return self.answers
        return Outcome(({"type": "text", "text": f"{what} {self.effects[what]}"},))

    def replica(self, kept_s: float = DAY_S) -> "IdempotencyReplica":
        return IdempotencyReplica(self, kept_s)


class IdempotencyReplica:
    """One process, as far as its runner and what it knows of idempotency keys go."""

    def __init__(self, deployment: IdempotencyDeployment, kept_s: float = DAY_S) -> None:
        self.runs = RunningCalls(
            deployment.records, deployment.shared_store, clock=deployment.clock
        )
        limit_s, most = deployment.limit_s, deployment.max_result_bytes
        once = IdempotencyStage(self.runs, timeout_s=limit_s, max_result_bytes=most, kept_s=kept_s)
        self.runner = Runner(
            Registry(deployment.pack.tools.values()),
            context_for=context,
            stages=(once, *deployment.stages),
            timeout_s=limit_s,
            max_result_bytes=most,
            clock=deployment.clock,
        )

    async def call(
        self,
        key: str | None = "k",
        *,
        tool: str = "act",
        arguments: bytes = b'{"what":"a"}',
        kind: Any = "idempotency",
        **caller: Any,
    ) -> Outcome:
        """Make one call; bounded, since a test that hangs says nothing."""
        call = Call(
            caller=a_caller(**caller),
            name=tool,
            arguments=arguments,
            request_id="request-1",
            idempotency_key=None if key is None else IdempotencyKey(kind, key),
        )
        async with asyncio.timeout(WITHIN_S):
            return await self.runner.run(call)


def context(call: Call) -> CallContext:
    space = TenantWorkspace(-1, call.caller.tenant_id)
    return CallContext(
        caller=call.caller, request_id=call.request_id, workspace=space, client=call.client
    )


def text_or_failure(outcome: Outcome) -> str:
    """
    Return the text of an answer, or the kind of a failure; `+` marks one with a time to retry.
    """
    if outcome.failure is not None:
        return f"{outcome.failure.kind}{'+' if outcome.failure.retry_after else ''}"
    return str(outcome.content[0]["text"])


async def run_ready(number: int = 20) -> None:
    """Let every task that is ready run."""
    for _ in range(number):
        await asyncio.sleep(0)


async def run_until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Let tasks run until *condition* holds, for a bounded time."""
    async with asyncio.timeout(WITHIN_S):
        while not await condition():
            await run_ready(1)


FORM_REQUESTS = {"q": InputRequest("elicitation/create", {"message": "?"})}


ACME = "acme"


ALICE = a_caller()


BOB = a_caller(subject="bob", roles=frozenset({"approver"}), claims={"name": "Bob B."})


CAROL = a_caller(subject="carol", roles=frozenset({"approver"}))


ROBOT = a_caller(subject="robot", subject_kind="client", client_id="robot")


class WaitingClient(SilentClient):
    """A client that can wait for as long as it takes."""

    def __init__(self) -> None:
        self.waits: list[Waiting] = []

    async def wait_for_decision(self, waiting: Waiting) -> None:
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
            message = f"{what} {amount} {self.effects[what]}"
            return Outcome(({"type": "text", "text": message},))

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
        self.service.apply(settings, tools, beside)
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
        client: Client = NO_CLIENT,
        depth: int = 0,
        **arguments: Any,
    ) -> Outcome:
        """Make one call; bounded, since a test that hangs says nothing."""
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


UNAVAILABLE_FAILURE = ToolFailure("upstream_unavailable", "Away.", retry_after=3)
