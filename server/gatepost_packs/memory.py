"""Store texts of agents by name, with the interface of OpenPact (`memory_*`)."""

import re
from typing import Annotated

from pydantic import BaseModel, Field

from gatepost import CallContext, Pack, ToolFailure, Workspace
from gatepost_packs.text import MAX_BYTES, TEXT_RESULT, decoded, encoded

pack = Pack("memory")

NAME = re.compile(r"[^\W_](?:[\w. -]{0,78}[\w-])?")
MAX_NAMES = 1_000


class SavedMemory(BaseModel):
    """A memory after the change."""

    name: str
    bytes: int


@pack.tool(
    title="Recall",
    scopes={"memory:read"},
    read_only=True,
    destructive=False,
    idempotent=True,
    open_world=False,
    output_schema=TEXT_RESULT,
)
async def memory_read(
    ctx: CallContext,
    name: Annotated[
        str | None, Field(description="Which memory; leave it out to list their names")
    ] = None,
) -> str:
    """Read what was kept under a name, or list the names there are, one a line."""
    if name is None:
        return await _names(_area(ctx))
    try:
        head = await _area(ctx).head(_checked(name), limit=MAX_BYTES)
    except ToolFailure as missing:
        if missing.failure.kind != "not_found":
            raise
        message = f"There is no memory {name!r}. Call memory_read without a name to list them."
        raise ToolFailure("not_found", message, field="name") from None
    text = decoded(name, head)
    return text if len(head.data) == head.size else f"{text}\n[Cut: {head.size} bytes in all.]"


@pack.tool(
    title="Remember",
    scopes={"memory:write"},
    read_only=False,
    destructive=True,
    idempotent=False,
    open_world=False,
)
async def memory_write(
    ctx: CallContext,
    name: Annotated[str, Field(description="What to keep it under, for example `preferences.md`")],
    content: Annotated[str, Field(description="The text to keep")],
    append: Annotated[bool, Field(description="Add to what is there, not replace it")] = False,
) -> SavedMemory:
    """Keep a text for later under a name; every agent of the tenant can read it."""
    area, data = _area(ctx), encoded(content, "content")
    if append:
        return SavedMemory(name=name, bytes=await area.append(_checked(name), data))
    await area.write(_checked(name), data)
    return SavedMemory(name=name, bytes=len(data))


def _area(ctx: CallContext) -> Workspace:
    # Beside the workspace: no path of a file tool and no `git clean` reaches memories.
    return ctx.workspace.area("memory")


def _checked(name: str) -> str:
    if not NAME.fullmatch(name):
        message = (
            "`name` must begin with a letter or digit, end in one (or `_`, `-`), and hold only "
            "letters, digits, spaces, `.`, `_` and `-`: at most 80 characters, no folders."
        )
        raise ToolFailure("validation", message, field="name")
    return name


async def _names(area: Workspace) -> str:
    listing = await area.entries(limit=MAX_NAMES)
    names = [item.path for item in listing.items if item.type == "file"]
    if not names:
        return "Nothing is stored yet. memory_write stores a text under a name."
    return "\n".join(names) + ("\n[There are more.]" if listing.cut else "")
