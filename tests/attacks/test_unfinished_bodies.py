"""Bodies whose last byte never comes: a caller may hold back only so many at once."""

import asyncio
from typing import Any

import pytest

from gatepost.execution.cpu_thread import TooManyWaiting
from gatepost.http import body
from gatepost.http.body import AT_ONCE_OF_TENANT, LARGE_BODIES, TooLarge, read_body_of
from gatepost_authz.caller import TenantContext
from gatepost_authz.middleware import CALLER
from tests.support.endpoint import EndpointClient, a_caller

LIMIT = 1000
ALICE, BOB = a_caller(), a_caller(tenant_id="globex", subject="bob")


class Arriving:
    """A body of which all but the end arrives."""

    def __init__(self, caller: TenantContext) -> None:
        self._end = asyncio.Event()
        self._parts = [b"x" * 500, b"x" * 499]
        self.read = asyncio.create_task(read_body_of(caller, self._receive, LIMIT))

    async def _receive(self) -> dict[str, Any]:
        if self._parts:
            return {"type": "http.request", "body": self._parts.pop(), "more_body": True}
        await self._end.wait()
        return {"type": "http.request", "body": b"x", "more_body": False}

    async def finish(self) -> bytes:
        """Send the last byte."""
        self._end.set()
        return await self.read


async def _begun(caller: TenantContext, count: int) -> list[Arriving]:
    bodies = [Arriving(caller) for _ in range(count)]
    for _ in range(3):
        await asyncio.sleep(0)
    return bodies


async def test_the_unfinished_bodies_of_one_caller_are_limited() -> None:
    """The newest bodies beyond the limit are refused; the others are read to their end."""
    bodies = await _begun(ALICE, LARGE_BODIES + 10)
    refused = [body for body in bodies if body.read.done()]
    assert 8 <= len(refused) <= 11
    assert all(isinstance(body.read.exception(), TooManyWaiting) for body in refused)
    other = (await _begun(BOB, 1))[0]
    assert await other.finish() == b"x" * LIMIT
    for arrival in bodies:
        if arrival not in refused:
            assert await arrival.finish() == b"x" * LIMIT
    assert body._arriving.of(ALICE.principal_key) == (0, 0)
    assert await (await _begun(ALICE, 1))[0].finish() == b"x" * LIMIT


async def test_the_unfinished_bodies_of_a_tenant_are_limited() -> None:
    """The limit holds for any number of callers and does not affect another tenant."""
    bodies = []
    for number in range(6):
        bodies += await _begun(a_caller(subject=f"a{number}"), LARGE_BODIES)
    refused = sum(body.read.done() for body in bodies)
    assert refused >= len(bodies) - AT_ONCE_OF_TENANT - 1
    assert await (await _begun(BOB, 1))[0].finish() == b"x" * LIMIT
    for arrival in bodies:
        arrival.read.cancel()
    await asyncio.gather(*(body.read for body in bodies), return_exceptions=True)
    assert body._arriving.of(ALICE.principal_key) == (0, 0)


async def test_an_aborted_or_too_large_body_is_no_longer_counted() -> None:
    """The count is released when the reading ends for any reason."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"x" * 600, "more_body": True}

    with pytest.raises(TooLarge):
        await read_body_of(ALICE, receive, LIMIT)
    assert body._arriving.of(ALICE.principal_key) == (0, 0)


async def test_a_refused_unfinished_body_at_mcp_gets_429_and_retry_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer is an HTTP status, because the id of the request is not known yet."""
    monkeypatch.setattr(body, "LARGE_BODIES", 0)
    client = EndpointClient()
    assert (await client.send(b"{}")).status == 400  # it came as a whole

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{", "more_body": True}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/mcp",
        "headers": [(b"content-type", b"application/json")],
        CALLER: ALICE,
    }
    await client.endpoint(scope, receive, send)
    assert sent[0]["status"] == 429
    assert (b"retry-after", b"1") in sent[0]["headers"]
    assert b'"code":-32000' in sent[1]["body"]
