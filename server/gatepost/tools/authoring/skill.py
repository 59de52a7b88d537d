"""A skill: a folder of files with instructions for an agent (SEP-2640, Agent Skills)."""

import hashlib
import importlib
import mimetypes
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gatepost.tools.authoring.function import OfferOptions, common_members
from gatepost.tools.context.content import Contents
from gatepost.tools.offers.offer import CallContext, Outcome
from gatepost.tools.offers.offer_kinds import ResourceOffer, Skill

MANIFEST = "SKILL.md"
MAX_FILES = 512
MAX_BYTES = 16 * 1024 * 1024
DIRECTORY_TYPE = "inode/directory"
FILE_TTL_S = 300
"""A client may cache a file as long as the list with its digest."""

FILE_NAME = re.compile(r"\w[\w.,+@-]{0,127}", re.ASCII)
FRONTMATTER = "gatepost.documents.front_matter"
"""Imported by name, so that a server without skills does not load YAML."""


class SkillFile(msgspec.Struct, frozen=True):
    """One file of a skill, as read when the server started."""

    uri: str
    data: bytes
    media_type: str

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the raw bytes, as `sha256:` and hex."""
        return f"sha256:{hashlib.sha256(self.data).hexdigest()}"

    @property
    def body(self) -> str | bytes:
        """
        Return the content as text if it is UTF-8, so that an agent can read it, else as bytes.
        """
        try:
            return self.data.decode()
        except UnicodeDecodeError:
            return self.data


class SkillFolder(msgspec.Struct, frozen=True):
    """A skill, read completely, so that the listed digests match the served bytes."""

    uri: str
    """The URI of its SKILL.md; the folder is the part before the last slash."""
    frontmatter: Mapping[str, Any]
    """The front matter of SKILL.md, unchanged: name, description and all other members."""
    files: tuple[SkillFile, ...]

    @property
    def entry(self) -> Mapping[str, Any]:
        """Return the skill's entry in the answers of `skills/list` and `skills/get`."""
        resources = [
            {"uri": file.uri, "digest": file.digest, "size": len(file.data)} for file in self.files
        ]
        return {"uri": self.uri, "frontmatter": self.frontmatter, "resources": resources}

    @property
    def folders(self) -> Mapping[str, Sequence[Mapping[str, str]]]:
        """Return the direct children of each of its folders, as resources, by the folder's URI."""
        root = self.uri.rpartition("/")[0]
        folders: dict[str, dict[str, Mapping[str, str]]] = {}
        for file in self.files:
            uri, kind = file.uri, file.media_type
            while uri != root:
                folder, _, name = uri.rpartition("/")
                folders.setdefault(folder, {})[uri] = {"uri": uri, "name": name, "mimeType": kind}
                uri, kind = folder, DIRECTORY_TYPE
        return {folder: [files[uri] for uri in sorted(files)] for folder, files in folders.items()}


def offers_of(
    folder: SkillFolder, pack: str, options: OfferOptions
) -> tuple[Skill, tuple[ResourceOffer, ...]]:
    """Return the skill and its files as offers with the same scopes."""
    settings = common_members("pack", pack, pack, options)
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
) -> ResourceOffer:
    path = file.uri.split("/", 4)[-1]
    answer = Outcome((Contents(file.body, file.media_type).protocol_form(file.uri, None),))

    async def read(ctx: CallContext, arguments: Any) -> Outcome:
        return answer

    return ResourceOffer(
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

    Raises ValueError with a message for the author, for instance if SKILL.md is missing, if its
    name is not the folder's, if a link leads out of the folder, or if there are too many files.
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
    if sum(len(file.data) for file in files) > MAX_BYTES:
        raise ValueError(f"{folder} is larger than {MAX_BYTES} bytes, which clients refuse")
    return SkillFolder(f"{base}/{MANIFEST}", frontmatter, files)


def media_type(path: Path) -> str:
    """Return the media type of a file, by its name."""
    if path.suffix == ".md":
        return "text/markdown"
    return mimetypes.guess_type(path.name, strict=False)[0] or "application/octet-stream"


def _files(folder: Path) -> list[Path]:
    root = folder.resolve()
    paths = []
    for path in sorted(folder.rglob("*")):
        # A link could publish any file that this process can read.
        if not path.resolve().is_relative_to(root):
            raise ValueError(f"{path} leads out of the skill's folder")
        if path.is_dir():
            continue
        relative = path.relative_to(folder)
        if any(part.startswith(".") for part in relative.parts):
            continue  # hidden files of editors and file managers are not part of a skill
        for part in relative.parts:
            if not FILE_NAME.fullmatch(part):
                raise ValueError(f"{path}: {part!r} is no name a URI can hold unchanged")
        paths.append(relative)
    if len(paths) > MAX_FILES:
        raise ValueError(f"{folder} has more than {MAX_FILES} files, which clients refuse")
    return paths
