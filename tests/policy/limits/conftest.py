"""A runner with limits, tools that wait until a test releases them, and a Valkey that may stop."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from gatepost import CallContext, Outcome, Pack, ToolFailure
from gatepost.policy.limits.rules import Bound, LimitRules
from gatepost.policy.limits.stage import LimitStage
from gatepost.storage.shared_store import SharedStore
from gatepost.tools.api import Call
from gatepost.tools.client import NOBODY, Client, InputRequest, SilentClient, Waiting
from gatepost.tools.registry import Registry
from gatepost.tools.runner import Runner
from gatepost.tools.stage import Stage
from gatepost.workspace import TenantWorkspace
from tests.support.endpoint import a_caller
from tests.support.stores import Valkey

WITHIN_S = 10


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
        await settle()
        return task

    async def end(self) -> list[str]:
        """Open the gate; return the outcomes of the calls that `begin` began."""
        self.gate.set()
        return await asyncio.gather(*self.tasks)


async def settle(turns: int = 10) -> None:
    """Let every task that is ready run."""
    for _ in range(turns):
        await asyncio.sleep(0)


class PendingDecision:
    """What `stand_by` waits for."""

    message, told, url, retry_after_s = "A person decides.", "A person decides.", "", 5.0

    async def over(self) -> None:
        """Not asked by the clients of these tests."""


@pytest.fixture
def own_valkey() -> Iterator[Valkey]:
    with Valkey.running() as server:
        yield server
