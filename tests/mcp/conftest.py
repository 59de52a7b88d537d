"""A pack with offers of every kind, a client that asks in any revision, and where servers write."""

from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from gatepost import (
    Audio,
    CallContext,
    Contents,
    Icon,
    Image,
    ListedResource,
    Message,
    Pack,
    ToolFailure,
)
from tests.support.endpoint import CLIENT, VERSION, EndpointClient, Response, message

REVISIONS = [VERSION, "2025-11-25", "2025-06-18", "2025-03-26"]
PNG = b"\x89PNG\r\n\x1a\n"
ICON = Icon("https://mcp.example.com/icon.png", mime_type="image/png", sizes=("48x48",))
CHANGED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
QUARTERS = ("q1", "q2", "q3", "q4")

pack = Pack("library")


@pack.resource(
    "library://rules",
    title="House rules",
    icons=(ICON,),
    mime_type="text/markdown",
    size=7,
    audience=("user",),
    priority=0.5,
    last_modified=CHANGED,
    ttl_s=60,
)
async def rules(ctx: CallContext) -> str:
    """The rules of the library."""
    return "# Rules"


@pack.resource("library://cover", mime_type="image/png")
def cover(ctx: CallContext) -> bytes:
    """Return a picture of the library."""
    return PNG


@pack.resource("library://index")
async def index(ctx: CallContext) -> dict[str, int]:
    """How many books there are."""
    return {"books": 3}


@pack.resource("library://several")
async def several(ctx: CallContext) -> list[Contents]:
    """Two pieces of one thing."""
    return [Contents("a"), Contents(b"b", "application/x-b", "library://several/b")]


@pack.resource("library://empty")
async def empty(ctx: CallContext) -> None:
    """Return no contents."""


@pack.resource("library://failing/{kind}")
async def failing(ctx: CallContext, kind: str) -> str:
    """Fail in the way asked for."""
    raise ToolFailure(kind, "No.", retry_after=2.5)  # type: ignore[arg-type]


@pack.resource("library://broken")
async def broken(ctx: CallContext) -> str:
    """Fail unexpectedly."""
    raise RuntimeError("the password is hunter2")


@pack.resource("report://{quarter}", title="Report", icons=(ICON,), mime_type="text/csv")
async def report(ctx: CallContext, quarter: Literal["q1", "q2", "q3", "q4"]) -> str:
    """The figures of one quarter."""
    return f"quarter,tenant\n{quarter},{ctx.caller.tenant_id}\n"


@report.list
async def reports(ctx: CallContext) -> list[ListedResource]:
    """The quarters that are over, and one that cannot be read."""
    known = [
        ListedResource(variables={"quarter": q}, title=q.upper(), size=9) for q in QUARTERS[:2]
    ]
    return [
        *known,
        ListedResource(variables={"quarter": "q9"}),
        ListedResource(variables={"quarter": ".."}),
    ]


@report.complete("quarter")
async def quarters(ctx: CallContext, value: str, given: Mapping[str, str]) -> list[str]:
    """The quarters that begin like this."""
    return [quarter for quarter in QUARTERS if quarter.startswith(value)]


@pack.resource("note://{+path}{?line,word}")
async def note(ctx: CallContext, path: str, line: int = 0, word: str = "") -> dict[str, Any]:
    """What was asked for, as it arrived."""
    return {"path": path, "line": line, "word": word}


@pack.resource("library://hidden", scopes={"hidden"})
async def hidden(ctx: CallContext) -> str:
    """Be out of reach."""
    return "never"


@pack.prompt(title="Summary", icons=(ICON,))
async def summarise(
    ctx: CallContext,
    quarter: Annotated[str, Field(title="Quarter", description="Such as q1", max_length=10)],
    tone: Literal["dry", "warm"] = "dry",
) -> str:
    """Summarise a quarter."""
    return f"Summarise {quarter} for {ctx.caller.tenant_id}, {tone}."


@summarise.complete("quarter")
async def of_tenant(ctx: CallContext, value: str, given: Mapping[str, str]) -> list[str]:
    """The tenant's own names, and what else was given."""
    return [f"{ctx.caller.tenant_id}-{value}-{given.get('tone', '')}-{n}" for n in range(150)]


@pack.prompt()
async def illustrated(ctx: CallContext) -> list[Message]:
    """Show what a message can hold."""
    link = {
        "type": "resource_link",
        "uri": "library://rules",
        "name": "rules",
        "annotations": {"lastModified": "2026-01-01T00:00:00Z"},
    }
    return [
        Message("user", "Look:"),
        Message("user", Image(PNG)),
        Message("user", Audio(b"RIFF")),
        Message("assistant", Contents("text", "text/plain", "library://rules")),
        Message("assistant", link),
    ]


@pack.prompt(scopes={"hidden"})
async def hidden_prompt(ctx: CallContext) -> str:
    """Be out of reach."""
    return "never"


@pack.prompt(name="broken")
async def broken_prompt(ctx: CallContext) -> str:
    """Fail unexpectedly."""
    raise RuntimeError("the password is hunter2")


@pack.tool(icons=(ICON,))
async def stamp(ctx: CallContext) -> str:
    """Stamp a card."""
    return "stamped"


def base64(data: bytes) -> str:
    return b64encode(data).decode()


async def ask(client: EndpointClient, revision: str, method: str, **params: Any) -> Response:
    """One request in the words of a revision."""
    if revision == VERSION:
        return await client.ask(method, params)
    return await client.within(await client.open(revision), message(method, params))


async def result_of(
    client: EndpointClient, revision: str, method: str, **params: Any
) -> dict[str, Any]:
    """Its result."""
    result: dict[str, Any] = (await ask(client, revision, method, **params)).json["result"]
    return result


async def declared(client: EndpointClient, revision: str) -> dict[str, Any]:
    """Return the capabilities that the server declares."""
    if revision == VERSION:
        response = await client.ask("server/discover")
    else:
        asked = {"protocolVersion": revision, "capabilities": {}, "clientInfo": CLIENT}
        response = await client.send(message("initialize", asked))
    capabilities: dict[str, Any] = response.json["result"]["capabilities"]
    return capabilities


@pytest.fixture(autouse=True, scope="module")
def in_working_directory(working_directory: Path) -> None:
    """Servers keep their state where they are started."""
