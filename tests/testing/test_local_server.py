"""A pack's author tests it in memory, against the gate and the runner that serve in production."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gatepost import CallContext, Image, Pack, Secret, ToolFailure
from gatepost.testing import CallRefused, LocalServer, serving
from tests.architecture.source import ROOT

PAGE = (ROOT / "docs/testing.md").read_text(encoding="utf-8")
PIXEL = b"\x89PNG\r\n\x1a\n"
pack = Pack("offices")


@pack.tool(scopes={"offices:write"}, approval=True)
async def move(ctx: CallContext, to: str) -> str:
    """Move the office."""
    return f"Moved to {to}."


@pack.tool
async def ask_around(ctx: CallContext) -> str:
    """Ask one thing after the other."""
    name = await ctx.ask("Name?", NAME_SCHEMA)
    page = await ctx.ask_url("Pay.", "https://pay.example.com/")
    sampled = await ctx.sample("Say hi.", max_tokens=5)
    return f"{name.action} {name.content} {page.action} {sampled.content}"


NAME_SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@pack.tool
async def keep(ctx: CallContext, key: Secret) -> str:
    """Keep a file of the tenant, and use its secret."""
    await ctx.log("info", {"kept": True})
    await ctx.progress(1, total=2, message="half")
    await ctx.workspace.write("a.txt", (await ctx.secret(key, field="key")).encode())
    return (await ctx.workspace.read("a.txt", limit=100)).decode()


@pack.tool(task_support="optional")
async def wait_for_ever(ctx: CallContext) -> None:
    """Wait."""
    await asyncio.Event().wait()


@pack.tool(task_support="optional")
async def survey(ctx: CallContext) -> Image:
    """Survey the office."""
    await ctx.progress(1, message="measuring")
    if not (await ctx.ask("Go on?", NAME_SCHEMA)).content:
        raise ToolFailure("denied", "Then not.")
    return Image(PIXEL)


@pack.resource("office://{city}")
async def office(ctx: CallContext, city: str) -> str | None:
    """Return an office."""
    return f"{city} of {ctx.caller.tenant_id}" if city != "none" else None


@office.complete("city")
async def cities(ctx: CallContext, value: str, given: Mapping[str, str]) -> list[str]:
    """Suggest cities."""
    return [city for city in ("bern", "basel", "chur") if city.startswith(value)]


@pack.resource("office://all")
async def offices(ctx: CallContext) -> bytes:
    """Return all offices."""
    return b"\xff"


@pack.prompt
async def trip(ctx: CallContext, city: str) -> str:
    """Ask for a trip to an office."""
    return f"Visit {city}."


async def test_each_client_is_the_caller_that_its_token_proves() -> None:
    """Tenant, subject, scopes and roles come through the gate, and tenants see their own."""
    async with serving(pack, "demo") as server:
        bob = server.client("globex", subject="bob", scopes={"a", "b"}, roles={"admin"})
        structured = (await bob.call("whoami")).structured
        robot = (await server.client(machine=True, subject="bot").call("whoami")).structured
        read = [await answer.read("office://bern") for answer in (bob, server.client())]

    assert (structured["tenant"], structured["subject"], structured["roles"]) == (
        "globex",
        "bob",
        ["admin"],
    )
    assert set(structured["scopes"]) == {"a", "b"}
    assert (robot["tenant"], robot["subject_kind"]) == ("acme", "client")
    assert read == [["bern of globex"], ["bern of acme"]]


async def test_a_refused_call_has_its_reason() -> None:
    """A missing scope with its challenge, an unknown tool, an argument, and an expired token."""
    async with serving(pack) as server:
        client = server.client()
        with pytest.raises(CallRefused) as scope:
            await client.call("move", to="Bern")
        with pytest.raises(CallRefused) as unknown:
            await client.call("mvoe")
        wrong = await client.call("keep")
        old = client.connection.token()
        await server.advance(700)
        fresh = await client.tools()
        client.connection.token = lambda: old
        with pytest.raises(CallRefused) as expired:
            await client.tools()

    assert (scope.value.status, scope.value.scopes) == (403, {"offices:write"})
    assert unknown.value.code == -32602
    assert wrong.is_error
    assert "`key` is required" in wrong.text
    assert "keep" in fresh
    assert expired.value.status == 401


async def test_approvers_are_people_with_the_role() -> None:
    """The caller and a person without the role cannot approve; edited arguments run."""
    async with serving(pack) as server:
        alice = server.client(scopes={"offices:write"}, roles={"approver"})
        dave = server.client(subject="dave", roles={"approver"})
        call = asyncio.create_task(alice.call("move", to="Bern"))
        waiting = await server.approval(tool="move")
        for other in (alice, server.client(subject="eve"), server.client("globex")):
            with pytest.raises(PermissionError):
                await waiting.approve(other)
        await waiting.approve(dave, edited={"to": "Chur"})
        moved = await call
        call = asyncio.create_task(alice.call("move", to="Basel"))
        await (await server.approval()).reject(dave, reason="Too far")
        rejected = await call
        with pytest.raises(TimeoutError):
            await server.approval(within_s=0.05)

    assert "Moved to Chur." in moved.text
    assert rejected.is_error
    assert "Too far" in rejected.text


async def test_advancing_the_clock_ends_an_undecided_request() -> None:
    """An undecided request ends at once, whatever the default time is."""
    async with serving(pack) as server:
        before = server.now
        client = server.client(scopes={"offices:write"})
        call = asyncio.create_task(client.call("move", to="Bern"))
        await server.approval()
        await server.advance(3600)
        ended = await call
        with pytest.raises(ValueError, match="only moves ahead"):
            await server.advance(-1)

        assert server.now - before > 3599
    assert ended.is_error
    assert "was not approved in time" in ended.text


async def test_a_test_client_answers_elicitation_and_sampling() -> None:
    """Forms, pages and sampling; a client without answers cannot be asked."""
    requests: list[Any] = []
    sampled = {
        "role": "assistant",
        "content": {"type": "text", "text": "hi"},
        "model": "m",
        "stopReason": "endTurn",
    }

    def answer(request: Mapping[str, Any]) -> Any:
        requests.append((request["method"], request.get("message")))
        if request["method"] == "sampling/createMessage":
            return sampled
        return True if request.get("mode") == "url" else {"name": "Ann"}

    async def decline(request: Mapping[str, Any]) -> Any:
        return sampled if request["method"] == "sampling/createMessage" else None

    async with serving(pack) as server:
        structured = await server.client(answer=answer).call("ask_around")
        declined = await server.client(answer=decline).call("ask_around")
        with pytest.raises(CallRefused) as unable:
            await server.client().call("ask_around")

    assert "accept {'name': 'Ann'} accept" in structured.text
    assert requests == [
        ("elicitation/create", "Name?"),
        ("elicitation/create", "Pay."),
        ("sampling/createMessage", None),
    ]
    assert "decline None decline" in declined.text
    assert unable.value.data["requiredCapabilities"] == {"elicitation": {}}


async def test_files_secrets_progress_and_logs_work_as_in_a_server() -> None:
    """A tenant's secret is used and redacted; another tenant has none."""
    async with serving(pack) as server:
        await server.secret("acme", "API_KEY", "s3cret-value-1")
        answer = await server.client().call("keep", key="secret:API_KEY")
        other = await server.client("globex").call("keep", key="secret:API_KEY")

    assert answer.text == "[REDACTED:API_KEY]"
    assert answer.progress == ({"progress": 1, "total": 2, "message": "half"},)
    assert answer.logs == ({"kept": True},)
    assert other.is_error


