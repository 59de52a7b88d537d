"""What a pack starts with the server, what calls get beside arguments, and tools of an object."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import pytest

from gatepost import CallContext, Depends, Pack, tool_method
from gatepost.check.pack_loading import Toolbox
from gatepost.runtime.pack_lifespans import PackLifespans
from gatepost.testing import serving
from gatepost.tools.authoring.lifespan import LifespanFailed
from tests.support import commands
from tests.support.client import ResourceClient, result
from tests.support.measuring import eventually


class ShopDatabase:
    """Notes what happens to it; a purchase waits until it is *open*."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.open, self.changed = asyncio.Event(), asyncio.Event()
        self.open.set()

    def note(self, event: str) -> None:
        self.events.append(event)
        self.changed.set()

    async def until(self, event: str) -> None:
        """Return once that has happened."""
        async with asyncio.timeout(20):
            while event not in self.events:
                self.changed.clear()
                await self.changed.wait()

    async def buy(self, item: str) -> None:
        await self.open.wait()
        self.note("buy")
        if item == "bad":
            raise ValueError("no")


def subject(ctx: CallContext) -> str:
    return ctx.caller.subject


def shop(database: ShopDatabase) -> Pack:
    """Return a pack with dependencies of every kind."""
    pack = Pack("shop")

    @pack.lifespan
    async def opened() -> AsyncIterator[ShopDatabase]:
        database.note("open")
        yield database
        database.note("closed")

    async def session(ctx: CallContext) -> AsyncIterator[str]:
        database.note(f"begin {ctx.caller.tenant_id}")
        try:
            yield "session"
        except ValueError:
            database.note("rollback")
            raise
        database.note("commit")

    async def nothing() -> int:
        database.note("made")
        return 7

    @pack.tool
    async def buy(
        ctx: CallContext,
        item: str,
        db: Annotated[ShopDatabase, Depends(opened)],
        within: Annotated[str, Depends(session)],
        who: Annotated[str, Depends(subject)],
        seven: Annotated[int, Depends(nothing)],
        again: Annotated[int, Depends(nothing)],
        count: int = 1,
    ) -> str:
        """Buy."""
        await db.buy(item)
        return f"{who} buys {count} {item} in {within} {seven} {again}"

    @pack.resource("shop://{item}")
    def stock(ctx: CallContext, item: str, seven: Annotated[int, Depends(nothing)]) -> str:
        """Return the stock."""
        return f"{seven} {item}"

    @pack.prompt
    async def advise(ctx: CallContext, item: str, who: Annotated[str, Depends(subject)]) -> str:
        """Advise."""
        return f"{who}: {item}"

    return pack


async def test_dependencies_are_made_for_each_call_and_hidden() -> None:
    """The schema does not show them, a caller cannot send them, and cleanup sees the error."""
    database = ShopDatabase()
    async with serving(shop(database)) as server:
        client = server.client()
        tools = await client.tools()
        bought = await client.call("buy", item="tea", count=2)
        sent = await client.call("buy", item="tea", seven=8)
        failed = await client.call("buy", item="bad")
        read = await client.read("shop://tea")
        advice = await client.prompt("advise", item="tea")
        prompts = await client.prompts()
        assert database.events[0] == "open"
        assert "closed" not in database.events

    assert set(tools["buy"]["inputSchema"]["properties"]) == {"item", "count"}
    assert bought.text == "alice buys 2 tea in session 7 7"
    assert database.events[1:5] == ["begin acme", "made", "buy", "commit"]
    assert sent.is_error
    assert "`seven` is not an argument" in sent.text
    assert failed.is_error
    assert "rollback" in database.events
    assert read == ["7 tea"]
    assert advice[0]["content"]["text"] == "alice: tea"
    assert [prompt_argument["name"] for prompt_argument in prompts["advise"]["arguments"]] == [
        "item"
    ]
    assert database.events[-1] == "closed"


async def test_the_shutdown_of_a_pack_waits_for_its_calls() -> None:
    """After a reload the new pack starts before the old one ends."""
    database, other = ShopDatabase(), ShopDatabase()
    database.open.clear()
    old, new = shop(database), shop(other)
    async with serving(old) as server:
        services = server.services
        call = asyncio.create_task(server.client().call("buy", item="tea"))
        await database.until("made")
        await services.lifespans.start([new])
        assert other.events == ["open"]
        services.lifespans.keep_only([new])
        await asyncio.sleep(0)
        assert "closed" not in database.events
        database.open.set()
        assert (await call).text.startswith("alice buys")
        await database.until("closed")
        assert other.events == ["open"]

    assert other.events == ["open", "closed"]
    assert database.events.index("commit") < database.events.index("closed")


async def test_a_lifespan_that_fails_to_start_names_its_pack() -> None:
    """Lifespans that had started before it are stopped."""
    database = ShopDatabase()
    working, bad, silent = shop(database), Pack("bad"), Pack("silent")

    @bad.lifespan
    async def broken() -> AsyncIterator[None]:
        raise OSError("no such database")
        yield

    @silent.lifespan
    async def unyielding() -> AsyncIterator[None]:
        if database is None:
            yield

    lifespans = PackLifespans()
    with pytest.raises(LifespanFailed, match="pack bad, lifespan broken failed: OSError: no such"):
        await lifespans.start([working, bad])
    assert database.events == ["open", "closed"]
    with pytest.raises(LifespanFailed, match="pack silent, lifespan unyielding failed"):
        async with serving(silent):
            pass
    with pytest.raises(RuntimeError, match="the server is not running"):
        _ = working.lifespans[0].value


