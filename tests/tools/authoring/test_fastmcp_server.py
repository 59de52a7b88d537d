"""A FastMCP server that runs in this process, behind the gate."""

import logging
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import fastmcp
import pytest
from fastmcp.server.dependencies import get_access_token
from fastmcp.utilities.types import Image
from mcp.server.mcpserver import MCPServer

from gatepost import Pack
from gatepost.telemetry.logs import JsonFormatter
from gatepost.testing import CallRefused, serving

PIXEL = b"\x89PNG\r\n\x1a\n"
EVENTS: list[str] = []


@asynccontextmanager
async def lifespan(server: Any) -> AsyncIterator[None]:
    EVENTS.append("open")
    yield
    EVENTS.append("closed")


def library() -> fastmcp.FastMCP[Any]:
    server: fastmcp.FastMCP[Any] = fastmcp.FastMCP("My Library", lifespan=lifespan)

    @server.tool(annotations={"readOnlyHint": True})
    async def count(ctx: fastmcp.Context, upto: int) -> int:
        """Count with progress."""
        await ctx.report_progress(1, upto, "one")
        await ctx.warning("half way")
        return upto

    @server.tool
    def cover() -> Image:
        """Return a cover."""
        return Image(data=PIXEL, format="png")

    @server.tool
    def fail() -> str:
        """Fail."""
        raise fastmcp.exceptions.ToolError("out of paper")

    @server.tool
    def reader() -> dict[str, Any]:
        """Say who reads."""
        token = get_access_token()
        assert token is not None
        return {"subject": token.subject, "tenant": token.claims["tenant_id"], "token": token.token}

    @server.tool
    async def lend(ctx: fastmcp.Context, title: str) -> str:
        """Lend a book."""
        EVENTS.append("asking")
        answer = await ctx.elicit(f"How long for {title}?", int)
        return f"{title} for {answer.data} days" if answer.action == "accept" else answer.action

    @server.tool
    async def folders(ctx: fastmcp.Context) -> str:
        """List the client's folders."""
        return str(await ctx.session.list_roots())

    _add_documents(server)
    return server


def _add_documents(server: fastmcp.FastMCP[Any]) -> None:
    @server.resource("library://rules", mime_type="text/markdown")
    def rules() -> str:
        """Return the rules."""
        return "# Quiet"

    @server.resource("library://shelves/{place*}")
    def place(place: str) -> str:
        """Return a place."""
        if place == "a/none":
            raise fastmcp.exceptions.NotFoundError("no such place")
        return f"at {place}"

    @server.prompt
    def recommend(topic: str, mood: str = "any") -> str:
        """Recommend a book."""
        return f"A {mood} book on {topic}?"


@pytest.mark.filterwarnings("ignore:The (logging|roots) capability is deprecated")
async def test_all_offers_of_a_fastmcp_server_are_behind_the_gate() -> None:
    """Tools with hints, progress, logs, images and failures; resources, templates and prompts."""
    EVENTS.clear()
    pack = Pack.from_fastmcp(library(), scopes={"library:read"})
    EVENTS.clear()
    async with serving(pack) as server:
        client = server.client("globex", subject="bob", scopes={"library:read"})
        assert EVENTS == ["open"]
        listed = await client.tools()
        counted = await client.call("count", upto=3)
        wrong = await client.call("count", upto="x")
        drawn = await client.call("cover")
        failed = await client.call("fail")
        who = await client.call("reader")
        folders = await client.call("folders")
        rules = await client.read("library://rules")
        contents = await client.read("library://shelves/a/b")
        prompt = await client.prompt("recommend", topic="tea")
        refusals = []
        for reading in (
            client.read("library://shelves/a/none"),
            client.read("library://other"),
            client.prompt("recommend", mood="sad"),
            client.prompt("recommend", topic="tea", size="big"),
            server.client().call("cover"),
            server.client().read("library://rules"),
            server.client().prompt("recommend", topic="tea"),
        ):
            with pytest.raises(CallRefused) as refused:
                await reading
            refusals.append(refused.value)
    assert EVENTS == ["open", "closed"]

    assert pack.name == "my_library"
    assert listed["count"]["annotations"]["readOnlyHint"] is True
    assert counted.structured == {"result": 3}
    assert counted.progress == ({"progress": 1.0, "total": 3.0, "message": "one"},)
    assert [event["msg"] for event in counted.logs] == ["half way"]
    assert wrong.is_error
    assert drawn.images == [PIXEL]
    assert (failed.is_error, failed.text) == (True, "out of paper")
    assert who.structured == {"subject": "bob", "tenant": "globex", "token": ""}
    assert folders.is_error
    assert (rules, contents) == (["# Quiet"], ["at a/b"])
    assert prompt == [
        {"role": "user", "content": {"type": "text", "text": "A any book on tea?"}},
    ]
    assert [refusal.scopes for refusal in refusals] == [frozenset()] * 4 + [{"library:read"}] * 3
    assert "`topic` is required" in str(refusals[2])
    assert "`size` is no argument" in str(refusals[3])


