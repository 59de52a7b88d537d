"""The worker that reads pages is confined, and only its own tenant waits for it."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gatepost import OutboundReply, ToolFailure
from gatepost_packs.web import tools

REPLY = OutboundReply(200, {"content-type": "text/html"}, b"<p>x", False, "https://www.web.test/")
ENDLESS_PROGRAM = "def answer(question):\n    while True: pass\n"
HUNGRY_PROGRAM = "def answer(question):\n    return bytearray(8_000_000_000)\n"
TALKATIVE_PROGRAM = "def answer(question):\n    return 'x' * 50_000_000\n"
LIST_PROGRAM = "def answer(question):\n    return ['x']\n"
NUMBER_PROGRAM = "def answer(question):\n    return {'title': '', 'text': 1, 'cut': False}\n"


@pytest.mark.requirement("P9")
@pytest.mark.parametrize(
    "program",
    [ENDLESS_PROGRAM, HUNGRY_PROGRAM, TALKATIVE_PROGRAM, LIST_PROGRAM, NUMBER_PROGRAM],
    ids=["endless", "hungry", "talkative", "a list", "a number"],
)
async def test_a_page_that_breaks_the_worker_is_refused(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It exceeds time, memory or the length or type of the answer; the next page is read."""
    worker = tmp_path / "worker.py"
    worker.write_text(program, encoding="utf-8")
    with monkeypatch.context() as patched:
        patched.setattr(tools, "PAGE_WORKER", worker)
        if program == ENDLESS_PROGRAM:
            patched.setattr(tools, "READ_S", 1.0)
        with pytest.raises(ToolFailure, match="too much time or memory"):
            await tools._read("acme", REPLY, "markdown")

    assert (await tools._read("acme", REPLY, "markdown")).text == "x"


@pytest.mark.requirement("P9")
async def test_a_tenant_has_one_page_read_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant's hostile pages take one worker and not all of them, and none once it has left."""
    release, running = asyncio.Event(), list[str]()

    async def slow(worker: Path, request: dict[str, Any], **options: Any) -> tools.HtmlPage:
        running.append(request["url"])
        if request["url"].endswith("/slow"):
            await release.wait()
        return tools.HtmlPage(title="", text=request["url"], cut=False)

    def reads(tenant: str, name: str) -> asyncio.Task[tools.HtmlPage]:
        reply = msgspec.structs.replace(REPLY, url=f"https://www.web.test/{name}")
        return asyncio.create_task(tools._read(tenant, reply, "markdown"))

    monkeypatch.setattr(tools, "ask", slow)
    first = reads("acme", "slow")
    other = await asyncio.wait_for(reads("globex", "other"), 10)
    second = reads("acme", "next")
    await asyncio.wait([first, second], timeout=0.05)

    assert other.text.endswith("/other")
    assert [url.rpartition("/")[2] for url in running] == ["slow", "other"]
    first.cancel()
    assert (await asyncio.wait_for(second, 10)).text.endswith("/next")