@pytest.mark.parametrize(
    ("write", "expected_text"),
    [
        (lambda pack: pack.lifespan(lambda: None), "async generator function"),
        (lambda pack: Depends(3), "write a function or an async generator"),
        (lambda pack: Depends(lambda ctx, other: None), "can take the context, and nothing else"),
        (lambda pack: pack.tool(with_default), "not a default"),
        (lambda pack: pack.tool(pack.tool), "first parameter is the call's context"),
    ],
)
def test_an_invalid_lifespan_or_dependency_is_refused(write: Any, expected_text: str) -> None:
    """The error says what to write instead."""
    with pytest.raises(TypeError, match=expected_text):
        write(Pack("wrong"))


DATABASE = Depends(lambda: 1)


async def with_default(ctx: CallContext, db: Any = DATABASE) -> str:
    """Return a dependency where a caller could pass a value for it."""
    return str(db)


class SupportTeam:
    """An object whose marked methods are tools."""

    def __init__(self, name: str) -> None:
        self.name = name

    @tool_method
    async def greet(self, ctx: CallContext, who: str) -> str:
        """Greet."""
        return f"{self.name} greets {who} of {ctx.caller.tenant_id}."

    @tool_method(scopes={"desk:write"}, name="close_desk", destructive=True, approval=False)
    def close(self, ctx: CallContext) -> str:
        """Close."""
        return f"{self.name} is closed."

    def helper(self, ctx: CallContext) -> str:
        """Return the name; without a mark, this is no tool."""
        return self.name


class QuietSupportTeam(SupportTeam):
    """Overrides a tool without saying that it is one."""

    def close(self, ctx: CallContext) -> str:
        """Close."""
        return "never"


class Misspelt:
    """Its option would leave the tool open."""

    @tool_method(scope={"x"})
    async def open(self, ctx: CallContext) -> str:
        """Open."""
        return ""


async def test_marked_methods_of_an_object_are_tools() -> None:
    """They keep their options, and no other method is a tool."""
    pack = Pack("desks")
    pack.add_object(SupportTeam("Ann"))
    async with serving(pack, approvals={"destructive": "run"}) as server:
        client = server.client(scopes={"desk:write"})
        names = {*await client.tools()}
        greeted = await client.call("greet", who="Bo")
        closed = await client.call("close_desk")
    quiet = Pack("quiet")
    quiet.add_object(QuietSupportTeam("Cy"))

    assert names == {"greet", "close_desk"}
    assert pack.tools["close_desk"].scopes == {"desk:write"}
    assert greeted.text == "Ann greets Bo of acme."
    assert closed.text == "Ann is closed."
    assert set(quiet.tools) == {"greet"}
    with pytest.raises(TypeError, match="'scope'; did you mean 'scopes'"):
        Pack("wrong").add_object(Misspelt())
    with pytest.raises(ValueError, match="no method with @tool_method"):
        Pack("wrong").add_object(object())


PACK = """
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated
from gatepost import CallContext, Depends, Pack

pack = Pack("notes")


@pack.lifespan
async def notes() -> AsyncIterator[str]:
    with Path("events").open("a") as file:
        print("open {number}", file=file)
    {fails}
    yield "{number}"
    with Path("events").open("a") as file:
        print("closed {number}", file=file)


@pack.tool
async def note(ctx: CallContext, text: Annotated[str, Depends(notes)]) -> str:
    '''Read the note.'''
    return text
"""


def test_a_running_server_starts_reloads_and_stops_lifespans(tmp_path: Path) -> None:
    """This is `gatepost dev --reload` with SIGHUP; a pack that fails to start changes nothing."""
    file = tmp_path / "notes.py"

    def write(number: str, fails: str = "") -> None:
        file.write_text(PACK.replace("{number}", number).replace("{fails}", fails))

    def events() -> list[str]:
        return (tmp_path / "events").read_text().split("\n")[:-1]

    write("one")
    with commands.dev(tmp_path, "--tools", "notes.py", "--reload") as running:
        token = commands.token(tmp_path, "--tenant", "acme")

        def printed_lines() -> str:
            return str(
                result(ResourceClient(running.url).call(token, "note"))["content"][0]["text"]
            )

        assert (printed_lines(), events()) == ("one", ["open one"])
        write("three", fails="raise OSError('no disk')")
        running.wait_for("pack notes, lifespan notes failed: OSError: no disk")
        assert printed_lines() == "one"
        write("two again")
        eventually(lambda: printed_lines() == "two again", within=20)
        eventually(lambda: "closed one" in events(), within=10)
    assert events() == [
        "open one",
        "open three",
        "open two again",
        "closed one",
        "closed two again",
    ]

    write("four", fails="raise OSError('no disk')")
    code, _, complaints = commands.completed(
        "dev", "--port", "0", "--tools", "notes.py", cwd=tmp_path
    )
    assert code == 1
    assert "pack notes, lifespan notes failed: OSError: no disk" in complaints
    assert "Traceback" not in complaints


def test_a_tool_without_dependencies_has_no_wrapper() -> None:
    """The function itself is called, without a wrapper around it."""
    pack = Pack("plain")

    @pack.tool
    async def plain(ctx: CallContext) -> str:
        """Return nothing."""
        return ""

    closure = pack.tools["plain"].invoke.__closure__
    assert closure is not None
    assert plain in [cell.cell_contents for cell in closure]
    assert Toolbox((pack,), ()).packs[0].lifespans == []
