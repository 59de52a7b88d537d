"""Tools of servers in processes of their own, and tools that a test gives a tenant."""

import asyncio
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event
from typing import Annotated, Any

from msgspec.structs import replace
from pydantic import BaseModel, Field

from gatepost import CallContext, Outcome, Pack
from gatepost.storage.errors import StoreUnavailable
from gatepost.tools.context.client import ProtocolError
from gatepost.tools.offers.offer import Effects, Offer, Origin, Tool
from gatepost.tools.offers.offer_kinds import Prompt, Template
from gatepost.tools.offers.tenant_offers import Agent, TenantOffers
from gatepost_authz.caller import TenantContext

pack = Pack("replicas")

TOOLS_FOLDER = Path()


class DecisionForm(BaseModel):
    """What a person answers."""

    ok: bool


def mark(word: str) -> None:
    """Leave one line; appending is atomic for lines this short."""
    with (TOOLS_FOLDER / "marks").open("a", encoding="utf-8") as file:
        file.write(f"{word}\n")


async def wait_for(word: str) -> None:
    """Wait until the test has put a file of that name."""
    while not (TOOLS_FOLDER / word).exists():  # noqa: ASYNC110  # the test is another process
        await asyncio.sleep(0.02)


@pack.tool(read_only=True)
async def pid(ctx: CallContext) -> str:
    """Say which process serves."""
    return str(os.getpid())


@pack.tool(destructive=True, timeout_s=120)
async def purge(ctx: CallContext, table: str) -> str:
    """Ask, and then do it, once."""
    answer = await ctx.ask(f"Purge {table}?", DecisionForm, key="confirm")
    if answer.action != "accept" or not answer.content.ok:
        return "kept"
    mark(f"purged {table}")
    return f"purged {table}"


@pack.tool(task_support="optional", idempotent=True, timeout_s=120)
async def rebuild(ctx: CallContext, name: str) -> str:
    """Take as long as the test wants; may run again."""
    mark(f"rebuilding {name}")
    await wait_for(f"go-{name}")
    return f"rebuilt {name}"


@pack.tool(task_support="optional", timeout_s=120)
async def pay(ctx: CallContext, name: str) -> str:
    """Take as long as the test wants; must not run twice."""
    mark(f"paying {name}")
    await wait_for(f"go-{name}")
    mark(f"paid {name}")
    return f"paid {name}"


@pack.tool(timeout_s=120)
async def hold(ctx: CallContext, name: str) -> str:
    """Run until it is stopped or let go, and say which it was."""
    mark(f"holding {name}")
    await ctx.progress(1, 2)
    try:
        await wait_for(f"go-{name}")
    except asyncio.CancelledError:
        mark(f"stopped {name}")
        raise
    return f"held {name}"


@pack.resource("note://{name}")
async def note(ctx: CallContext, name: str) -> str:
    """Return a note."""
    return name


@pack.tool()
async def touch(ctx: CallContext, name: str) -> str:
    """Announce a changed note to its subscribers, and a changed list of tools."""
    await ctx.changes.updated(f"note://{name}")
    await ctx.changes.listed("tools")
    return "told"


effects_pack = Pack("effects")

EFFECTS_FILE, GO_FILE = Path("effects"), Path("go")
LOOK_EVERY_S = 0.02


def _act(what: str) -> str:
    with EFFECTS_FILE.open("a", encoding="utf-8") as effects:
        effects.write(f"{what}\n")
    while not GO_FILE.exists():
        Event().wait(LOOK_EVERY_S)
    return f"{what} {EFFECTS_FILE.read_text(encoding='utf-8').split().count(what)}"


@effects_pack.tool()
def act(ctx: CallContext, what: str) -> str:
    """Have an effect, and wait until the test says go."""
    return _act(what)


@effects_pack.tool(idempotent=True)
def put(ctx: CallContext, what: str) -> str:
    """Have an effect that is the same twice, and wait until the test says go."""
    return _act(what)


shop = Pack("shop")


@shop.tool()
async def sell(ctx: CallContext) -> str:
    """Have an effect, at once."""
    mark(f"sell-{ctx.caller.tenant_id} {time.time():.6f}")
    return "sold"


@shop.tool()
async def rent(ctx: CallContext) -> str:
    """Have an effect, by a tool with a limit of its own."""
    mark(f"rent-{ctx.caller.tenant_id} {time.time():.6f}")
    return "rented"