async def test_an_elicitation_of_a_fastmcp_tool_reaches_the_client() -> None:
    """The call ends with the question, and runs again with the answer, as Gatepost's tools do."""
    EVENTS.clear()
    requests: list[Mapping[str, Any]] = []

    def answer(request: Mapping[str, Any]) -> Any:
        requests.append(request)
        return {"value": 14} if len(requests) == 1 else None

    async with serving(Pack.from_fastmcp(library())) as server:
        client = server.client(answer=answer)
        lent = await client.call("lend", title="Emma")
        declined = await client.call("lend", title="Emma")
        with pytest.raises(CallRefused) as mute:
            await server.client().call("lend", title="Emma")

    assert lent.text == "Emma for 14 days"
    assert declined.text == "decline"
    assert requests[0]["message"] == "How long for Emma?"
    assert EVENTS.count("asking") == 5
    assert mute.value.data == {"requiredCapabilities": {"elicitation": {}}}


async def test_a_uri_is_passed_on_exactly_as_it_was_checked() -> None:
    """FastMCP normalises URIs, so that another spelling would reach what another scope guards."""
    books: fastmcp.FastMCP[Any] = fastmcp.FastMCP("books")

    @books.resource("https://intra/secret")
    def guarded() -> str:
        return "guarded"

    @books.resource("https://{host}/{name}")
    def opened(host: str, name: str) -> str:
        return f"{name} at {host}"

    @books.resource("file:///{path*}")
    def filed(path: str) -> str:
        return path

    @books.resource("books://{section}/draft")
    def draft(section: str) -> str:
        return "guarded"

    @books.resource("books://public/{name}")
    def public(name: str) -> str:
        return name

    secret = {"books:secret"}
    scopes: dict[str, Any] = {"https://intra/secret": secret, "books://{section}/draft": secret}
    scopes["*"] = ()
    async with serving(Pack.from_fastmcp(books, scopes=scopes)) as server:
        client = server.client(scopes=set())
        read = [
            await client.read(uri)
            for uri in ("https://intra/a%20b", "https://intra/%73ecret2", "file:///a/b")
        ]
        read.append(await client.read("books://public/emma"))
        with pytest.raises(CallRefused):
            await client.read("books://public/draft")
        for host in ("INTRA", "intra:443", "%69ntra"):
            with pytest.raises(CallRefused, match="Unknown resource"):
                await client.read(f"https://{host}/secret")
        with pytest.raises(CallRefused) as refused:
            await client.read("https://intra/secret")

    assert read == [["a b at intra"], ["secret2 at intra"], ["a/b"], ["emma"]]
    assert refused.value.scopes == {"books:secret"}


async def test_the_log_of_fastmcp_is_redacted(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """FastMCP's own handlers would write an exception with a tenant's secret to standard error."""
    secret = "tenant-secret-Zx9-77"
    books: fastmcp.FastMCP[Any] = fastmcp.FastMCP("books")

    @books.tool
    def fail() -> str:
        raise RuntimeError(f"it was {secret}")

    async with serving(Pack.from_fastmcp(books)) as server:
        await server.secret("acme", "API_KEY", secret)
        failed = await server.client("acme").call("fail")
        records = [record for record in caplog.records if record.name.startswith("fastmcp")]
        lines = [JsonFormatter().format(record) for record in records]

    assert failed.is_error
    assert logging.getLogger("fastmcp").handlers == []
    assert any("[REDACTED:API_KEY]" in line for line in lines)
    assert secret not in "".join(lines) + capfd.readouterr().err


async def test_a_five_line_tools_file_serves_a_fastmcp_server() -> None:
    """A file for `tools.load`, with the SDK's own server: two lines are the author's server."""
    books = MCPServer("books")
    books.add_tool(lambda title: f"{title} is lent", name="state", description="The state.")
    lines = """
from gatepost import Pack
pack = Pack.from_fastmcp(books, scopes={"books:read"})
"""
    names: dict[str, Any] = {"books": books}
    exec(compile(lines, "books.py", "exec"), names)  # noqa: S102
    async with serving(names["pack"]) as server:
        state = await server.client(scopes={"books:read"}).call("state", title="Emma")

    assert state.text == "Emma is lent"


def test_an_option_for_an_unknown_offer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt or forgotten offer would stay open; so would a text taken for a collection."""
    server = library()
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"scopes": {"covr": {"library:read"}, "*": ()}}, ValueError, "there is no covr"),
        ({"scopes": {"cover": {"library:read"}}}, ValueError, "leaves out count, fail"),
        ({"approval": {"library://rules"}}, ValueError, "there is no library://rules"),
        ({"scopes": "library:read"}, TypeError, "collections of texts"),
        ({"scopes": {"*": "library:read"}}, TypeError, "collections of texts"),
    ]
    for options, kind, says in wrong:
        with pytest.raises(kind, match=says):
            Pack.from_fastmcp(server, **options)
    monkeypatch.setitem(sys.modules, "fastmcp.client", None)
    with pytest.raises(ImportError):
        Pack.from_fastmcp(server)


def test_an_ambiguous_template_of_a_fastmcp_server_is_refused() -> None:
    """A template that could match a URI in several ways, and a name that no header can carry."""
    two: fastmcp.FastMCP[Any] = fastmcp.FastMCP("two")

    @two.resource("files://{a}{b}")
    def both(a: str, b: str) -> str:
        """Return both."""
        return a + b

    with pytest.raises(ValueError, match="two variables touch"):
        Pack.from_fastmcp(two)
