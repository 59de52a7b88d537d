"""Tools as an agent platform's customer has them, a server with them, and clients of REST."""

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec
import pytest
from pydantic import BaseModel, Field

from gatepost import CallContext, Pack, ToolFailure
from gatepost.rest.exchange import RestLimits
from gatepost.rest.routes import RestRoutes
from gatepost.tools.api import Outcome
from gatepost.tools.client import MissingCapability, ProtocolError
from gatepost.tools.registry import Registry
from gatepost.tools.runner import Runner
from gatepost_authz.caller import TenantContext
from gatepost_authz.challenge import Challenge
from gatepost_authz.config import Resource, SiblingPaths
from gatepost_authz.middleware import CALLER
from tests.support.client import Fields, RawAnswer
from tests.support.endpoint import URL, Response, exchange
from tests.support.issuers import Idp
from tests.support.server import Server, issuer_settings, running_server


class RestAnswer(msgspec.Struct):
    """One answer, which is JSON and has its content type, whatever its status."""

    status: int
    json: Any
    raw: RawAnswer

    @property
    def error(self) -> tuple[int, str]:
        """Status and stable word; the message is there for the model."""
        assert isinstance(self.json["message"], str)
        assert self.json["message"]
        return self.status, self.json["error"]


class Octopus:
    """An agent of one tenant; *base* is where the routes are."""

    def __init__(self, server: Server, token: str | None = None, *, base: str = "") -> None:
        self.server = server
        self.token = server.token() if token is None else token
        self.base = base

    def health(self) -> RestAnswer:
        return self.send("GET", "/health", token="")

    def tools(self, *fields: tuple[str, str]) -> RestAnswer:
        return self.send("GET", f"{self.base}/tools", fields)

    def names(self) -> list[str]:
        return [tool["name"] for tool in self.tools().json]

    def call(
        self, tool: str, arguments: Mapping[str, Any] | None = None, *fields: tuple[str, str]
    ) -> RestAnswer:
        body = json.dumps(arguments or {}).encode()
        return self.post(tool, body, *fields)

    def post(self, tool: str, body: bytes, *fields: tuple[str, str]) -> RestAnswer:
        return self.send("POST", f"{self.base}/tool/{tool}/call", fields, body)

    def send(
        self,
        method: str,
        path: str,
        fields: Fields = (),
        body: bytes = b"",
        *,
        token: str | None = None,
    ) -> RestAnswer:
        """Any request; every answer of this protocol is JSON (O6)."""
        token = self.token if token is None else token
        raw = self.server.client.send(method, path, fields, body, token=token or None)
        assert raw.field("content-type") == "application/json", raw
        return RestAnswer(raw.status, json.loads(raw.body) if raw.body else None, raw)


class RestEndpoint:
    """Talks to one bridge over this runner and registry."""

    def __init__(
        self, runner: Runner, registry: Registry, *, limits: RestLimits | None = None
    ) -> None:
        self.bridge = RestRoutes(
            runner,
            registry,
            challenge=Challenge(),
            resource_of=SiblingPaths(Resource(URL)),
            limits=limits or RestLimits(),
        )

    async def tools(self, caller: TenantContext) -> Response:
        more = {CALLER: caller, "path_params": {}}
        return await exchange(self.bridge.list_tools, more, verb="GET", path="/tools")

    async def call(
        self, caller: TenantContext, tool: str, arguments: Mapping[str, Any] | None = None
    ) -> Response:
        return await self.post(caller, tool, json.dumps(arguments or {}).encode())

    async def post(self, caller: TenantContext, tool: str, body: bytes) -> Response:
        """A call with exactly these bytes."""
        more = {CALLER: caller, "path_params": {"name": tool}}
        path = f"/tool/{tool}/call"
        return await exchange(self.bridge.call_tool, more, body=body, path=path)


RUNS: list[CallContext] = []
"""The contexts of all calls that ran."""

STARTED = threading.Event()
CANCELLED = threading.Event()
GO_ON = threading.Event()


TOOLS = "tests.rest.conftest"
pack = Pack("tickets")

PIXEL = "iVBORw0KGgo="


class Ticket(BaseModel):
    """A ticket that exists now."""

    ticket_id: int
    status: str
    note: str | None = None


@pack.tool(read_only=False)
async def create_ticket(
    ctx: CallContext,
    subject: Annotated[str, Field(description="The ticket subject line", max_length=200)],
    priority: Literal["low", "normal", "high", "urgent"] = "normal",
) -> Ticket:
    """Create a new support ticket. Returns its number."""
    RUNS.append(ctx)
    return Ticket(ticket_id=len(RUNS), status="open")


