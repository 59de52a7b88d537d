"""Batches of 2025-03-26 whose messages are made to spoil the answers of each other."""

from typing import Any

import pytest

from gatepost import CallContext, Pack
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.shared_store import MemoryTenantSharedStore
from tests.support.endpoint import EndpointClient, message

pytestmark = pytest.mark.requirement("DE-09", "J-09")

pack = Pack("writers")
WRITTEN_TEXTS: list[str] = []


@pack.tool()
async def write(ctx: CallContext, name: str) -> str:
    """Write once."""
    WRITTEN_TEXTS.append(name)
    return f"wrote {name}"


@pack.tool(read_only=True)
async def long(ctx: CallContext) -> str:
    """Answer a megabyte."""
    return "x" * 1_000_000


@pytest.mark.parametrize("named", [True, False])
async def test_a_batch_stops_when_its_answers_fill_the_size_of_one_answer(named: bool) -> None:
    """Calls beyond the limit get an error; the next batch starts with the full limit."""
    client = EndpointClient(pack.tools.values())
    call = [message("tools/call", {"name": "long", "arguments": {}}, identity=n) for n in range(50)]
    session = await client.open("2025-03-26") if named else ""
    for _ in range(2):
        body = b"[%b]" % b",".join(call)
        answer = await (client.within(session, body) if named else client.send(body))
        codes = [response.get("error", {}).get("code") for response in answer.json]

        assert len(answer.body) < 5_000_000
        assert codes == [None] * 4 + [-32000] * 46
        assert answer.json[-1]["error"]["message"].startswith("Not started: the earlier answers")


def _write(name: str) -> bytes:
    return message("tools/call", {"name": "write", "arguments": {"name": name}}, identity=name)


@pytest.mark.parametrize("identity", ["1e400", "-1e999", "1e308", "1" * 1000])
@pytest.mark.parametrize("version", ["2025-03-26", "2025-06-18", "2025-11-25"])
async def test_a_response_with_an_unreadably_large_number_as_id_is_ignored(
    version: str, identity: str
) -> None:
    """The server's own request ids are strings, so it does not parse a number as an id."""
    client = EndpointClient()
    session = await client.open(version)
    for member in ("result", "error"):
        body = f'{{"jsonrpc":"2.0","id":{identity},"{member}":{{}}}}'
        assert (await client.within(session, body.encode())).status == 202


async def test_a_call_in_a_batch_is_answered_although_an_odd_response_follows() -> None:
    """The response that follows has a number as its id that no float can hold."""
    client = EndpointClient(pack.tools.values())
    session = await client.open("2025-03-26")
    response = b'{"jsonrpc":"2.0","id":1e400,"result":{}}'
    answer = await client.within(session, b"[%b,%b]" % (_write("a"), response))

    assert [response["id"] for response in answer.json] == ["a"]
    assert WRITTEN_TEXTS.pop() == "a"


async def test_a_batch_continues_when_the_shared_store_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cancellation between two calls is lost; both calls run and are answered."""
    client = EndpointClient(pack.tools.values())
    session = await client.open("2025-03-26")

    async def gone(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("the store is gone")

    monkeypatch.setattr(MemoryTenantSharedStore, "put", gone)
    cancel = message("notifications/cancelled", {"requestId": "z"}, identity=None)
    answer = await client.within(session, b"[%b,%b,%b]" % (_write("b"), cancel, _write("c")))

    assert [response["id"] for response in answer.json] == ["b", "c"]
    assert [WRITTEN_TEXTS.pop(), WRITTEN_TEXTS.pop()] == ["c", "b"]
