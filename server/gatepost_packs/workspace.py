"""Files of the tenant's workspace, with the interface of OpenPact (`workspace_*`)."""

from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from gatepost import CallContext, FileWrite, Outcome, Pack
from gatepost_packs.text import MAX_BYTES, TEXT_RESULT, encoded, shown_text

pack = Pack("workspace")


class WrittenFile(BaseModel):
    """A file after the change."""

    path: str
    bytes: int


class FoundName(BaseModel):
    """One name in a folder; `name` is relative to that folder, `path` is for any tool."""

    name: str
    path: str
    type: Literal["file", "folder", "link", "other"]
    size: int
    modified: str


class FolderContent(BaseModel):
    """The content of a folder."""

    entries: list[FoundName]
    truncated: bool


@pack.tool(
    title="Read a file",
    scopes={"files:read"},
    read_only=True,
    destructive=False,
    idempotent=True,
    open_world=False,
    untrusted="workspace files",
    output_schema=TEXT_RESULT,
)
async def workspace_read(
    ctx: CallContext,
    path: Annotated[str, Field(description="Path to the file relative to workspace root")],
    max_bytes: Annotated[int, Field(description="Bytes to read at most", ge=1, le=MAX_BYTES)] = (
        200_000
    ),
) -> Outcome:
    """Read a file from the workspace."""
    return shown_text(path, await ctx.workspace.head(path, limit=max_bytes))


@pack.tool(
    title="Write a file",
    scopes={"files:write"},
    read_only=False,
    destructive=True,
    idempotent=True,
    open_world=False,
    writes=FileWrite(path="path", text="content"),
)
async def workspace_write(
    ctx: CallContext,
    path: Annotated[str, Field(description="Path to the file relative to workspace root")],
    content: Annotated[str, Field(description="The whole text of the file")],
    mkdirs: Annotated[bool, Field(description="Make folders that are missing")] = True,
) -> WrittenFile:
    """Write a file to the workspace, replacing the one that is there."""
    data = encoded(content, "content")
    return WrittenFile(
        path=await ctx.workspace.write(path, data, mkdirs=mkdirs),
        bytes=len(data),
    )


@pack.tool(
    title="List a folder",
    scopes={"files:read"},
    read_only=True,
    destructive=False,
    idempotent=True,
    open_world=False,
    untrusted="workspace files",
)
async def workspace_list(
    ctx: CallContext,
    path: Annotated[str, Field(description="Folder relative to workspace root")] = ".",
    recursive: Annotated[bool, Field(description="List what is in its folders too")] = False,
    limit: Annotated[int, Field(description="Entries at most", ge=1, le=10_000)] = 1000,
) -> FolderContent:
    """List files in the workspace: name, type, size in bytes and time of the last change."""
    listing = await ctx.workspace.entries(path, recursive=recursive, limit=limit)
    folders = path.removeprefix("/workspace").split("/")
    start = "".join(f"{name}/" for name in folders if name not in ("", "."))
    return FolderContent(
        entries=[
            FoundName(
                name=item.path.removeprefix(start),
                path=f"/workspace/{item.path}",
                type=item.type,
                size=item.size,
                modified=datetime.fromtimestamp(int(item.modified), UTC).isoformat(),
            )
            for item in listing.items
        ],
        truncated=listing.cut,
    )
