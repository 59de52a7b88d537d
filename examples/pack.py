"""
A pack: tools, a resource and a prompt of one subject, with scopes, failures, questions and files.

Run it with `gatepost dev --tools examples/pack.py`.
"""

from typing import Annotated, Literal

import msgspec
from pydantic import BaseModel, Field

from gatepost import CallContext, Pack, ToolFailure

pack = Pack("expenses")

FILE = "expenses.jsonl"
MAX_BYTES = 1_000_000


class Expense(BaseModel):
    """One receipt."""

    vendor: str
    amount: float
    category: Literal["travel", "meals", "equipment"]


class SureForm(BaseModel):
    """What the person is asked."""

    sure: Annotated[bool, Field(description="Really delete them?")]


async def kept(ctx: CallContext) -> list[Expense]:
    """Return the tenant's receipts, in the order in which they came."""
    try:
        data = await ctx.workspace.read(FILE, limit=MAX_BYTES)
    except ToolFailure as missing:
        if missing.failure.kind == "not_found":
            return []
        raise
    return [Expense.model_validate_json(line) for line in data.splitlines()]


@pack.tool(scopes={"expenses:write"}, destructive=False, open_world=False)
async def add_expense(
    ctx: CallContext,
    vendor: Annotated[str, Field(description="Who was paid", min_length=1)],
    amount: Annotated[float, Field(description="In euros", gt=0)],
    category: Annotated[
        Literal["travel", "meals", "equipment"], Field(description="What it was for")
    ],
) -> Expense:
    """Keep a receipt in the tenant's workspace."""
    expense = Expense(vendor=vendor, amount=amount, category=category)
    await ctx.workspace.append(FILE, msgspec.json.encode(expense.model_dump()) + b"\n")
    await ctx.changes.updated("expenses://all")
    return expense


@pack.tool(scopes={"expenses:read"}, read_only=True, idempotent=True, open_world=False)
async def largest_expense(ctx: CallContext) -> Expense:
    """Find the largest receipt."""
    expenses = await kept(ctx)
    if not expenses:
        # Written for a model: what was wrong, and what would work.
        raise ToolFailure("not_found", "There is no receipt yet; add_expense keeps one.")
    return max(expenses, key=lambda expense: expense.amount)


@pack.tool(scopes={"expenses:write"}, destructive=True, idempotent=True, open_world=False)
async def clear_expenses(ctx: CallContext) -> str:
    """Delete all receipts, once a person has agreed."""
    count = len(await kept(ctx))
    answer = await ctx.ask(f"Delete {count} receipts?", SureForm)
    if answer.content is None or not answer.content.sure:
        return "Nothing was deleted."
    await ctx.workspace.delete(FILE)
    await ctx.changes.updated("expenses://all")
    return f"Deleted {count} receipts."


@pack.resource("expenses://all", scopes={"expenses:read"}, mime_type="application/json")
async def all_expenses(ctx: CallContext) -> list[Expense]:
    """Return every receipt, as JSON."""
    return await kept(ctx)


@pack.prompt(scopes={"expenses:read"})
def review_expenses(ctx: CallContext, month: str) -> str:
    """Review a month's receipts."""
    return f"Read expenses://all and list what was unusual in {month}, largest first."
