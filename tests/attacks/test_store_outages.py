"""Stores that go away in the middle of anything: one answer, with its id, and nothing left over."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gatepost import CallContext, Pack
from gatepost.storage.errors import StoreUnavailable
from tests.support import client_requests
from tests.support.endpoint import (
    DECLARED_META,
    JSON,
    META,
    VERSION,
    EndpointTaskClient,
    Response,
    message,
)
from tests.support.runners import run_until

pack = Pack("documents")


@pack.resource("doc://one")
async def one(ctx: CallContext) -> str:
    """Return a document."""
    return "one"


@pack.tool()
async def sign(ctx: CallContext) -> str:
    """Change something, so that an idempotency key is kept for it."""
    return "signed"


RECORDS = {
    "tasks": ("create", "get", "replace", "count"),
    "idempotency": ("begin", "get"),
    "sessions": ("get", "replace"),
}
SHARED_STORE = ("publish", "follow", "put", "take", "spend", "append", "read")


class ServerWithOutages(EndpointTaskClient):
    """A server whose stores answer until ``left`` more queries were made, and then never."""

    def __init__(self) -> None:
        super().__init__(
            [
                *client_requests.task_pack.tools.values(),
                *pack.tools.values(),
                *pack.documents.values(),
            ]
        )
        self.left = 10**9
        store = self.records.for_tenant("acme")
        for name, operations in RECORDS.items():
            for operation in operations:
                self._break(getattr(store, name), operation)
        for operation in SHARED_STORE:
            self._break(self.shared_store.for_tenant("acme"), operation)

    def _break(self, store: Any, operation: str) -> None:
        inner = getattr(store, operation)

        async def ask(*arguments: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise StoreUnavailable("away")
            return await inner(*arguments, **options)

        setattr(store, operation, ask)

    async def settled(self) -> None:
        """Wait until nothing is held and followed any more, but what serves later requests."""
        self.server.session_registry.close()

        async def is_over() -> bool:
            followed = self.shared_store.for_tenant("acme")._followers  # type: ignore[attr-defined]
            open_count = len(self.streams) + len(self.pubsub.tenants) + len(followed)
            return open_count + len(self.task_runner._running_tasks) == 0

        await run_until(is_over)


@pytest.fixture
async def server() -> AsyncIterator[ServerWithOutages]:
    server = ServerWithOutages()
    yield server
    server.left = 10**9
    await server.task_runner.aclose()


MODERN_REQUESTS = [
    ("tools/call", {"name": "slow_compute", "arguments": {"seconds": 0}}, {}),
    ("tools/call", {"name": "sign", "arguments": {}}, {"Idempotency-Key": "k"}),
    ("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, {}),
    ("subscriptions/listen", {"notifications": {"taskIds": ["t_1", "t_2"]}}, {}),
    ("tasks/get", {"taskId": "t_1"}, {}),
    ("tasks/update", {"taskId": "t_1", "inputResponses": {}}, {}),
    ("tasks/cancel", {"taskId": "t_1"}, {}),
]
LEGACY_REQUESTS = [
    ("POST", message("ping")),
    ("POST", message("tools/call", {"name": "greet", "arguments": {"name": "Ann"}})),
    ("POST", message("logging/setLevel", {"level": "error"})),
    ("POST", message("resources/subscribe", {"uri": "doc://one"})),
    ("POST", message("resources/unsubscribe", {"uri": "doc://one"})),
    ("POST", message("notifications/cancelled", {"requestId": 3}, identity=None)),
    ("GET", b""),
    ("DELETE", b""),
]
MAX_QUERIES = 8
"""More queries than any of these makes before it is answered."""


async def statuses_during_outages(
    server: ServerWithOutages, body: bytes, headers: list[tuple[str, str]], verb: str
) -> list[int]:
    """Return the statuses while the stores fail one query later each time."""
    statuses = []
    expected_id = json.loads(body).get("id") if body else None
    for attempt in range(MAX_QUERIES):
        hang_up = asyncio.Event()
        hang_up.set()
        server.left = attempt
        answer: Response = await server.send(body, headers, verb=verb, hang_up=hang_up)
        server.left = 10**9
        statuses.append(answer.status)
        if answer.status == 503:
            assert answer.headers["retry-after"]
            assert (answer.json["error"]["code"], answer.json.get("id")) == (-32603, expected_id)
        await server.settled()
    return statuses


@pytest.mark.parametrize(("method", "params", "more"), MODERN_REQUESTS)
async def test_a_request_during_a_store_outage_is_answered_with_its_id(
    server: ServerWithOutages, method: str, params: dict[str, Any], more: dict[str, str]
) -> None:
    """A client waits for an answer with the id of its request (J-01)."""
    full_params = {**params, "_meta": {META + "protocolVersion": VERSION, **DECLARED_META}}
    named = params.get("name") or params.get("taskId")
    headers = [JSON, ("mcp-protocol-version", VERSION), ("mcp-method", method), *more.items()]
    headers += [("mcp-name", named)] if named else []
    statuses = await statuses_during_outages(server, message(method, full_params), headers, "POST")

    assert statuses[0] == 503
    assert set(statuses) - {503} <= {0, 200, 400}


@pytest.mark.parametrize(("verb", "body"), LEGACY_REQUESTS)
async def test_a_session_survives_a_store_outage(
    server: ServerWithOutages, verb: str, body: bytes
) -> None:
    """The client gets 503 instead of 404, which would make it open a new session."""
    session = ("mcp-session-id", await server.open())
    accept = ("accept", "text/event-stream, application/json")
    statuses = await statuses_during_outages(server, body, [JSON, accept, session], verb)

    assert statuses[0] == 503
    expected = {204, 404} if verb == "DELETE" else {200, 202}
    assert set(statuses) - {503} <= expected
