"""A page that takes long to read keeps nobody waiting but its own tenant."""

import asyncio
import threading
from typing import Any

import pytest

from gatepost.packs.web import tool
from gatepost.packs.web.page import Page
from gatepost.tools.surroundings import Reply

REPLY = Reply(200, {}, b"", False, "https://www.web.test/")


@pytest.mark.requirement("P9")
async def test_a_tenant_has_one_page_read_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after its call was cancelled: the thread goes on, and so does its turn."""
    release, running = threading.Event(), []

    def slow(reply: Reply, form: Any) -> Page:
        running.append(form)
        assert form == "text" or release.wait(10)
        return Page("", form, False)

    monkeypatch.setattr(tool, "read", slow)
    first = asyncio.create_task(tool._read("acme", REPLY, "markdown"))
    other = await asyncio.wait_for(tool._read("globex", REPLY, "text"), 10)
    first.cancel()
    second = asyncio.create_task(tool._read("acme", REPLY, "raw"))
    await asyncio.wait([first, second], timeout=0.05)

    assert other.text == "text"
    assert first.cancelled()
    assert sorted(running) == ["markdown", "text"]
    release.set()
    assert (await asyncio.wait_for(second, 10)).text == "raw"
