"""
Callers of every revision in front of upstreams of both eras: one test for each cell.

| | call | progress | cancel | elicit | image | error | list change |
| --- | --- | --- | --- | --- | --- | --- | --- |
| 2026-07-28 | yes | yes | yes | in rounds | yes | yes | `subscriptions/listen` |
| 2025-11-25, 2025-06-18 | yes | yes | yes | on the call's stream | yes | yes | the GET stream |
| 2025-03-26 | yes | yes | yes | no: not in the revision | yes | yes | the GET stream |
"""

import asyncio
from base64 import b64encode
from itertools import count

import pytest

from tests.support.measuring import eventually
from tests.upstreams.across_revisions.conftest import (
    ASKED,
    PIXEL,
    REVISIONS,
    WITHIN_S,
    Bridge,
    Era,
    calling,
)

every_cell = [
    pytest.mark.parametrize("era", ["modern", "session"]),
    pytest.mark.parametrize("revision", REVISIONS),
]
names = count()


def cells(test: object) -> object:
    """One test for each caller and upstream."""
    for mark in every_cell:
        test = mark(test)
    return test


@cells
async def test_call(bridge: Bridge, revision: str, era: Era) -> None:
    """It runs once, and its structured value arrives where the revision has one."""
    before = bridge.servers[era].did["count"]
    async with calling(bridge.gate, revision) as caller:
        await caller.listed(f"mcp_{era}__count")
        answered = await caller.call(f"mcp_{era}__count", upto=0)

    assert answered.text == "0"
    assert answered.result.get("isError", False) is False
    assert answered.server_notifications == []
    if revision >= "2025-06-18":
        assert answered.result["structuredContent"] == {"result": 0}
    assert bridge.servers[era].did["count"] == before + 1


@cells
async def test_progress(bridge: Bridge, revision: str, era: Era) -> None:
    """Under the caller's own token."""
    async with calling(bridge.gate, revision) as caller:
        await caller.listed(f"mcp_{era}__count")
        answered = await caller.call(f"mcp_{era}__count", upto=3)

    told = [one["params"] for one in answered.server_notifications]
    assert answered.text == "3"
    assert [one["progress"] for one in told] == [1, 2, 3]
    assert {one["total"] for one in told} == {3}
    (token,) = {one["progressToken"] for one in told}
    assert token.startswith("p")


@cells
async def test_cancel(bridge: Bridge, revision: str, era: Era) -> None:
    """What runs at the upstream is stopped."""
    did = bridge.servers[era].did
    begun, cancelled = did["begun"], did["cancelled"]
    async with calling(bridge.gate, revision) as caller:
        await caller.listed(f"mcp_{era}__wait")
        await caller.cancelled(f"mcp_{era}__wait", lambda: did["begun"] > begun)
        await asyncio.to_thread(eventually, lambda: did["cancelled"] > cancelled, within=WITHIN_S)

    assert (did["begun"], did["cancelled"]) == (begun + 1, cancelled + 1)


@cells
async def test_elicit(bridge: Bridge, revision: str, era: Era) -> None:
    """The question names its server; who cannot be asked is told so, and nothing is removed."""
    did = bridge.servers[era].did
    before = did["removed"]
    async with calling(bridge.gate, revision) as caller:
        await caller.listed(f"mcp_{era}__remove")
        answered = await caller.call(f"mcp_{era}__remove")

    if revision in ASKED:
        assert [one["message"] for one in answered.asked] == [f"{era}: Remove it?"]
        assert answered.text == "removed: True"
        assert did["removed"] == before + 1
    else:
        assert answered.asked == []
        assert answered.result["isError"] is True
        assert "elicitation" in answered.text.lower()
        assert did["removed"] == before


@cells
async def test_image(bridge: Bridge, revision: str, era: Era) -> None:
    """Byte by byte."""
    async with calling(bridge.gate, revision) as caller:
        await caller.listed(f"mcp_{era}__cover")
        answered = await caller.call(f"mcp_{era}__cover")

    (picture,) = [block for block in answered.result["content"] if block["type"] == "image"]
    assert (picture["mimeType"], picture["data"]) == ("image/png", b64encode(PIXEL).decode())


@cells
async def test_error(bridge: Bridge, revision: str, era: Era) -> None:
    """The tool's own sentence arrives as the tool's failure."""
    async with calling(bridge.gate, revision) as caller:
        await caller.listed(f"mcp_{era}__fail")
        answered = await caller.call(f"mcp_{era}__fail")

    assert answered.result["isError"] is True
    assert "out of paper" in answered.text


@cells
async def test_list_change(bridge: Bridge, revision: str, era: Era) -> None:
    """What the upstream announces is announced, and the new tool is listed."""
    name = f"added_{next(names)}"
    async with calling(bridge.gate, revision) as caller:
        await caller.listed(f"mcp_{era}__publish")
        async with caller.told_of_changes() as stream:
            await caller.call(f"mcp_{era}__publish", name=name)
            await stream.until("notifications/tools/list_changed")
        await caller.listed(f"mcp_{era}__{name}")

        assert (await caller.call(f"mcp_{era}__{name}")).text == name
