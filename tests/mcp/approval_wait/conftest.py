"""A small stage that lets a test decide about calls, with short waits for clients."""

import asyncio
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import pytest

from gatepost import CallContext, Pack
from gatepost.mcp import client as mcp_client
from gatepost.storage.errors import StoreUnavailable
from gatepost.tools.api import Call, Failure, Offer, Outcome
from gatepost.tools.stage import Next

T = TypeVar("T")
Verdict = Literal["approved", "rejected", "expired"]
PAGE = "https://mcp.example.com/dashboard/approvals/1"
MESSAGE = "Waiting for an approver of acme to decide about pay."
RETRY_AFTER_S = 7.0
WITHIN_S = 20.0

pack = Pack("deciding")


class Paid:
    """The amounts paid, and the event that a slow payment waits for."""

    amounts: list[int] = []
    begun = asyncio.Event()
    go_on = asyncio.Event()


@pack.tool(timeout_s=0.2)
async def pay(ctx: CallContext, amount: int = 1) -> str:
    """Pay; twice would be too often."""
    Paid.amounts.append(amount)
    await ctx.progress(0, 2, "begun")
    await ctx.progress(1, 2, "half")
    return f"paid {amount}"


@pack.tool(timeout_s=0.2)
async def spend(ctx: CallContext) -> str:
    """Pay by another tool, within the timeout of `spend`."""
    await ctx.progress(5, 10, "before")
    outcome = await ctx.call("pay", {"amount": 2})
    await ctx.progress(6, 10, "after")
    return str(outcome.content[0]["text"])


@pack.tool(timeout_s=60)
async def pay_slowly(ctx: CallContext) -> str:
    """Pay, and then take long."""
    Paid.amounts.append(1)
    Paid.begun.set()
    await Paid.go_on.wait()
    return "paid 1"


class Request:
    """A waiting request and its decision, with the interface of `Waiting`."""

    def __init__(self, url: str) -> None:
        self.message, self.url, self.retry_after_s = MESSAGE, url, RETRY_AFTER_S
        self.told = f"{MESSAGE} {url}" if url else MESSAGE
        self.verdict: Verdict | None = None
        self.watchers = 0
        """Calls that wait for it at this moment."""
        self.outages = 0
        """How often it cannot be looked at, from now on."""
        self._moved = asyncio.Event()

    async def over(self) -> None:
        self.watchers += 1
        self._stir()
        try:
            while self.verdict is None:
                if self.outages:
                    self.outages -= 1
                    raise StoreUnavailable("it is away")
                await self._moved.wait()
        finally:
            self.watchers -= 1
            self._stir()

    def decide(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self._stir()

    def hiccup(self) -> None:
        """Fail the store once for every waiting call."""
        self.outages = 1
        self._stir()

    async def watched_by(self, watchers: int) -> None:
        """Return once so many calls wait for it."""
        async with asyncio.timeout(WITHIN_S):
            while self.watchers != watchers:
                await self._moved.wait()

    def _stir(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()


def with_decisions(decisions: "DecisionStage", make: Callable[..., T], **more: Any) -> T:
    """What *make* makes of the tools and the stage."""
    return make(pack.tools.values(), stages=[decisions], approval_tools=decisions.asks, **more)


class DecisionStage:
    """Decides about payments; the same call meets the same request until that is decided."""

    asks = frozenset({"pay", "pay_slowly"})

    def __init__(self, *, url: str = PAGE) -> None:
        self.url = url
        self.requests: dict[bytes, Request] = {}
        self._came = asyncio.Event()

    async def __call__(self, call: Call, offer: Offer, arguments: Any, proceed: Next) -> Outcome:
        if offer.name not in self.asks:
            return await proceed(call, offer, arguments)
        request = self.requests.setdefault(call.arguments, Request(self.url))
        self._came.set()
        if request.verdict is None:
            await call.client.stand_by(request)
        if request.verdict == "approved":
            return await proceed(call, offer, arguments)
        return Outcome(failure=Failure("denied", f"It was {request.verdict}."))

    async def only(self) -> Request:
        """Wait for the first request; return it, as the only one."""
        await asyncio.wait_for(self._came.wait(), WITHIN_S)
        (request,) = self.requests.values()
        return request


@pytest.fixture(autouse=True)
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tell clients early that they wait; begin without a payment."""
    monkeypatch.setattr(mcp_client, "SIGN_EVERY_S", 0.02)
    monkeypatch.setattr(mcp_client, "AGAIN_S", 0.01)
    monkeypatch.setattr(Paid, "amounts", [])
    monkeypatch.setattr(Paid, "begun", asyncio.Event())
    monkeypatch.setattr(Paid, "go_on", asyncio.Event())


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that its client has to make again waits for a moment only."""
    monkeypatch.setattr(mcp_client, "HOLD_S", 0.002)


@pytest.fixture
def decisions() -> DecisionStage:
    return DecisionStage()
