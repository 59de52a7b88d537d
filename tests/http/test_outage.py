"""What callers get while a store is out: 503 and when to come back, on every route and era."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from gatepost import CallContext, Pack
from gatepost.mcp.request import IDEMPOTENCY_KEY
from gatepost.storage.backends import open_records, open_shared_store
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.records import Records
from gatepost.storage.shared_store import SharedStore
from gatepost.storage.valkey import channels
from tests.support.connections import RecordedEdge, ask, recorded_edge
from tests.support.endpoint import EndpointClient, Response, message
from tests.support.stores import POSTGRES_PASSWORD, Postgres

__all__ = ["recorded_edge"]  # a fixture

pack = Pack("told")


@pack.tool()
async def announce(ctx: CallContext) -> str:
    """Report progress, then notify all subscribers of a change."""
    await ctx.progress(1)
    await ctx.changes.updated("note:1")
    return "done"


@pack.tool()
async def count(ctx: CallContext) -> str:
    """Do nothing that needs a store."""
    return "1"


TOOLS = pack.tools.values()


@pytest.fixture
async def records(migrated_postgres: str, postgres_server: Postgres) -> AsyncIterator[Records]:
    """Yield records whose database was dropped after they were opened."""
    opened = await open_records(migrated_postgres)
    name = migrated_postgres.rpartition("/")[2]
    postgres_server.sql(f"DROP DATABASE {name} WITH (FORCE)")
    yield opened
    await opened.aclose()


@pytest.fixture
async def shared_store(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SharedStore]:
    """Yield a shared store that never answers, with a shorter timeout than in production."""
    monkeypatch.setattr(channels, "ANSWER_S", 0.2)
    opened = await open_shared_store(f"redis://:{POSTGRES_PASSWORD}@127.0.0.1:1/0")
    yield opened
    await opened.aclose()


def error_of(response: Response) -> dict[str, Any]:
    """Return the error of a 503 that says when to come back, and nothing else."""
    assert response.status == 503
    assert "www-authenticate" not in response.headers
    assert int(response.headers["retry-after"]) > 0
    assert POSTGRES_PASSWORD.encode() not in response.body
    assert b"postgres" not in response.body.lower()
    document: dict[str, Any] = response.json
    return document


ERROR = {"code": -32603, "message": "The server cannot reach its storage at the moment"}


async def test_a_modern_request_during_an_outage_is_503_with_its_id(records: Records) -> None:
    """Without a stored idempotency record the tool must not run."""
    client = EndpointClient(TOOLS, records=records)
    response = await client.ask("tools/call", {"name": "count"}, meta={IDEMPOTENCY_KEY: "k1"})

    assert error_of(response) == {"jsonrpc": "2.0", "id": 7, "error": ERROR}


async def test_calls_that_need_no_store_are_served_during_an_outage(
    records: Records, shared_store: SharedStore
) -> None:
    """Only requests that need a store fail."""
    client = EndpointClient(TOOLS, records=records, shared_store=shared_store)

    assert (await client.call("count")).status == 200


async def in_session(client: EndpointClient, session: str) -> Response:
    return await client.within(session, message("tools/list"))


async def send_initialized(client: EndpointClient, session: str) -> Response:
    return await client.within(session, message("notifications/initialized", identity=None))


async def end_session(client: EndpointClient, session: str) -> Response:
    return await client.send(b"", [("mcp-session-id", session)], verb="DELETE")


@pytest.mark.parametrize(
    ("exchange", "identity"), [(in_session, {"id": 7}), (send_initialized, {}), (end_session, {})]
)
async def test_a_session_request_during_an_outage_is_503_instead_of_404(
    records: Records,
    exchange: Callable[[EndpointClient, str], Awaitable[Response]],
    identity: dict[str, int],
) -> None:
    """A 404 would make the client begin a new session."""
    client = EndpointClient(TOOLS, records=records)
    response = await exchange(client, await client.open())

    assert error_of(response) == {"jsonrpc": "2.0", **identity, "error": ERROR}


@pytest.mark.parametrize("modern", [True, False], ids=["modern", "legacy"])
async def test_a_started_stream_ends_with_the_error(
    shared_store: SharedStore, modern: bool
) -> None:
    """Its status is already sent, so the last message has the error."""
    client = EndpointClient(TOOLS, shared_store=shared_store)
    params = {"name": "announce", "_meta": {"progressToken": 1}}
    if modern:
        response = await client.ask("tools/call", params, meta={"progressToken": 1})
    else:
        session = await client.open()
        response = await client.within(session, message("tools/call", params))

    assert response.status == 200
    assert response.events[-1] == {"jsonrpc": "2.0", "id": 7, "error": ERROR}


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/mcp", {"code": -32603, "message": ERROR["message"]}),
        ("/elsewhere", None),
    ],
)
async def test_every_route_answers_503_during_a_store_outage(
    recorded_edge: RecordedEdge, path: str, shape: dict[str, Any] | None
) -> None:
    """The body is that of the route's protocol, and the log has no traceback."""
    recorded_edge.inner.raises = StoreUnavailable(
        f"the database at {POSTGRES_PASSWORD} does not answer"
    )
    answer = await ask(recorded_edge.edge, path)
    document = json.loads(answer.body)

    assert answer.status == 503
    assert int(answer.headers.get("retry-after") or 0) > 0
    assert answer.headers.get("www-authenticate") is None
    assert POSTGRES_PASSWORD.encode() not in answer.body
    if shape is None:
        assert (document["error"], document["message"]) == ("unavailable", ERROR["message"])
    else:
        assert document["error"] | shape == document["error"]
        assert document["error"]["data"]["error"] == "unavailable"
