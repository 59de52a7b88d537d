"""Tools to try Gatepost out: the caller, scopes, slow work, and resources."""

import asyncio
import csv
import io
import mimetypes
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from gatepost import CallContext, Contents, ListedResource, Message, Pack, Relevance, ToolFailure
from gatepost_packs.text import TEXT_RESULT

pack = Pack("demo")

# Characters that begin a formula in spreadsheets (OWASP, CSV injection).
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")

LARGEST_FILE = 1_000_000
MAX_FILES = 1_000

FILENAME = re.compile(r"[^\W_][\w. -]{0,99}")


class InvoiceLine(TypedDict, total=False):
    """One line of an invoice."""

    __pydantic_config__ = ConfigDict(extra="ignore", allow_inf_nan=False)  # type: ignore[misc]  # pydantic's own way

    date: str
    amount: float
    vendor: str


class WhoAmI(BaseModel):
    """The gate's knowledge about a caller, all of it from the checked token."""

    tenant: str
    issuer: str
    subject: str
    subject_kind: str
    client_id: str | None
    scopes: list[str]
    roles: list[str]
    resource: str
    expires_at: int


@pack.tool(
    title="Echo",
    read_only=True,
    idempotent=True,
    open_world=False,
    output_schema=TEXT_RESULT,
)
async def echo(
    ctx: CallContext,
    text: Annotated[str, Field(description="What to send back", max_length=1_000_000)],
) -> str:
    """Send the given text back unchanged."""
    return text


@pack.tool(title="Who am I", read_only=True, idempotent=True, open_world=False)
async def whoami(ctx: CallContext) -> WhoAmI:
    """Say who is calling, as the gate knows it from the access token: tenant, scopes, roles."""
    caller = ctx.caller
    return WhoAmI(
        tenant=caller.tenant_id,
        issuer=caller.issuer,
        subject=caller.subject,
        subject_kind=caller.subject_kind,
        client_id=caller.client_id,
        scopes=sorted(caller.scopes),
        roles=sorted(caller.roles),
        resource=caller.resource,
        expires_at=caller.expires_at,
    )


@pack.tool(
    title="Save CSV",
    scopes={"files:write"},
    read_only=False,
    destructive=False,
    idempotent=True,
    open_world=False,
    output_schema=TEXT_RESULT,
)
async def save_csv(
    ctx: CallContext,
    filename: Annotated[str, Field(description="Output filename without extension")],
    rows: Annotated[list[InvoiceLine], Field(description="The invoice lines", max_length=100_000)],
    overwrite: Annotated[bool, Field(description="Replace a file of that name")] = False,
) -> str:
    """Save parsed invoice data as a CSV file to the shared drive."""
    name = _named(filename)
    data = await asyncio.to_thread(_csv, rows)  # other calls are served meanwhile
    if overwrite:
        await ctx.workspace.write(name, data)
    elif not await ctx.workspace.write_new(name, data):
        present = await ctx.workspace.head(name, limit=len(data))
        # The same lines are the same call again.
        if present.data != data or present.size != len(data):
            message = (
                f"{name} exists with other content. Save under another name, or pass "
                "`overwrite`: true to replace it."
            )
            raise ToolFailure("conflict", message, field="filename")
    return f"CSV saved to /workspace/{name} ({len(rows)} {'row' if len(rows) == 1 else 'rows'})"


@pack.tool(
    title="Delete CSV",
    scopes={"files:write"},
    read_only=False,
    destructive=True,
    idempotent=False,
    open_world=False,
    approval=True,
    output_schema=TEXT_RESULT,
)
async def delete_csv(
    ctx: CallContext,
    filename: Annotated[str, Field(description="File to delete, without extension")],
) -> str:
    """Delete a CSV file from the shared drive for good; a person has to approve it first."""
    name = _named(filename)
    if not await ctx.workspace.delete(name):
        raise ToolFailure("not_found", f"There is no file {name}.", field="filename")
    return f"CSV deleted: {name}"


