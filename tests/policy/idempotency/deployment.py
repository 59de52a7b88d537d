"""Replicas of a runner over shared stores, and tools whose effects can be counted."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from gatepost import CallContext, Outcome, Pack, ToolFailure
from gatepost.policy.idempotency.stage import DAY_S, IdempotencyStage, RunningCalls
from gatepost.storage.memory.records import MemoryRecords
from gatepost.storage.memory.relay import MemoryRelay
from gatepost.storage.records import Records
from gatepost.storage.relay import Relay
from gatepost.tools.api import Call, Retry
from gatepost.tools.client import (
    InputNeeded,
    InputRequest,
    MissingCapability,
    ProtocolError,
)
from gatepost.tools.pack import ToolOptions
from gatepost.tools.registry import Registry
from gatepost.tools.runner import Runner
from gatepost.tools.stage import Stage
from gatepost.workspace import TenantWorkspace
from tests.support.endpoint import Clock, a_caller

WITHIN_S = 10
LIMIT_S = 30.0


class Deployment:
    """
    Several replicas; ``effects`` counts what was done, by the tool's argument `what`.

    A tool named `…_held` waits for ``gate``, and says by ``entered`` that it runs.
    """

    def __init__(
        self,
        *,
        records: Records | None = None,
        relay: Relay | None = None,
        stages: Sequence[Stage] = (),
        limit_s: float = LIMIT_S,
        max_result_bytes: int = 4_000_000,
    ) -> None:
        self.clock = Clock()
        self.records = records or MemoryRecords()
        self.relay = relay or MemoryRelay()
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

    def replica(self, kept_s: float = DAY_S) -> "Replica":
        return Replica(self, kept_s)


class Replica:
    """One process, as far as its runner and what it knows of idempotency keys go."""

    def __init__(self, deployment: Deployment, kept_s: float = DAY_S) -> None:
        self.runs = RunningCalls(deployment.records, deployment.relay, clock=deployment.clock)
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
            retry=None if key is None else Retry(kind, key),
        )
        async with asyncio.timeout(WITHIN_S):
            return await self.runner.run(call)


def context(call: Call) -> CallContext:
    space = TenantWorkspace(-1, call.caller.tenant_id)
    return CallContext(caller=call.caller, request_id=call.request_id, workspace=space)


def said(outcome: Outcome) -> str:
    """The text of an answer; the kind of a failure, and whether it says when to come back."""
    if outcome.failure is not None:
        return f"{outcome.failure.kind}{'+' if outcome.failure.retry_after else ''}"
    return str(outcome.content[0]["text"])


async def turns(number: int = 20) -> None:
    """Let everything that is ready go on."""
    for _ in range(number):
        await asyncio.sleep(0)


async def come(condition: Callable[[], Awaitable[bool]]) -> None:
    """Let everything go on until *condition* holds, not forever."""
    async with asyncio.timeout(WITHIN_S):
        while not await condition():
            await turns(1)


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
