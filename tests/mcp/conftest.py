"""Offers of every kind, a stage that lets a test decide, and records that may be cut off."""

import asyncio
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Annotated, Any, Literal, TypeVar

import pytest
from pydantic import Field

from gatepost import (
    Audio,
    CallContext,
    Contents,
    Icon,
    Image,
    ListedResource,
    Message,
    Pack,
    ToolFailure,
)
from gatepost.mcp import client as mcp_client
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.records import Records
from gatepost.tools.calls.stage import Next
from gatepost.tools.offers.offer import Call, Failure, Offer, Outcome
from tests.support.endpoint import CLIENT, VERSION, EndpointClient, message

PNG = b"\x89PNG\r\n\x1a\n"
ICON = Icon("https://mcp.example.com/icon.png", mime_type="image/png", sizes=("48x48",))
CHANGED_AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
QUARTERS = ("q1", "q2", "q3", "q4")

pack = Pack("library")


@pack.resource(
    "library://rules",
    title="House rules",
    icons=(ICON,),
    mime_type="text/markdown",
    size=7,
    audience=("user",),
    priority=0.5,
    last_modified=CHANGED_AT,
    ttl_s=60,
)
async def rules(ctx: CallContext) -> str:
    """Return the rules of the library."""
    return "# Rules"


@pack.resource("library://cover", mime_type="image/png")
def cover(ctx: CallContext) -> bytes:
    """Return a picture of the library."""
    return PNG


@pack.resource("library://index")
async def index(ctx: CallContext) -> dict[str, int]:
    """Count the books."""
    return {"books": 3}


@pack.resource("library://several")
async def several(ctx: CallContext) -> list[Contents]:
    """Return two pieces of one thing."""
    return [Contents("a"), Contents(b"b", "application/x-b", "library://several/b")]


@pack.resource("library://empty")
async def empty(ctx: CallContext) -> None:
    """Return no contents."""


@pack.resource("library://failing/{kind}")
async def failing(ctx: CallContext, kind: str) -> str:
    """Fail in the way asked for."""
    raise ToolFailure(kind, "No.", retry_after=2.5)  # type: ignore[arg-type]


@pack.resource("library://broken")
async def broken(ctx: CallContext) -> str:
    """Fail unexpectedly."""
    raise RuntimeError("the password is hunter2")


@pack.resource("report://{quarter}", title="Report", icons=(ICON,), mime_type="text/csv")
async def report(ctx: CallContext, quarter: Literal["q1", "q2", "q3", "q4"]) -> str:
    """Return the figures of one quarter."""
    return f"quarter,tenant\n{quarter},{ctx.caller.tenant_id}\n"


@report.list
async def reports(ctx: CallContext) -> list[ListedResource]:
    """List the quarters that are over, and one that cannot be read."""
    known = [
        ListedResource(variables={"quarter": q}, title=q.upper(), size=9) for q in QUARTERS[:2]
    ]
    return [
        *known,
        ListedResource(variables={"quarter": "q9"}),
        ListedResource(variables={"quarter": ".."}),
    ]


@report.complete("quarter")
async def quarters(ctx: CallContext, value: str, given: Mapping[str, str]) -> list[str]:
    """List the quarters that begin with *value*."""
    return [quarter for quarter in QUARTERS if quarter.startswith(value)]


@pack.resource("note://{+path}{?line,word}")
async def note(ctx: CallContext, path: str, line: int = 0, word: str = "") -> dict[str, Any]:
    """Return what was asked for, as it arrived."""
    return {"path": path, "line": line, "word": word}


@pack.resource("library://hidden", scopes={"hidden"})
async def hidden(ctx: CallContext) -> str:
    """Be out of reach."""
    return "never"


@pack.prompt(title="Summary", icons=(ICON,))
async def summarise(
    ctx: CallContext,
    quarter: Annotated[str, Field(title="Quarter", description="Such as q1", max_length=10)],
    tone: Literal["dry", "warm"] = "dry",
) -> str:
    """Summarise a quarter."""
    return f"Summarise {quarter} for {ctx.caller.tenant_id}, {tone}."


@summarise.complete("quarter")
async def of_tenant(ctx: CallContext, value: str, given: Mapping[str, str]) -> list[str]:
    """List the tenant's own names, and what else was given."""
    return [f"{ctx.caller.tenant_id}-{value}-{given.get('tone', '')}-{n}" for n in range(150)]


@pack.prompt()
async def illustrated(ctx: CallContext) -> list[Message]:
    """Show what a message can hold."""
    link = {
        "type": "resource_link",
        "uri": "library://rules",
        "name": "rules",
        "annotations": {"lastModified": "2026-01-01T00:00:00Z"},
    }
    return [
        Message("user", "Look:"),
        Message("user", Image(PNG)),
        Message("user", Audio(b"RIFF")),
        Message("assistant", Contents("text", "text/plain", "library://rules")),
        Message("assistant", link),
    ]


@pack.prompt(scopes={"hidden"})
async def hidden_prompt(ctx: CallContext) -> str:
    """Be out of reach."""
    return "never"


@pack.prompt(name="broken")
async def broken_prompt(ctx: CallContext) -> str:
    """Fail unexpectedly."""
    raise RuntimeError("the password is hunter2")


@pack.tool(icons=(ICON,))
async def stamp(ctx: CallContext) -> str:
    """Stamp a card."""
    return "stamped"


def base64(data: bytes) -> str:
    return b64encode(data).decode()


