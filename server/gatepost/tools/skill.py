"""A skill: a folder of files that teaches an agent a way of working (SEP-2640, Agent Skills)."""

import hashlib
import importlib
import mimetypes
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gatepost.tools.api import CallContext, Outcome
from gatepost.tools.content import Contents
from gatepost.tools.function import Options, settled
from gatepost.tools.offer import Document, Skill

MANIFEST = "SKILL.md"
MOST_FILES = 512
MOST_BYTES = 16 * 1024 * 1024
DIRECTORY_TYPE = "inode/directory"
FILE_TTL_S = 300
"""A client may keep a file as long as the list that has its digest."""

FILE_NAME = re.compile(r"\w[\w.,+@-]{0,127}", re.ASCII)
FRONTMATTER = "gatepost.tools.frontmatter"
"""Loaded by name: a server without skills need not load YAML."""


class SkillFile(msgspec.Struct, frozen=True):
    """One file of a skill, as it was when the server started."""

    uri: str
    data: bytes
    media_type: str

    @property
    def digest(self) -> str:
        """SHA-256 of the raw bytes, as `sha256:` and hex."""
        return f"sha256:{hashlib.sha256(self.data).hexdigest()}"

    @property
    def body(self) -> str | bytes:
        """Text where it is text, so that a model can read it."""
        try:
            return self.data.decode()
        except UnicodeDecodeError:
            return self.data


class SkillFolder(msgspec.Struct, frozen=True):
    """A skill, read whole: what is listed and what is served later are the same bytes."""

    uri: str
    """Of its SKILL.md; the folder is what comes before the last slash."""
    frontmatter: Mapping[str, Any]
    """Name, description and whatever else SKILL.md begins with, unchanged."""
    files: tuple[SkillFile, ...]

    @property
    def entry(self) -> Mapping[str, Any]:
        """What `skills/list` and `skills/get` say of it."""
        resources = [
            {"uri": file.uri, "digest": file.digest, "size": len(file.data)} for file in self.files
        ]
        return {"uri": self.uri, "frontmatter": self.frontmatter, "resources": resources}

    @property
    def folders(self) -> Mapping[str, Sequence[Mapping[str, str]]]:
        """The direct children of each of its folders, as resources, by the folder's URI."""
        root = self.uri.rpartition("/")[0]
        found: dict[str, dict[str, Mapping[str, str]]] = {}
        for file in self.files:
            uri, kind = file.uri, file.media_type
            while uri != root:
                folder, _, name = uri.rpartition("/")
                found.setdefault(folder, {})[uri] = {"uri": uri, "name": name, "mimeType": kind}
                uri, kind = folder, DIRECTORY_TYPE
        return {folder: [held[uri] for uri in sorted(held)] for folder, held in found.items()}


def offers_of(
    folder: SkillFolder, pack: str, options: Options
) -> tuple[Skill, tuple[Document, ...]]:
    """The skill and its files, as offers; whoever may use the one may read the others."""
    settings = settled("pack", pack, pack, options)
    name, description = folder.frontmatter["name"], folder.frontmatter["description"]
    entry = folder.entry

    async def show(ctx: CallContext, arguments: Any) -> Outcome:
        return Outcome((entry,))

    skill = Skill(
        **{**settings, "name": name},
        description=description,
        check=lambda _: None,
        invoke=show,
        uri=folder.uri,
        entry=entry,
        folders=folder.folders,
    )
    described = {folder.uri: (name, description)}
    documents = tuple(
        _document(file, settings, *described.get(file.uri, (None, None))) for file in folder.files
    )
    return skill, documents


def _document(
    file: SkillFile, settings: Mapping[str, Any], name: str | None, description: str | None
) -> Document:
    path = file.uri.split("/", 4)[-1]
    answer = Outcome((Contents(file.body, file.media_type).shown(file.uri, None),))

    async def read(ctx: CallContext, arguments: Any) -> Outcome:
        return answer

    return Document(
        **{**settings, "name": name or path, "title": None},
        description=description or f"A file of a skill: {path}",
        check=lambda _: None,
        invoke=read,
        uri=file.uri,
        mime_type=file.media_type,
        size=len(file.data),
        ttl_s=FILE_TTL_S,
    )


def read_skill(folder: Path, *, authority: str) -> SkillFolder:
    """
    Read a skill's folder; its URIs begin with ``skill://<authority>/<name>/``.

    ValueError says what to change: no SKILL.md, frontmatter without a name that is the folder's,
    a link that leads out of it, too many files.
    """
    if not (folder / MANIFEST).is_file():
        raise ValueError(f"{folder} is no skill: it has no {MANIFEST}")
    frontmatter = importlib.import_module(FRONTMATTER).frontmatter(folder / MANIFEST)
    name = frontmatter["name"]
    if name != folder.name:
        raise ValueError(f"{folder / MANIFEST}: its name is {name!r}, its folder {folder.name!r}")
    base = f"skill://{authority}/{name}"
    files = tuple(
        SkillFile(f"{base}/{path.as_posix()}", (folder / path).read_bytes(), media_type(path))
        for path in _files(folder)
    )
    if sum(len(file.data) for file in files) > MOST_BYTES:
        raise ValueError(f"{folder} is larger than {MOST_BYTES} bytes, which clients refuse")
    return SkillFolder(f"{base}/{MANIFEST}", frontmatter, files)


def media_type(path: Path) -> str:
    """The media type that a file's name stands for."""
    if path.suffix == ".md":
        return "text/markdown"
    return mimetypes.guess_type(path.name, strict=False)[0] or "application/octet-stream"


def _files(folder: Path) -> list[Path]:
    root = folder.resolve()
    found = []
    for path in sorted(folder.rglob("*")):
        # A link could lead to any file this process may read, and would publish it.
        if not path.resolve().is_relative_to(root):
            raise ValueError(f"{path} leads out of the skill's folder")
        if path.is_dir():
            continue
        relative = path.relative_to(folder)
        if any(part.startswith(".") for part in relative.parts):
            continue  # what editors and file managers leave behind is no part of a skill
        for part in relative.parts:
            if not FILE_NAME.fullmatch(part):
                raise ValueError(f"{path}: {part!r} is no name a URI can hold unchanged")
        found.append(relative)
    if len(found) > MOST_FILES:
        raise ValueError(f"{folder} has more than {MOST_FILES} files, which clients refuse")
    return found
