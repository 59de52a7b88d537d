"""Concurrency limits and calls that run on after their clients have left."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gatepost import CallContext, Outcome, Pack
from gatepost.tools.context.idempotency_key import IDEMPOTENCY
from tests.support.client import RestClient, modern_request, read_answer, request, session_call
from tests.support.endpoint import DECLARED_META
from tests.support.issuers import Idp
from tests.support.measuring import eventually
from tests.support.runners import BOB
from tests.support.server import Server, issuer_settings, running_server

pytestmark = pytest.mark.requirement("P12", "O12")

WITHIN_S = 20
CALL_STARTED, MAY_CONTINUE = threading.Event(), threading.Event()
pack = Pack("bookings")


async def booked() -> str:
    """Wait until the test lets the tool go on."""
    CALL_STARTED.set()
    await asyncio.to_thread(MAY_CONTINUE.wait)
    return "booked"


@pack.tool
async def book(ctx: CallContext, day: str) -> str:
    """Book a day."""
    return await booked()


@pack.tool
async def book_after_approval(ctx: CallContext, day: str) -> str:
    """Book a day that an approver has to agree to."""
    return await booked()


@pack.tool
async def plan(ctx: CallContext, day: str) -> Outcome:
    """Have another tool book a day."""
    return await ctx.call("book_after_approval", {"day": day})


class Leaver(msgspec.Struct, frozen=True):
    """A call whose client leaves while its tool runs."""

    tool: str
    protocol: str
    key: str = ""

    def __str__(self) -> str:
        return f"{self.tool} by {self.protocol}{' with a key' if self.key else ''}"

    @property
    def is_approved(self) -> bool:
        return self.tool != "book"

    @property
    def is_told_to_call_again(self) -> bool:
        """Return whether the call is answered while it waits for its approval."""
        return self.tool == "plan" or (self.is_approved and self.protocol == "rest")

    def leave(self, server: Server, token: str) -> None:
        """Make the call, have it approved if it needs that, and hang up while its tool runs."""
        before, sent = requests_ended(server), 1
        with self._sent(server, token) as first, contextlib.ExitStack() as connections:
            if self.is_told_to_call_again:
                read_answer(first)
            if self.is_approved:
                approve(server)
            if self.is_told_to_call_again:
                connections.enter_context(self._sent(server, token))
                sent += 1
            assert CALL_STARTED.wait(WITHIN_S)
        if self.protocol != "session":  # a session's request goes on, so that it can be resumed
            eventually(lambda: requests_ended(server) == before + sent, within=WITHIN_S)

    def _sent(self, server: Server, token: str) -> socket.socket:
        """Send the call on a connection of its own."""
        path, fields, body = self._request(server, token)
        fields += [
            ("Host", server.client.authority),
            ("Authorization", f"Bearer {token}"),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
        ]
        if self.key:
            fields.append((IDEMPOTENCY.decode(), self.key))
        connection = socket.create_connection(("127.0.0.1", server.client.port), timeout=WITHIN_S)
        connection.sendall(request("POST", path, fields, body))
        return connection

    def _request(self, server: Server, token: str) -> tuple[str, list[tuple[str, str]], bytes]:
        """Return path, header fields and body of the call."""
        arguments = {"day": "monday"}
        if self.protocol == "rest":
            return f"/tool/{self.tool}/call", [], json.dumps(arguments).encode()
        if self.protocol == "session":
            accept = ("Accept", "application/json, text/event-stream")
            fields = [accept, ("Mcp-Session-Id", server.client.open(token))]
            return server.client.path, fields, session_call(self.tool, arguments)
        meta = DECLARED_META if self.protocol == "tasks" else {}
        params = {"name": self.tool, "arguments": arguments, "_meta": meta}
        return server.client.path, *modern_request("tools/call", params)


LEAVERS = (
    Leaver("book", "mcp", "k"),
    Leaver("book", "rest", "k"),
    Leaver("book_after_approval", "mcp"),
    Leaver("book_after_approval", "mcp", "k"),
    Leaver("book_after_approval", "rest"),
    Leaver("book_after_approval", "session"),
    Leaver("book_after_approval", "tasks"),
    Leaver("plan", "mcp"),
    Leaver("plan", "rest"),
)


def requests_ended(server: Server) -> int:
    """Return the number of requests that have ended."""
    return server.log().count('"event":"request"')


def approve(server: Server) -> None:
    """Approve the only waiting request."""
    service = server.services.approvals
    eventually(lambda: server.run(service.waiting("acme")), within=WITHIN_S)
    [waiting] = server.run(service.waiting("acme"))
    server.run(service.approve("acme", waiting.id, BOB))


def taken(server: Server) -> list[int]:
    """Return the running calls of the tenant and of the tool, as all processes count them."""
    tools = ("book", "book_after_approval")
    levels = server.run(server.services.limits.levels("acme", tools=tools))
    return [level.running for level in levels.concurrency]


@pytest.fixture(params=["sqlite", "sqlite and valkey"])
def server(idp: Idp, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    """Yield a server whose tenant may run one call at a time."""
    storage = {"database": f"sqlite:///{tmp_path}/gatepost.db"}
    if request.param == "sqlite and valkey":
        storage["shared"] = request.getfixturevalue("valkey")
    limits: dict[str, Any] = {"requests_per_second": 0, "failures_per_second": 0}
    CALL_STARTED.clear()
    MAY_CONTINUE.clear()
    with running_server(
        idp,
        [issuer_settings(idp)],
        kind=Server,
        tenancy={"create_on_first_use": True},
        storage=storage,
        tools={"load": [__name__, "tests.support.server"]},
        limits=limits | {"tenant": {"concurrency": 1}, "tool": {"concurrency": 1}},
        approvals={"require": ["book_after_approval"]},
    ) as server:
        yield server
        MAY_CONTINUE.set()


@pytest.mark.parametrize("leaver", LEAVERS, ids=str)
def test_a_call_whose_client_left_counts_until_its_tool_ends(
    server: Server, leaver: Leaver
) -> None:
    """Otherwise a caller could run any number of calls at once by leaving each of them."""
    leaver.leave(server, server.token(org_id="acme"))
    other = RestClient(server, server.token(org_id="acme", sub="carol"))

    assert taken(server)[0] == 1
    assert sum(taken(server)[1:]) == 1
    refusal = other.call("record_call", {})
    assert (refusal.status, refusal.raw.field("retry-after")) == (429, "1")

    MAY_CONTINUE.set()
    eventually(lambda: other.call("record_call", {}).status == 200, within=WITHIN_S)
    eventually(lambda: not sum(taken(server)), within=WITHIN_S)
    assert server.services.limits.counters.running == {}
    assert server.services.limits.queue.running == 0