@shop.tool()
async def work(ctx: CallContext, seconds: float) -> str:
    """Take so long."""
    await asyncio.sleep(seconds)
    mark(f"work-{ctx.caller.tenant_id} {time.time():.6f}")
    return "worked"


bank = Pack("bank")


@bank.tool(approval=True, destructive=True)
def transfer(ctx: CallContext, to: str, amount: int = 1) -> str:
    """Pay an account."""
    mark(f"{to} {amount}")
    return f"paid {to} {amount}"


@bank.tool(approval=True, destructive=True)
async def wire(ctx: CallContext, to: str, amount: int = 1) -> str:
    """Pay an account at a bank that never answers."""
    mark(f"{to} {amount}")
    await asyncio.Event().wait()
    return f"paid {to} {amount}"


@bank.tool(read_only=True)
async def balance(ctx: CallContext) -> str:
    """Say what is left."""
    return "all of it"


kit = Pack("kit")


class ColourForm(BaseModel):
    """The form that a person fills in."""

    colour: str


@kit.tool()
async def chatter(ctx: CallContext) -> str:
    """Print in every possible way, and read standard input."""
    print("said by print")  # noqa: T201
    os.write(1, b"said by the system\n")
    command = [sys.executable, "-c", "print('said by a child'); print(repr(input.__name__))"]
    await asyncio.to_thread(subprocess.run, command, check=True)
    return f"read {await asyncio.to_thread(sys.stdin.read)!r}"


@kit.tool()
async def tell(ctx: CallContext, times: int) -> str:
    """Report progress and log."""
    for step in range(times):
        await ctx.progress(step + 1, times)
    await ctx.log("warning", "told")
    return "told"


@kit.tool()
async def ask_colour(ctx: CallContext) -> str:
    """Ask for a colour."""
    answered = await ctx.ask("Which colour?", ColourForm)
    return f"{answered.action} {answered.content.colour if answered.content else ''}".strip()


@kit.tool(timeout_s=60)
async def wait(ctx: CallContext, seconds: float) -> str:
    """Wait; says on standard error when it is stopped."""
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        print("the wait was stopped", flush=True)  # noqa: T201
        raise
    return "waited"


@kit.tool()
async def let_go(ctx: CallContext, back_after_s: float = 0.1) -> str:
    """Let go of the connection in the middle, where there is one."""
    await ctx.progress(1)
    await ctx.client.pause(back_after_s)
    await asyncio.sleep(0.3)
    await ctx.progress(2)
    return "came back"


@kit.tool()
async def announce(ctx: CallContext) -> str:
    """Say that the list of tools is another one."""
    await ctx.changes.listed("tools")
    return "announced"


@kit.tool()
async def route(
    ctx: CallContext, region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]
) -> str:
    """Be routed by an argument, where a proxy routes by headers."""
    return region


@kit.tool(scopes={"more"})
async def guarded(ctx: CallContext) -> str:
    """Need more than the caller has."""
    return "never"


@kit.tool()
async def break_protocol(ctx: CallContext) -> str:
    """Answer an internal error."""
    raise ProtocolError(-32603, "Internal error")


COUNTED_CALLS: list[str] = []


@kit.tool()
async def count(ctx: CallContext) -> str:
    """Count how often it ran."""
    COUNTED_CALLS.append("ran")
    return str(len(COUNTED_CALLS))


CHANGES = Effects(read_only=False, destructive=True, idempotent=False, open_world=True)
"""What a tool counts as whose upstream is not trusted."""


ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


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
        """Return a tenant's offers if they are loaded, like `OfferSource`."""
        return self._at_hand.get(caller.tenant_id)

    async def load(self, caller: TenantContext) -> TenantOffers:
        """Load a tenant's offers, like `OfferSource`."""
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
        schema: Mapping[str, Any] = ANY_OBJECT,
        invoke: Callable[[CallContext, Any], Any] | None = None,
        **changes: Any,
    ) -> Tool:
        """Add a tool that notes its calls, and changes things unless told otherwise."""

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
        """Return its offers beside tools; completers and listers stay as they are."""
        kept = (self.pack.documents, self.pack.templates, self.pack.prompts)
        return tuple(self._own(one) for kind in kept for one in kind.values())

    def _own(self, offer: Offer) -> Offer:
        own = replace(offer, origin=self.origin(offer.key, offer.description))
        assert not isinstance(own, Prompt | Template) or own.origin is not None
        return own