@pack.tool(scopes={"tickets:close"})
async def close_ticket(ctx: CallContext, ticket_id: int) -> Ticket:
    """Close a ticket."""
    RUNS.append(ctx)
    return Ticket(ticket_id=ticket_id, status="closed")


@pack.tool(read_only=True)
async def search_tickets(ctx: CallContext, query: str) -> str:
    """Search tickets; the upstream is down."""
    raise ToolFailure(
        "upstream_unavailable", "The ticket API is temporarily unavailable.", retry_after=12.2
    )


@pack.tool(read_only=True, timeout_s=0.2)
async def wait_briefly(ctx: CallContext) -> str:
    """Wait for longer than this tool may."""
    return await _wait()


@pack.tool(read_only=True)
async def wait_long(ctx: CallContext) -> str:
    """Wait until the caller cancels the call."""
    return await _wait()


async def _wait() -> str:
    STARTED.set()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        CANCELLED.set()
        raise
    return "never"


@pack.tool()
async def book_appointment(ctx: CallContext, day: str) -> Ticket:
    """Book an appointment; takes as long as the test wants."""
    RUNS.append(ctx)
    STARTED.set()
    assert await asyncio.to_thread(GO_ON.wait, 10)
    return Ticket(ticket_id=len(RUNS), status=day)


@pack.tool(read_only=True)
async def export_tickets(ctx: CallContext, count: int) -> str:
    """Export so many characters of text."""
    return "é" * count


@pack.tool(read_only=True)
async def export_rows(ctx: CallContext, count: int) -> Ticket:
    """Export so many characters of a structured answer."""
    return Ticket(ticket_id=1, status="open", note="x" * count)


@pack.tool(read_only=False)
async def import_rows(ctx: CallContext, count: int) -> Ticket:
    """Write something, and answer with so many characters."""
    RUNS.append(ctx)
    return Ticket(ticket_id=len(RUNS), status="open", note="x" * count)


@pack.tool(read_only=True)
async def draw(ctx: CallContext) -> Outcome:
    """Answer with every kind of content."""
    return Outcome(
        (
            {"type": "text", "text": "Found 1 diagram"},
            {"type": "text", "text": ""},
            {"type": "image", "data": PIXEL, "mimeType": "image/png"},
            {"type": "resource_link", "uri": "https://example.com/a", "name": "a"},
        )
    )


@pack.tool(read_only=True)
async def count_words(ctx: CallContext) -> Outcome:
    """Answer a structured value that is no object."""
    return Outcome(structured=[1, 2])


@pack.tool(read_only=True)
async def count_open(ctx: CallContext) -> int:
    """Count the open tickets."""
    return 5


@pack.tool(read_only=True)
async def list_open(ctx: CallContext) -> list[Ticket]:
    """List the open tickets."""
    return [Ticket(ticket_id=1, status="open")]


@pack.tool(read_only=True)
async def ask_user(ctx: CallContext) -> str:
    """Ask the user something."""
    raise MissingCapability({"elicitation": {}})


@pack.tool(read_only=True)
async def break_down(ctx: CallContext) -> str:
    """Fail with an unexpected exception."""
    raise KeyError("secret-of-the-tool")


@pack.tool(read_only=True)
async def answer_code(ctx: CallContext, code: int) -> str:
    """Answer a JSON-RPC error."""
    raise ProtocolError(code, "Not like that")


@pack.tool(read_only=True)
async def fail(ctx: CallContext, kind: str) -> str:
    """Fail in a given way."""
    made: Any = kind
    raise ToolFailure(made, "It did not work.", field="kind")


@pytest.fixture(scope="session")
def idp() -> Iterator[Idp]:
    with Idp() as idp:
        yield idp


@pytest.fixture(autouse=True, scope="session")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Servers keep their state where they are started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("rest"))
        yield


@pytest.fixture(scope="session")
def server(idp: Idp) -> Iterator[Server]:
    """Two tenants by claim, tools that take and go wrong, results of at most 3000 bytes."""
    tools = {"packs": ["demo"], "load": [TOOLS], "max_result_bytes": 3000, "timeout_s": 5}
    open_to_all = {"create_on_first_use": True}
    with running_server(idp, [issuer_settings(idp)], tools=tools, tenancy=open_to_all) as server:
        yield server


@pytest.fixture
def octopus(server: Server) -> Octopus:
    """An agent of acme."""
    return Octopus(server)
