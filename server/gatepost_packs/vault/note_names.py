"""Resolve names of notes: paths, and names in links that several notes may have."""

import re
import unicodedata
from collections.abc import Iterable
from urllib.parse import unquote

VAULT_PREFIX = "/vault/"
"""The prefix for the vault's folder in tools."""
SUFFIX = ".md"

LINK = re.compile(r"!?\[\[(.+)\]\]", re.DOTALL)
EXTERNAL_LINK = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:|//")
"""A Markdown link out of the vault: with a scheme or a host."""


def is_note(path: str) -> bool:
    """Return whether a file is a note by its name."""
    return path.lower().endswith(SUFFIX)


def stem(path: str) -> str:
    """Return a note's file name without `.md`, its default title."""
    name = path.rpartition("/")[2]
    return name[: -len(SUFFIX)] if is_note(name) else name


def key_of(path: str) -> str:
    """
    Return a path or link target in the form for comparison: without `.md`, case-folded, with
    composed accents (file systems of macOS decompose them).
    """
    bare = path[: -len(SUFFIX)] if is_note(path) else path
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", bare).casefold())


def name_of(path: str) -> str:
    """Return the last part of its key."""
    return key_of(path).rpartition("/")[2]


def keys_of(path: str) -> list[str]:
    """Return all link targets that mean the file: `c`, `b/c`, `a/b/c`."""
    parts = key_of(path).split("/")
    return ["/".join(parts[at:]) for at in range(len(parts))]


def chosen(key: str, paths: Iterable[str]) -> list[str]:
    """
    Return the files that a key matches, the one that it means first.

    As in Obsidian that is the one at exactly this path, then the one with the shortest path.
    """
    fitting = [path for path in paths if key in keys_of(path)]
    return sorted(fitting, key=lambda path: (key_of(path) != key, path.count("/"), len(path), path))


def relative_target(source: str, target: str) -> str | None:
    """Return the target of a path relative to a note; None if it is outside the vault."""
    parts = source.split("/")[:-1]
    for name in target.split("/"):
        if name == "..":
            if not parts:
                return None
            parts.pop()
        elif name not in ("", "."):
            parts.append(name)
    return "/".join(parts)


def note_and_heading(path: str) -> tuple[str, str]:
    """Return the note and the heading that a path, or a link as it is written, names."""
    link = LINK.fullmatch(path)
    inner = link[1].split("|")[0] if link else path
    target, _, heading = inner.partition("#")
    return target.strip() if link else target, heading


def of_markdown(target: str) -> str | None:
    """
    Return the path in a Markdown link; None if it leads out of the vault or into the same note.
    """
    if not target or target.startswith("#") or EXTERNAL_LINK.match(target):
        return None
    return unquote(target.partition("#")[0]) or None
