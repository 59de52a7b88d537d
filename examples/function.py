"""
One function as a tool: the signature is the schema, the docstring is the description.

Run it with `gatepost dev --tools examples/function.py`.
"""

from typing import Annotated, Literal

from pydantic import Field

from gatepost import CallContext, Pack

pack = Pack("converter")

Currency = Literal["EUR", "USD", "GBP", "CHF"]

PER_EURO = {"EUR": 1.0, "USD": 1.0842, "GBP": 0.8563, "CHF": 0.9391}
"""What one euro was worth on the day this example was written."""


@pack.tool(read_only=True, idempotent=True, open_world=False)
def convert(
    ctx: CallContext,
    amount: Annotated[float, Field(description="How much", ge=0)],
    source: Annotated[Currency, Field(description="Its currency")],
    target: Annotated[Currency, Field(description="The currency wanted")],
) -> float:
    """Convert an amount between currencies, rounded to cents."""
    return round(amount / PER_EURO[source] * PER_EURO[target], 2)