async def declared_capabilities(client: EndpointClient, revision: str) -> dict[str, Any]:
    """Return the capabilities that the server declares."""
    if revision == VERSION:
        response = await client.ask("server/discover")
    else:
        asked = {"protocolVersion": revision, "capabilities": {}, "clientInfo": CLIENT}
        response = await client.send(message("initialize", asked))
    capabilities: dict[str, Any] = response.json["result"]["capabilities"]
    return capabilities


T = TypeVar("T")


Verdict = Literal["approved", "rejected", "expired"]


PAGE = "https://mcp.example.com/dashboard/approvals/1"


MESSAGE = "Waiting for an approver of acme to decide about pay."


RETRY_AFTER_S = 7.0


WITHIN_S = 20.0


paying_pack = Pack("deciding")


class Paid:
    """The amounts paid, and the event that a slow payment waits for."""

    amounts: list[int] = []
    begun = asyncio.Event()
    go_on = asyncio.Event()


@paying_pack.tool(timeout_s=0.2)
async def pay(ctx: CallContext, amount: int = 1) -> str:
    """Pay; twice would be too often."""
    Paid.amounts.append(amount)
    await ctx.progress(0, 2, "begun")
    await ctx.progress(1, 2, "half")
    return f"paid {amount}"


@paying_pack.tool(timeout_s=0.2)
async def spend(ctx: CallContext) -> str:
    """Pay by another tool, within the timeout of `spend`."""
    await ctx.progress(5, 10, "before")
    outcome = await ctx.call("pay", {"amount": 2})
    await ctx.progress(6, 10, "after")
    return str(outcome.content[0]["text"])


@paying_pack.tool(timeout_s=60)
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
        self.message_with_url = f"{MESSAGE} {url}" if url else MESSAGE
        self.verdict: Verdict | None = None
        self.watchers = 0
        """Calls that wait for it at this moment."""
        self.outages = 0
        """How often it cannot be looked at, from now on."""
        self._moved = asyncio.Event()

    async def over(self) -> None:
        self.watchers += 1
        self._wake_watchers()
        try:
            while self.verdict is None:
                if self.outages:
                    self.outages -= 1
                    raise StoreUnavailable("it is away")
                await self._moved.wait()
        finally:
            self.watchers -= 1
            self._wake_watchers()

    def decide(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self._wake_watchers()

    def hiccup(self) -> None:
        """Fail the store once for every waiting call."""
        self.outages = 1
        self._wake_watchers()

    async def watched_by(self, watchers: int) -> None:
        """Return once so many calls wait for it."""
        async with asyncio.timeout(WITHIN_S):
            while self.watchers != watchers:
                await self._moved.wait()

    def _wake_watchers(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()


def with_decision_stage(stage: "DecisionStage", make: Callable[..., T], **more: Any) -> T:
    """Return what *make* makes of the tools and the stage."""
    return make(paying_pack.tools.values(), stages=[stage], approval_tools=stage.asks, **more)


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
            await call.client.wait_for_decision(request)
        if request.verdict == "approved":
            return await proceed(call, offer, arguments)
        return Outcome(failure=Failure("denied", f"It was {request.verdict}."))

    async def only(self) -> Request:
        """Wait for the first request; return it, as the only one."""
        await asyncio.wait_for(self._came.wait(), WITHIN_S)
        (request,) = self.requests.values()
        return request


@pytest.fixture
def decision_stage(monkeypatch: pytest.MonkeyPatch) -> DecisionStage:
    """Begin without a payment, and tell clients early that they wait."""
    monkeypatch.setattr(mcp_client, "KEEP_ALIVE_S", 0.02)
    monkeypatch.setattr(mcp_client, "AGAIN_S", 0.01)
    monkeypatch.setattr(Paid, "amounts", [])
    monkeypatch.setattr(Paid, "begun", asyncio.Event())
    monkeypatch.setattr(Paid, "go_on", asyncio.Event())
    return DecisionStage()


@pytest.fixture
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a call that its client has to make again wait for a moment only."""
    monkeypatch.setattr(mcp_client, "HOLD_S", 0.002)


class DetachableRecords:
    """The records behind it, until `cut` is set; then as if the database did not answer."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self.cut = False

    def of(self, tenant: str) -> Any:
        """Return the stores of a tenant, like `Records`."""
        stores = self._records.of(tenant)
        names = ("tasks", "idempotency", "sessions")
        return SimpleNamespace(
            **{name: _DetachableStore(self, getattr(stores, name)) for name in names}
        )

    async def abandoned_tasks(self, now: float, limit: int) -> list[tuple[str, str]]:
        """Return the abandoned tasks, like `Records`."""
        self.check()
        return await self._records.abandoned_tasks(now, limit)

    async def sweep(self, now: float) -> int:
        """Delete expired records, like `Records`."""
        self.check()
        return await self._records.sweep(now)

    async def ping(self) -> None:
        """Check the connection, like `Records`."""
        self.check()

    async def aclose(self) -> None:
        """Do nothing: the records outlive this connection."""

    def check(self) -> None:
        """Raise StoreUnavailable when it is cut."""
        if self.cut:
            raise StoreUnavailable("the cable is cut")


class _DetachableStore:
    """One store, each of whose methods goes over the cable."""

    def __init__(self, cable: DetachableRecords, store: Any) -> None:
        self._cable, self._store = cable, store

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        async def over_the_cable(*arguments: Any, **named: Any) -> Any:
            self._cable.check()
            return await method(*arguments, **named)

        return over_the_cable