async def test_tasks_run_ask_and_are_cancelled() -> None:
    """A call that becomes a task is answered at once; what ends without a result says so."""
    async with serving(pack) as server:
        client = server.client(answer=lambda request: {"name": "yes"})
        surveyed = await (await client.start("survey")).result()
        denied = await (await server.client(answer=lambda _: None).start("survey")).result()
        endless = await client.start("wait_for_ever")
        assert (await endless.status())["status"] == "working"
        await endless.cancel()
        with pytest.raises(RuntimeError, match="cancelled"):
            await endless.result()
        with pytest.raises(RuntimeError, match="did not become a task"):
            await client.start("keep", key="x")

    assert surveyed.images == [PIXEL]
    assert {"message": "measuring"} in surveyed.progress
    assert denied.is_error


async def test_resources_prompts_and_completions_are_served() -> None:
    """Listed, read, completed; what does not exist is refused."""
    async with serving(pack) as server:
        client = server.client()
        listed = {*await client.resources()}, {*await client.prompts()}, {*await client.tools()}
        whole = await client.read("office://all")
        prompt = await client.prompt("trip", city="Bern")
        cities = await client.complete("office://{city}", "city", "b")
        with pytest.raises(CallRefused):
            await client.read("office://none")

    assert listed[:2] == ({"office://all"}, {"trip"})
    assert listed[2] >= {"keep", "survey"}
    assert whole == [b"\xff"]
    assert prompt == [{"role": "user", "content": {"type": "text", "text": "Visit Bern."}}]
    assert cities == ["bern", "basel"]


async def test_settings_are_applied_and_checked(tmp_path: Path) -> None:
    """A rule of approvals, a limit, a pack's file; a mistake in them says which."""
    rules = [{"tools": ["keep"], "by": ["role:admin"]}]
    (tmp_path / "own.py").write_text('from gatepost import Pack\npack = Pack("own")\n')
    async with serving(pack, str(tmp_path / "own.py"), approvals={"rules": rules}) as server:
        call = asyncio.create_task(server.client().call("keep", key="x"))
        waiting = await server.approval()
        with pytest.raises(PermissionError):
            await waiting.approve(server.client(subject="pat", roles={"approver"}))
        await waiting.approve(server.client(subject="pat", roles={"admin"}))
        assert (await call).text == "x"
    for settings, says in (
        ({"tools": {"timeout_s": -1}}, r"tools\.timeout_s"),
        ({"toolz": {}}, "toolz"),
        ({"issuers": []}, "issuers: a server in memory has its own"),
    ):
        with pytest.raises(ValueError, match=says):
            async with serving(pack, **settings):
                pass
    with pytest.raises(ValueError, match=r"demoo.*not a registered"):
        async with serving("demoo"):
            pass
    async with serving(pack) as server:
        with pytest.raises(TypeError, match="scopes is a collection"):
            server.client(scopes="offices:write")


def test_the_examples_of_the_page_work(tmp_path: Path) -> None:
    """Pytest runs both files of the page."""
    shop, tests = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "shop.py").write_text(shop)
    (tmp_path / "test_shop.py").write_text(tests)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )

    assert "5 passed" in ran.stdout, ran.stdout + ran.stderr


def test_every_public_member_is_documented() -> None:
    """An author does not find a member that the page does not name."""
    named = set(re.findall(r"`(?:await )?(\w+)", PAGE))
    members = {name for name in vars(LocalServer) if not name.startswith("_")}

    assert members - {"caller_of"} <= named