def _named(filename: str) -> str:
    """Return the file of that name; ToolFailure if the name is invalid."""
    if not FILENAME.fullmatch(filename):
        message = (
            "`filename` must start with a letter or digit and hold only letters, digits, "
            "spaces, `.`, `_` and `-` (at most 100 characters, no folders)."
        )
        raise ToolFailure("validation", message, field="filename")
    return f"{filename.removesuffix('.csv')}.csv"


def _csv(rows: list[InvoiceLine]) -> bytes:
    """Return the lines below a heading, in the format of RFC 4180."""
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(("date", "amount", "vendor"))
    writer.writerows(
        (_cell(row.get("date", "")), row.get("amount", ""), _cell(row.get("vendor", "")))
        for row in rows
    )
    return file.getvalue().encode()


def _cell(value: str) -> str:
    """
    Return text that a spreadsheet shows instead of running it: a formula could leak the sheet.
    """
    return f"'{value}" if value.startswith(FORMULA_STARTS) else value


@pack.tool(
    title="Count slowly",
    read_only=True,
    idempotent=True,
    open_world=False,
    timeout_s=600,
    output_schema=TEXT_RESULT,
)
async def count_slowly(
    ctx: CallContext,
    steps: Annotated[int, Field(description="How far to count", ge=1, le=1000)],
    delay_s: Annotated[float, Field(description="Seconds between two steps", ge=0, le=10)],
) -> str:
    """Count up to a number, reporting progress at each step; can be cancelled at any time."""
    for step in range(1, steps + 1):
        await asyncio.sleep(delay_s)
        await ctx.progress(step, steps, f"Counted to {step}")
    return f"Counted to {steps}"


@pack.resource(
    "demo://invoice-format",
    title="Invoice format",
    mime_type="text/markdown",
    audience=("assistant",),
    ttl_s=3600,
)
async def invoice_format(ctx: CallContext) -> str:
    """Return instructions for the lines of an invoice, as `save_csv` takes them."""
    return INVOICE_FORMAT


INVOICE_FORMAT = """\
# Invoice lines

Each line of an invoice is one row with up to three members:

- `date`: the day, written `2024-01-15`
- `amount`: a number without a currency
- `vendor`: the name of who sends the invoice
"""


@pack.resource(
    "workspace://{+path}",
    title="Workspace file",
    scopes={"files:read"},
    untrusted="workspace files",
)
async def workspace_file(ctx: CallContext, path: str) -> Contents:
    """Return a file of the caller's own workspace."""
    data = await ctx.workspace.read(path, limit=LARGEST_FILE)
    kind, coding = mimetypes.guess_type(path, strict=False)
    if coding is None:
        try:
            return Contents(data.decode(), kind or "text/plain")
        except UnicodeDecodeError:
            pass
    return Contents(data, (kind if coding is None else None) or "application/octet-stream")


@workspace_file.list
async def workspace_files(ctx: CallContext) -> list[ListedResource]:
    """Yield every file of the workspace, with its size and age."""
    return [
        ListedResource(
            variables={"path": file.path},
            size=file.size,
            relevance=Relevance(last_modified=datetime.fromtimestamp(file.modified, UTC)),
        )
        for file in await ctx.workspace.files(limit=MAX_FILES)
    ]


@workspace_file.complete("path")
async def workspace_paths(ctx: CallContext, value: str, arguments: Mapping[str, str]) -> list[str]:
    """Return the paths that begin with the typed text."""
    files = await ctx.workspace.files(limit=MAX_FILES)
    return [file.path for file in files if file.path.startswith(value)]


@pack.prompt(title="Check an invoice", scopes={"files:read"})
async def check_invoice(
    ctx: CallContext,
    path: Annotated[str, Field(description="A CSV file of the workspace", max_length=4096)],
) -> list[Message]:
    """Look through a saved invoice for lines that cannot be right."""
    data = await ctx.workspace.read(path, limit=LARGEST_FILE)
    text = data.decode(errors="replace")
    return [
        Message("user", Contents(text, "text/csv", f"workspace://{quote(path)}")),
        Message("user", Contents(INVOICE_FORMAT, "text/markdown", "demo://invoice-format")),
        Message("user", "Which lines of this invoice cannot be right, and why?"),
    ]


check_invoice.complete("path")(workspace_paths)
