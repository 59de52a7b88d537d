"""Files of the tenant's workspace, with the interface of Octoprox (`fs_*`)."""

from typing import Annotated

import msgspec
from pydantic import Field

from gatepost import CallContext, FileWrite, Outcome, Pack, ToolFailure
from gatepost_packs.text import MAX_BYTES, TEXT_RESULT, encoded, result_schema, shown_text

pack = Pack("filesystem")

MAX_NAMES = 10_000
MAX_NAME_BYTES = 1_000_000
"""
The bytes of all names together: they are sent as text and as a value, and neither can be cut later.
"""


@pack.tool(
    title="List files",
    scopes={"files:read"},
    read_only=True,
    destructive=False,
    idempotent=True,
    open_world=False,
    untrusted="workspace files",
    output_schema=result_schema({"type": "array", "items": {"type": "string"}}),
)
async def fs_list(
    ctx: CallContext,
    path: Annotated[str, Field(description="Path relative to workspace root")] = ".",
) -> Outcome:
    """List files and directories at the given path."""
    try:
        listing = await ctx.workspace.entries(path, limit=MAX_NAMES)
    except ToolFailure as missing:
        if missing.failure.kind != "not_found":
            raise
        return _names([], cut=False)
    return _names([item.path.rpartition("/")[2] for item in listing.items], cut=listing.cut)


def _names(paths: list[str], *, cut: bool) -> Outcome:
    names, remaining_bytes = [], MAX_NAME_BYTES
    for name in paths:
        remaining_bytes -= len(name.encode(errors="surrogatepass")) + len('"",')
        if remaining_bytes < 0:
            cut = True
            break
        names.append(name)
    blocks = [{"type": "text", "text": msgspec.json.encode(names).decode()}]
    if cut:
        note = f"[There is more: only the first {len(names)} names are listed.]"
        blocks.append({"type": "text", "text": note})
    return Outcome(tuple(blocks), names)


@pack.tool(
    title="Read a text file",
    scopes={"files:read"},
    read_only=True,
    destructive=False,
    idempotent=True,
    open_world=False,
    untrusted="workspace files",
    output_schema=TEXT_RESULT,
)
async def fs_read_text(
    ctx: CallContext,
    path: Annotated[str, Field(description="Path to file relative to workspace root")],
    max_bytes: Annotated[int, Field(description="Maximum bytes to read", ge=1, le=MAX_BYTES)] = (
        200_000
    ),
) -> Outcome:
    """Read text content from a file."""
    return shown_text(path, await ctx.workspace.head(path, limit=max_bytes))


@pack.tool(
    title="Write a text file",
    scopes={"files:write"},
    read_only=False,
    destructive=True,
    idempotent=True,
    open_world=False,
    output_schema=TEXT_RESULT,
    writes=FileWrite(path="path", text="text"),
)
async def fs_write_text(
    ctx: CallContext,
    path: Annotated[str, Field(description="Path to file relative to workspace root")],
    text: Annotated[str, Field(description="Content to write")],
    mkdirs: Annotated[bool, Field(description="Create parent directories if needed")] = True,
) -> str:
    """Write text content to a file atomically."""
    await ctx.workspace.write(path, encoded(text, "text"), mkdirs=mkdirs)
    return "ok"


@pack.tool(
    title="Delete a file or directory",
    scopes={"files:write"},
    read_only=False,
    destructive=True,
    idempotent=True,
    open_world=False,
    output_schema=TEXT_RESULT,
)
async def fs_delete(
    ctx: CallContext,
    path: Annotated[str, Field(description="Path to delete")],
    recursive: Annotated[bool, Field(description="Recursively delete directories")] = False,
) -> str:
    """Delete a file or directory."""
    # A missing file counts as deleted, so that a repeated call ends like the first.
    await ctx.workspace.delete(path, recursive=recursive)
    return "ok"
