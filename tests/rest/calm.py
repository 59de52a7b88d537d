"""Tools that never fail by themselves, so that whatever breaks was broken on the way to them."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from gatepost import CallContext, Pack
from gatepost.tools.api import Outcome

pack = Pack("calm")


class Order(BaseModel):
    """What was ordered."""

    item: str
    count: int


@pack.tool(read_only=True)
async def now(ctx: CallContext) -> str:
    """Take no argument."""
    return "now"


@pack.tool()
async def order(
    ctx: CallContext,
    item: Literal["tea", "coffee"] = "tea",
    count: Annotated[int, Field(ge=1, le=9)] = 1,
) -> Order:
    """Take arguments that may all be left out."""
    return Order(item=item, count=count)


@pack.tool(read_only=True)
async def draw(ctx: CallContext) -> Outcome:
    """Answer a picture."""
    return Outcome(({"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"},))


@pack.tool(scopes={"never:granted"})
async def guarded(ctx: CallContext) -> str:
    """Need a scope that nobody has."""
    return "no"
