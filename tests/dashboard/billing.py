"""Tools of a small company, of which some ask a person first."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field

from gatepost import CallContext, FileWrite, Pack, Secret, SettingsLookup, ToolFailure
from gatepost_authz import Network

RAN: list[dict[str, object]] = []
"""What the tools did, in order."""

pack = Pack("billing")


class Line(BaseModel):
    """One line of an invoice."""

    item: str
    pieces: int
    price: float


@pack.tool(
    title="Send an invoice",
    scopes={"billing:write"},
    read_only=False,
    destructive=True,
    open_world=True,
)
async def send_invoice(
    ctx: CallContext,
    to: Annotated[str, Field(description="The customer's e-mail address.")],
    lines: Annotated[list[Line], Field(description="What is charged.")],
    text: Annotated[str, Field(description="What the e-mail says.")] = "",
    due_days: Annotated[int, Field(description="Days until it has to be paid.")] = 14,
    copy_to: Annotated[str | None, Field(description="Somebody who gets a copy.")] = None,
    reminder: Annotated[bool, Field(description="Remind when it is overdue.")] = False,
    mail_token: Secret = "",
) -> str:
    """Send an invoice to a customer by e-mail, from the company's own address."""
    RAN.append({"tool": "send_invoice", "to": to, "lines": len(lines), "text": text})
    return f"sent to {to}"


@pack.tool(title="Pay back", scopes={"billing:write"}, read_only=False, destructive=True)
async def refund(
    ctx: CallContext,
    customer: Annotated[str, Field(description="The customer's number.")],
    amount: Annotated[float, Field(description="Euros.", gt=0)],
    reason: Annotated[str, Field(description="Why.")] = "",
) -> str:
    """Pay money back to a customer."""
    RAN.append({"tool": "refund", "customer": customer, "amount": amount})
    return f"{amount:.2f} EUR paid back to {customer}"


@pack.tool(title="Close the books", scopes={"billing:close"}, read_only=False, destructive=True)
async def close_books(
    ctx: CallContext, month: Annotated[str, Field(description="As in 2026-10.")]
) -> str:
    """Close a month's books for good."""
    RAN.append({"tool": "close_books", "month": month})
    return "closed"


@pack.tool(
    title="Find a customer",
    scopes={"billing:read"},
    read_only=True,
    idempotent=True,
    open_world=False,
)
async def find_customer(
    ctx: CallContext, name: Annotated[str, Field(description="Any part of the name.")]
) -> list[str]:
    """Look a customer up by name."""
    return [f"C-1042 {name}"]


def letter_at(name: str, settings: SettingsLookup) -> str:
    """Where a letter lies, which may depend on what the operator has set."""
    return f"{'outside' if settings(Network).proxy else 'letters'}/{name}"


def letter_after(old: bytes, arguments: Mapping[str, Any]) -> bytes:
    """Return a letter with one more paragraph."""
    if arguments["paragraph"] == "rubbish":
        raise ToolFailure("validation", "That is no paragraph.", field="paragraph")
    return old + b"\n" + str(arguments["paragraph"]).encode()


@pack.tool(
    scopes={"files:write"},
    approval=True,
    writes=FileWrite(path="name", text="paragraph", place=letter_at, after=letter_after),
)
async def extend_letter(ctx: CallContext, name: str, paragraph: str) -> str:
    """Add a paragraph to a letter."""
    return await ctx.workspace.write(name, paragraph.encode())
