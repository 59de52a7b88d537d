"""Tools as an agent platform's customer has them, and a server with them."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from gatepost import CallContext, Pack, ToolFailure
from gatepost.tools.context.client import MissingCapability, ProtocolError
from gatepost.tools.offers.offer import Outcome
from tests.support.client import RestClient
from tests.support.issuers import Idp
from tests.support.server import Server, issuer_settings, running_server

RUNS: list[CallContext] = []
"""The contexts of all calls that ran."""

CALL_STARTED = threading.Event()
CALL_CANCELLED = threading.Event()
MAY_CONTINUE = threading.Event()


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
    CALL_STARTED.set()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        CALL_CANCELLED.set()
        raise
    return "never"


@pack.tool()
async def book_appointment(ctx: CallContext, day: str) -> Ticket:
    """Book an appointment; takes as long as the test wants."""
    RUNS.append(ctx)
    CALL_STARTED.set()
    assert await asyncio.to_thread(MAY_CONTINUE.wait, 10)
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
def rest_working_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Change to a new folder, as servers keep their state where they are started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("rest"))
        yield


@pytest.fixture(scope="session")
def server(idp: Idp) -> Iterator[Server]:
    """Serve two tenants with tools that take and fail, and results of at most 3000 bytes."""
    tools = {"packs": ["demo"], "load": [TOOLS], "max_result_bytes": 3000, "timeout_s": 5}
    open_to_all = {"create_on_first_use": True}
    with running_server(idp, [issuer_settings(idp)], tools=tools, tenancy=open_to_all) as server:
        yield server


@pytest.fixture
def rest_client(server: Server) -> RestClient:
    """Return an agent of acme."""
    return RestClient(server)
