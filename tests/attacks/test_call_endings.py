"""Calls that end in unusual ways are answered and leave nothing behind."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gatepost import CallContext, Pack
from gatepost.storage.shared_store import Subscription
from tests.support.endpoint import EndpointClient
from tests.support.endpoint_clients import EndpointPair

WITHIN_S = 10


class Panic(BaseException):
    """As the bindings of Rust libraries raise it: no Exception."""


pack = Pack("endings")
CALL_ENDINGS: dict[str, Callable[[], BaseException]] = {
    "panic": lambda: Panic("hunter2"),
    "interrupt": KeyboardInterrupt,
    "exit": lambda: SystemExit(3),
    "group": lambda: BaseExceptionGroup("several", [Panic("hunter2")]),
    "cancelled": asyncio.CancelledError,
}


@pack.tool()
async def end(ctx: CallContext, how: str, waits: bool) -> str:
    """End in a way that a tool should not."""
    if waits:
        await asyncio.sleep(0)
    raise CALL_ENDINGS[how]()


@pack.tool(timeout_s=0.02)
async def report(ctx: CallContext) -> str:
    """Say how far it is."""
    await ctx.progress(1)
    return "done"


@pytest.mark.parametrize("key", ["", "k"])
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("how", CALL_ENDINGS)
async def test_every_exception_of_a_tool_is_answered_as_a_failed_call(
    how: str, waits: bool, key: str
) -> None:
    """The caller gets a JSON-RPC answer without the exception's text."""
    client = EndpointClient(pack.tools.values())
    params = {"name": "end", "arguments": {"how": how, "waits": waits}}
    more: dict[str, Any] = {"idempotency_key": key} if key else {}
    answer = await asyncio.wait_for(client.ask("tools/call", params, **more), WITHIN_S)

    assert answer.status == 200
    result = answer.json["result"]
    assert result["isError"] is True
    assert "request-1" in result["content"][0]["text"]
    assert "hunter2" not in answer.body.decode()


async def test_a_stream_whose_subscription_never_begins_is_not_counted() -> None:
    """The call ended while its subscription waited for the shared store, and kept its limit."""
    replicas = await EndpointPair(pack.tools.values()).open()
    assert await replicas.ping(replicas.one) == 200
    shared_store: Any = replicas.one.shared_store.for_tenant("acme")
    waited = asyncio.Event()

    async def follow(topic: str, deliver: Any) -> Subscription:
        waited.set()
        await asyncio.Event().wait()
        raise AssertionError

    shared_store.follow = follow
    for _ in range(3):
        live = replicas.call(replicas.one, "report")
        await live.over()
        assert live.status == 200

    assert waited.is_set()
    assert len(replicas.one.streams) == 0
    assert not replicas.one.streams._of_caller
