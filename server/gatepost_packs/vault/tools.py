"""Serve the notes of the tenant's Obsidian vault with the interface of OpenPact (`vault_*`)."""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from gatepost import CallContext, FileHead, FileWrite, Pack, ToolFailure
from gatepost_packs.text import encoded
from gatepost_packs.vault import lookup
from gatepost_packs.vault.catalog import MAX_NOTE_BYTES, VaultCatalog, text_of
from gatepost_packs.vault.full_text import query_of
from gatepost_packs.vault.note import Note, read_note, section
from gatepost_packs.vault.note_names import VAULT_PREFIX, is_note, note_and_heading
from gatepost_packs.vault.writing import NoteChange, content_after, place_of

pack = Pack("vault")

SHOWN_CHARACTERS = 300_000
"""Characters of a note's text in an answer, which holds it twice, as a value and as text."""
SHOWN_LINKS = 1_000
MAX_BYTES = 4_000_000
"""Bytes of a note that is changed."""
MAX_OFFSET = 10_000_000
INDEX_S = 300.0
"""Indexing a large vault for the first time takes longer than other calls."""


class LinkedNote(BaseModel):
    """A link in a note; without a `path` there is no such file yet."""

    target: str
    path: str | None
    text: str
    embed: bool


class NoteReference(BaseModel):
    """A note's path for tools, and its name for people."""

    path: str
    title: str


class ChangedNote(BaseModel):
    """A note after the change."""

    path: str
    title: str
    front_matter: dict[str, Any] | None
    content: str
    tags: list[str]
    aliases: list[str]
    links: list[LinkedNote]
    backlinks: list[NoteReference]
    modified: str
    truncated: bool
    remarks: list[str]


class SavedNote(BaseModel):
    """The written note."""

    path: str
    bytes: int
    created: bool
    remarks: list[str]


class VaultEntry(NoteReference):
    """One note in a list."""

    tags: list[str]
    modified: str


class VaultListing(BaseModel):
    """Notes of a folder; `total` counts those that were left out too."""

    notes: list[VaultEntry]
    total: int
    remarks: list[str]


class VaultHit(NoteReference):
    """One note that was found; the best has the highest score."""

    snippet: str
    score: float


class Hits(BaseModel):
    """The found notes, and whether they contain all words or only some of them."""

    hits: list[VaultHit]
    matched: Literal["all words", "some words"]
    remarks: list[str]


Tag = Annotated[
    str | None,
    Field(
        description="Only notes with this tag, or one nested in it (`a` finds `a/b`)",
        max_length=200,
    ),
]


@pack.tool(
    title="Read a note",
    scopes={"vault:read"},
    read_only=True,
    destructive=False,
    idempotent=True,
    open_world=False,
    timeout_s=INDEX_S,
    untrusted="vault notes",
)
async def vault_read(
    ctx: CallContext,
    path: Annotated[
        str,
        Field(description="Path of the note in the vault, or its name as a wiki link has it"),
    ],
) -> ChangedNote:
    """
    Read a note of the Obsidian vault: its front matter, text, tags, links, and what links to it.
    """
    catalog = VaultCatalog(ctx)
    note_path, heading, remarks = await _find_note(catalog, path)
    head = await catalog.space.head(note_path, limit=MAX_NOTE_BYTES)
    note, part = await catalog.space.in_cache(lambda *_: _parsed(note_path, head, heading))
    (links, (backlinks, has_more)), state = await catalog.query(
        lambda rows: (
            lookup.links_of(rows, note_path, note.links[:SHOWN_LINKS]),
            lookup.backlinks(rows, note_path),
        )
    )
    content, truncated = _note_content(part or note.front_matter.body, head, remarks)
    if heading and part is None:
        remarks.append(f"The note has no heading {heading!r}; all of it is shown.")
    if has_more or len(note.links) > SHOWN_LINKS:
        remarks.append(f"Only {SHOWN_LINKS} links are listed.")
    return ChangedNote(
        path=f"{VAULT_PREFIX}{note_path}",
        title=note.title,
        front_matter=None if note.front_matter.values is None else dict(note.front_matter.values),
        content=content,
        tags=list(note.tags),
        aliases=list(note.aliases),
        links=[
            LinkedNote(
                target=link.target + (f"#{link.heading}" if link.heading else ""),
                path=None if leads is None else f"{VAULT_PREFIX}{leads}",
                text=link.text,
                embed=link.embed,
            )
            for link, leads in links
        ],
        backlinks=[
            NoteReference(path=f"{VAULT_PREFIX}{source}", title=title)
            for source, title in backlinks
        ],
        modified=_time(head.modified),
        truncated=truncated,
        remarks=[*remarks, *filter(None, (note.front_matter.problem, state.remark))],
    )


