"""A customer register: eight tools, a resource template and a prompt, apart for each tenant."""

import struct
import time
import zlib
from typing import Annotated, Any

from pydantic import BaseModel, Field, PositiveFloat

from gatepost import CallContext, Image, Pack, ToolFailure

pack = Pack("crm")
CREDIT_URL = "https://credit.example.com/score"
Email = Annotated[str, Field(description="Identifies the customer", pattern=r"^\S+@\S+$")]
DAY = {"type": "object", "properties": {"day": {"type": "string"}}, "required": ["day"]}


class Customer(BaseModel):
    email: str
    name: str
    paid: float = 0
    next_call: str = ""


async def saved(ctx: CallContext, customer: Customer, revision: int) -> bool:
    """Keep a customer durably; False if it is not of this revision any more (0: it is new)."""
    entries, data = ctx.entries("customers"), customer.model_dump_json().encode()
    return await entries.put(customer.email, data, now=time.time(), revision=revision)


async def changed(ctx: CallContext, email: str, change: Any) -> Customer:
    """Change a customer; of two changes at once, none is lost."""
    while (entry := await ctx.entries("customers").get(email)) is not None:
        customer = Customer.model_validate_json(entry.value)
        customer = customer.model_copy(update=change(customer))
        if customer.paid < 0:
            raise ToolFailure("validation", f"{email} has not paid that much.", field="amount")
        if await saved(ctx, customer, entry.revision):
            return customer
    raise ToolFailure("not_found", f"No customer {email}; use find_customers.", field="email")


@pack.tool(scopes={"crm:read"}, read_only=True, open_world=False)
async def find_customers(ctx: CallContext, text: str = "") -> list[Customer]:
    """Find customers whose name or e-mail address has this text."""
    kept = [Customer.model_validate_json(one.value) for one in await ctx.entries("customers").all()]
    return [one for one in kept if text.lower() in f"{one.name} {one.email}".lower()]


@pack.tool(scopes={"crm:write"}, destructive=False, open_world=False)
async def create_customer(ctx: CallContext, email: Email, name: str) -> Customer:
    """Create a customer."""
    if not await saved(ctx, customer := Customer(email=email, name=name), 0):
        raise ToolFailure("conflict", f"There is a customer {email} already.", field="email")
    return customer


@pack.tool(scopes={"crm:write"}, destructive=False, open_world=False)
async def record_payment(ctx: CallContext, email: Email, amount: PositiveFloat) -> Customer:
    """Record a payment of a customer, in euros."""
    return await changed(ctx, email, lambda one: {"paid": one.paid + amount})


@pack.tool(scopes={"crm:refund"}, destructive=False, open_world=False)
async def refund(ctx: CallContext, email: Email, amount: PositiveFloat) -> Customer:
    """Refund a payment; above 100 euros, a person approves it first."""
    return await changed(ctx, email, lambda one: {"paid": one.paid - amount})


@pack.tool(scopes={"crm:write"}, destructive=False, open_world=False)
async def plan_call(ctx: CallContext, email: Email) -> Customer:
    """Ask the person for the day of the next call to a customer."""
    chosen: Any = await ctx.ask(f"When to call {email}?", DAY)
    day = chosen.content["day"] if chosen.content else ""
    return await changed(ctx, email, lambda _: {"next_call": day})


@pack.tool(scopes={"crm:read"}, read_only=True, task_support="optional", timeout_s=600)
async def write_report(ctx: CallContext) -> str:
    """Write the report of all customers, which takes long if there are many."""
    customers = await find_customers(ctx)
    for number, customer in enumerate(customers, 1):
        await ctx.progress(number, total=len(customers), message=customer.name)
    return "\n".join(f"{one.name}: {one.paid:g}" for one in customers) or "No customers."


@pack.tool(scopes={"crm:read"}, read_only=True, untrusted="credit agency")
async def credit_score(ctx: CallContext, email: Email) -> int:
    """Ask the credit agency for a customer's score, with the tenant's own key."""
    key = await ctx.secret("secret:CREDIT_KEY", field="email", to=CREDIT_URL, fixed=True)
    reply = await ctx.http.send("POST", CREDIT_URL, json={"email": email, "key": key})
    if reply.status != 200:
        raise ToolFailure("upstream_unavailable", f"The agency answered {reply.status}.")
    return int(reply.body)


@pack.tool(scopes={"crm:read"}, read_only=True, open_world=False)
async def sales_chart(ctx: CallContext) -> list[str | Image]:
    """Draw what the customers paid, as bars from the left."""
    paid = [one.paid for one in await find_customers(ctx)]
    wide = [int(200 * one / (max(paid) or 1)) for one in paid for _ in range(12)] or [0]
    rows = b"".join(b"\0" + b"\x1f\x77\xb4" * n + b"\xff\xff\xff" * (200 - n) for n in wide)
    head = struct.pack(">IIBBBBB", 200, len(wide), 8, 2, 0, 0, 0)
    parts = (b"IHDR" + head, b"IDAT" + zlib.compress(rows), b"IEND")
    png = [struct.pack(">I", len(p) - 4) + p + struct.pack(">I", zlib.crc32(p)) for p in parts]
    return ["Sales", Image(b"\x89PNG\r\n\x1a\n" + b"".join(png))]


@pack.resource("crm://customers/{email}", scopes={"crm:read"})
async def customer(ctx: CallContext, email: str) -> bytes | None:
    """Return a customer."""
    entry = await ctx.entries("customers").get(email)
    return entry.value if entry else None


@pack.prompt(scopes={"crm:read"})
async def thank(ctx: CallContext, email: str, tone: str = "warm") -> str:
    """Thank a customer."""
    return f"Write three {tone} sentences that thank the customer of crm://customers/{email}."
