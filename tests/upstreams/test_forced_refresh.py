"""A refresh that a person asks for: it sees what changed before, and others share it."""

import asyncio

import pytest

from gatepost.upstreams.catalogue import Catalogue
from gatepost.upstreams.connection import UpstreamResult
from tests.upstreams.conftest import RefreshReplica, ScriptedUpstream, register, tool


@pytest.mark.requirement("E3")
async def test_a_refresh_can_be_forced(replica: RefreshReplica, upstream: ScriptedUpstream) -> None:
    """Several at once are two fetches at most; the answer has the new catalogue."""
    server = await register(replica.store)
    await replica.refresher.refresh("acme", server.id)
    upstream.lists["tools/list"].append(tool("b", inputSchema={"type": "object"}))
    refreshed = await asyncio.gather(
        *(replica.refresher.refresh("acme", server.id) for _ in range(5))
    )

    assert [[definition.key for definition in each.definitions] for each in refreshed] == [
        ["a", "b"]
    ] * 5
    assert len(upstream.asked) in {2, 3}
    with pytest.raises(LookupError):
        await replica.refresher.refresh("beta", server.id)


async def test_a_refresh_sees_changes_made_before_it(
    replica: RefreshReplica, upstream: ScriptedUpstream
) -> None:
    """A fetch that runs may have asked before; one more follows, for all who wait."""
    server = await register(replica.store)
    lists = iter([["a"], ["a", "b"]])
    upstream.answer = lambda method, params: UpstreamResult(
        {"tools": [tool(name) for name in next(lists)]}
    )
    upstream.may_answer.clear()
    first = asyncio.create_task(replica.refresher.refresh("acme", server.id))
    await upstream.was_asked.wait()
    later = [asyncio.create_task(replica.refresher.refresh("acme", server.id)) for _ in range(5)]
    await asyncio.sleep(0)
    assert await replica.store.server("acme", server.id) == server
    upstream.may_answer.set()

    assert [definition.key for definition in (await first).definitions] == ["a"]
    for refreshed in await asyncio.gather(*later):
        assert [definition.key for definition in refreshed.definitions] == ["a", "b"]
    assert len(upstream.asked) == 2


async def test_an_older_answer_does_not_replace_a_newer_one(
    replica: RefreshReplica, upstream: ScriptedUpstream
) -> None:
    """Another replica may fetch meanwhile, and be faster."""
    server = await register(replica.store)
    upstream.may_answer.clear()
    slow = asyncio.create_task(replica.refresher.refresh("acme", server.id))
    await upstream.was_asked.wait()
    replica.clock.now += 1
    newer = Catalogue(server_id=server.id, fetched_at=replica.clock.now, instructions="Newer.")
    await replica.store.catalogues.put("acme", newer, notify=True)
    upstream.may_answer.set()

    assert (await slow).instructions == "Newer."
    assert (await replica.catalogue(server)).instructions == "Newer."


async def test_a_cancelled_refresh_does_not_end_that_of_others(
    replica: RefreshReplica, upstream: ScriptedUpstream
) -> None:
    """Each waits for the same fetch."""
    server = await register(replica.store)
    upstream.may_answer.clear()
    first = asyncio.create_task(replica.refresher.refresh("acme", server.id))
    second = asyncio.create_task(replica.refresher.refresh("acme", server.id))
    await asyncio.sleep(0)
    first.cancel()
    upstream.may_answer.set()

    assert len((await second).definitions) == 1