@pack.tool(
    title="Write a note",
    scopes={"vault:write"},
    read_only=False,
    destructive=True,
    idempotent=False,
    open_world=False,
    writes=FileWrite(path="path", text="content", locate=place_of, after=content_after),
)
async def vault_write(
    ctx: CallContext,
    path: Annotated[str, Field(description="Path of the note in the vault; `.md` may be left out")],
    content: Annotated[
        str, Field(description="The text; it may begin with front matter of its own")
    ],
    front_matter: Annotated[
        dict[str, Any] | None,
        Field(description="Properties to set; null as a value removes one, the others stay"),
    ] = None,
    append: Annotated[bool, Field(description="Add to the end of what is there")] = False,
) -> SavedNote:
    """
    Write a note of the Obsidian vault: replace its text or add to it. Front matter that is there
    stays unless the new text brings its own; `front_matter` changes single properties of it.
    """
    encoded(content, "content")
    change = NoteChange(content, front_matter, append=append)
    edited = await VaultCatalog(ctx).space.edit(_placed(path), change, limit=MAX_BYTES)
    return SavedNote(
        path=edited.path, bytes=edited.size, created=edited.is_new, remarks=change.remarks
    )


@pack.tool(
    title="List notes",
    scopes={"vault:read"},
    read_only=True,
    destructive=False,
    idempotent=True,
    open_world=False,
    timeout_s=INDEX_S,
    untrusted="vault notes",
)
async def vault_list(
    ctx: CallContext,
    folder: Annotated[str, Field(description="Folder of the vault, with all below it")] = ".",
    tag: Tag = None,
    limit: Annotated[int, Field(description="Notes at most", ge=1, le=1_000)] = 200,
    offset: Annotated[int, Field(description="Notes to leave out first", ge=0, le=MAX_OFFSET)] = 0,
) -> VaultListing:
    """List notes of the Obsidian vault by path: title, tags and time of the last change."""
    catalog = VaultCatalog(ctx)
    # This raises the error of a bad folder, or of a missing one.
    await catalog.space.entries(folder, limit=1)
    names = folder.removeprefix(VAULT_PREFIX).split("/") if folder != VAULT_PREFIX[:-1] else ()
    parts = [name for name in names if name not in ("", ".")]
    (notes, total), state = await catalog.query(
        lambda rows: lookup.listed(rows, parts, tag, limit, offset)
    )
    return VaultListing(
        notes=[
            VaultEntry(
                path=f"{VAULT_PREFIX}{note.path}",
                title=note.title,
                tags=note.tags,
                modified=_time(note.modified),
            )
            for note in notes
        ],
        total=total,
        remarks=[*filter(None, (state.remark,))],
    )


