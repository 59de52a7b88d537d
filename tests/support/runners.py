"""Replicas of a runner with idempotency keys, and a runner with limits."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from gatepost import CallContext, Outcome, Pack, ToolFailure
from gatepost.policy.idempotency.execution import RunningCalls
from gatepost.policy.idempotency.idempotency_record import DAY_S
from gatepost.policy.idempotency.stage import IdempotencyStage
from gatepost.policy.limits.rules import Bound, LimitRules
from gatepost.policy.limits.stage import LimitStage
from gatepost.storage.memory.records import MemoryRecords
from gatepost.storage.records import Records
from gatepost.storage.shared_store import MemorySharedStore, SharedStore
from gatepost.tools.api import Call, IdempotencyKey
from gatepost.tools.client import (
    NOBODY,
    Client,
    InputNeeded,
    InputRequest,
    MissingCapability,
    ProtocolError,
    SilentClient,
    Waiting,
)
from gatepost.tools.pack import ToolOptions
from gatepost.tools.registry import Registry
from gatepost.tools.runner import Runner
from gatepost.tools.stage import Stage
from gatepost.workspace import TenantWorkspace
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
        """One call; bounded, since a test that hangs says nothing."""
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
    return CallContext(caller=call.caller, request_id=call.request_id, workspace=space)


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


ASKED = {"q": InputRequest("elicitation/create", {"message": "?"})}


LETS_GO: list[tuple[str, BaseException]] = [
    ("asks its client", InputNeeded(ASKED)),
    ("needs an abler client", MissingCapability({"elicitation": {}})),
    ("upstream is away", ToolFailure("upstream_unavailable", "Away.", retry_after=3)),
    ("upstream is busy", ToolFailure("rate_limit", "Busy.", retry_after=3)),
]


STAYS: list[tuple[str, BaseException, str]] = [
    ("not found", ToolFailure("not_found", "No such."), "not_found"),
    ("validation", ToolFailure("validation", "Odd.", field="what"), "validation"),
    ("denied by its own rule", ToolFailure("denied", "No."), "denied"),
    ("a timeout of its own making", ToolFailure("timeout", "Slow."), "timeout"),
    ("unforeseen", RuntimeError("hunter2"), "internal"),
    ("a cancelled future", asyncio.CancelledError(), "internal"),
]


PROTOCOL_ERROR = ProtocolError(7, "Upstream says no", {"why": "no"})


def bucket(burst: float, rate: float = 0.001) -> Bound:
    """Return a bucket that hardly refills while a test runs."""
    return Bound(rate, burst)


def places(most: int) -> Bound:
    return Bound(most=most)


class DecidingClient(SilentClient):
    """A client whose person answers when ``decided`` is set; ``asked`` says that it was asked."""

    capabilities: Mapping[str, Any] = {"elicitation": {"url": {}}}

    def __init__(self) -> None:
        self.asked, self.decided = asyncio.Event(), asyncio.Event()

    async def request(
        self, requests: Mapping[str, InputRequest], *, state: bytes = b""
    ) -> Mapping[str, Mapping[str, Any]]:
        self.asked.set()
        await self.decided.wait()
        return {key: {"action": "accept", "content": {}} for key in requests}

    async def stand_by(self, waiting: Waiting) -> None:
        self.asked.set()
        await self.decided.wait()


class LimitedProcess:
    """
    One process. Tools: `wait` and `hold` run until ``gate`` is set, `fail` fails, `ask` asks a
    person and then waits for the gate, `other` calls `wait`, and `look` just answers.
    """

    def __init__(
        self, rules: LimitRules, shared_store: SharedStore | None = None, **settings: Any
    ) -> None:
        self.now = 0.0
        self.limits = LimitStage(shared_store, monotonic=lambda: self.now)
        self.limits.apply(rules, **settings)
        self.gate = asyncio.Event()
        self.ran: Counter[str] = Counter()
        self.tasks: list[asyncio.Task[str]] = []
        self._registry = Registry(self._pack().tools.values())
        self.put_behind()

    def put_behind(self, *stages: Stage) -> None:
        """Have these stages between the limits and the tool."""
        self.runner = Runner(
            self._registry,
            context_for=self._context,
            stages=(self.limits, *stages),
            timeout_s=WITHIN_S,
        )

    def _pack(self) -> Pack:
        pack = Pack("process")

        async def wait(ctx: CallContext) -> str:
            self.ran[f"wait {ctx.caller.tenant_id}"] += 1
            await self.gate.wait()
            return "waited"

        async def look(ctx: CallContext) -> str:
            self.ran["look"] += 1
            return "seen"

        async def fail(ctx: CallContext) -> str:
            raise ToolFailure("denied", "No.")

        async def ask(ctx: CallContext) -> str:
            answer = await ctx.ask_url("May I?", "https://pages.example.com/may-i")
            self.ran["asked"] += 1
            await self.gate.wait()
            return answer.action

        async def other(ctx: CallContext) -> Outcome:
            call = Call(
                caller=ctx.caller, name="look", arguments=b"{}", request_id="inner", depth=1
            )
            return await self.runner.run(call)

        for function in (wait, look, fail, ask, other):
            function.__doc__ = "A tool."
            pack.tool()(function)
        pack.tool(name="hold")(wait)
        return pack

    def _context(self, call: Call) -> CallContext:
        space = TenantWorkspace(-1, call.caller.tenant_id)
        return CallContext(
            caller=call.caller, request_id=call.request_id, workspace=space, client=call.client
        )

    async def call(self, tool: str = "look", *, client: Client = NOBODY, **caller: Any) -> str:
        """Make a call; return its text, or the kind of its failure with the limit that refused."""
        call = Call(
            caller=a_caller(**caller),
            name=tool,
            arguments=b"{}",
            request_id="request-1",
            client=client,
        )
        async with asyncio.timeout(WITHIN_S):
            outcome = await self.runner.run(call)
        if outcome.failure is None:
            return str(outcome.content[0]["text"])
        return f"{outcome.failure.kind} {outcome.failure.limit}"

    async def begin(self, tool: str = "wait", **call: Any) -> "asyncio.Task[str]":
        """Begin a call; it runs or has ended when this returns."""
        task = asyncio.create_task(self.call(tool, **call))
        self.tasks.append(task)
        await run_ready()
        return task

    async def end(self) -> list[str]:
        """Open the gate; return the outcomes of the calls that `begin` began."""
        self.gate.set()
        return await asyncio.gather(*self.tasks)


class PendingDecision:
    """What `stand_by` waits for."""

    message, told, url, retry_after_s = "A person decides.", "A person decides.", "", 5.0

    async def over(self) -> None:
        """Not asked by the clients of these tests."""