@pack.tool(
    title="Search notes",
    scopes={"vault:read"},
    read_only=True,
    destructive=False,
    idempotent=True,
    open_world=False,
    timeout_s=INDEX_S,
    untrusted="vault notes",
)
async def vault_search(
    ctx: CallContext,
    query: Annotated[
        str,
        Field(
            description='Words, "a phrase", beginnings (`meet*`), `-word` for what must be absent',
            max_length=1_000,
        ),
    ],
    tag: Tag = None,
    limit: Annotated[int, Field(description="Hits at most", ge=1, le=100)] = 20,
) -> Hits:
    """
    Search the text, titles, aliases and tags of all notes of the Obsidian vault, best hits first.
    """
    full_text_query = query_of(query)
    (hits, every), state = await VaultCatalog(ctx).query(
        lambda rows: lookup.searched(rows, full_text_query, tag, limit)
    )
    return Hits(
        hits=[
            VaultHit(
                path=f"{VAULT_PREFIX}{hit.path}",
                title=hit.title,
                snippet=hit.snippet,
                score=hit.score,
            )
            for hit in hits
        ],
        matched="all words" if every else "some words",
        remarks=[*filter(None, (state.remark,))],
    )


async def _find_note(catalog: VaultCatalog, path: str) -> tuple[str, str, list[str]]:
    """Return the path of the note that is meant, its heading, and remarks about the choice."""
    exact, (target, heading) = await _existing(catalog, path)
    if exact is not None and "/" in target:
        return exact, heading, []
    target = target.removeprefix(VAULT_PREFIX)
    matches, _ = await catalog.query(lambda rows: lookup.named(rows, target))
    if exact is not None:
        matches = [exact, *(match for match in matches if match != exact)]
    if not matches:
        similar, _ = await catalog.query(lambda rows: lookup.similar(rows, target))
        hint = f" Similar names are: {', '.join(similar)}." if similar else ""
        message = f"There is no note {target!r} in the vault.{hint} vault_search finds notes."
        raise ToolFailure("not_found", message, field="path")
    remarks = []
    if len(matches) > 1:
        other_paths = ", ".join(f"{VAULT_PREFIX}{match}" for match in matches[1:6])
        remarks.append(
            f"{len(matches)} notes are called {target!r}; this is the one with the shortest path. "
            f"Others: {other_paths}."
        )
    return matches[0], heading, remarks


async def _existing(catalog: VaultCatalog, path: str) -> tuple[str | None, tuple[str, str]]:
    """
    Return the note at exactly that path or link, and the requested name and heading.

    ToolFailure if it is not a path.
    """
    for target in dict.fromkeys(((path, ""), note_and_heading(path))):
        placed = _placed(target[0])
        try:
            item = await catalog.space.stat(placed)
        except ToolFailure as missing:
            if missing.failure.kind != "not_found":
                raise
        else:
            if item.type == "file":
                return item.path, target
    return None, note_and_heading(path)


def _placed(path: str) -> str:
    """Return the path of a note with its `.md`; ToolFailure for files of Obsidian or git."""
    *_, last = names = path.removeprefix(VAULT_PREFIX).split("/")
    if any(name.startswith(".") and name not in (".", "..") for name in names):
        message = "The path holds a name with a leading dot; such files and folders are not notes."
        raise ToolFailure("validation", message, field="path")
    return path if last in ("", ".", "..") or is_note(path) else f"{path}.md"


def _parsed(path: str, head: FileHead, heading: str) -> tuple[Note, str | None]:
    """Return the note, or the requested part of it; in a thread if it is long."""
    note = read_note(path, text_of(path, head))
    return note, section(note.front_matter.body, heading) if heading else None


def _note_content(content: str, head: FileHead, remarks: list[str]) -> tuple[str, bool]:
    if len(content) <= SHOWN_CHARACTERS and len(head.data) == head.size:
        return content, False
    content = content[:SHOWN_CHARACTERS]
    remarks.append(
        f"Cut after {len(content)} characters; the note has {head.size} bytes. "
        "Name a heading (`Note#Heading`) for a part of it."
    )
    return content, True


def _time(modified: float) -> str:
    return datetime.fromtimestamp(int(modified), UTC).isoformat()
