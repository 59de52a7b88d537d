"""What notes are called: paths, the names that links use, and which of several is meant."""

import re
import unicodedata
from collections.abc import Iterable
from urllib.parse import unquote

SHOWN = "/vault/"
"""How tools show the vault's folder."""
SUFFIX = ".md"

LINK = re.compile(r"!?\[\[(.+)\]\]", re.DOTALL)
ELSEWHERE = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:|//")
"""Where a Markdown link leads out of the vault: a scheme, or a host."""


def is_note(path: str) -> bool:
    """Whether a file is one by its name."""
    return path.lower().endswith(SUFFIX)


def stem(path: str) -> str:
    """A note's own name, which is its title unless it says another."""
    name = path.rpartition("/")[2]
    return name[: -len(SUFFIX)] if is_note(name) else name


def key_of(path: str) -> str:
    """
    A path or a link's target as it is compared: without `.md`, in any case, however its accents
    are written (file systems of macOS take them apart).
    """
    bare = path[: -len(SUFFIX)] if is_note(path) else path
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", bare).casefold())


def name_of(path: str) -> str:
    """The last part of its key."""
    return key_of(path).rpartition("/")[2]


def keys_of(path: str) -> list[str]:
    """All that a link may write to mean the file: `c`, `b/c`, `a/b/c`."""
    parts = key_of(path).split("/")
    return ["/".join(parts[at:]) for at in range(len(parts))]


def chosen(key: str, paths: Iterable[str]) -> list[str]:
    """
    The files that a key may mean, the one that it does mean first.

    As in Obsidian that is the one at exactly this path, then the shortest path.
    """
    fitting = [path for path in paths if key in keys_of(path)]
    return sorted(fitting, key=lambda path: (key_of(path) != key, path.count("/"), len(path), path))


def beside(source: str, target: str) -> str | None:
    """Where a path that is relative to a note leads; None when out of the vault."""
    parts = source.split("/")[:-1]
    for name in target.split("/"):
        if name == "..":
            if not parts:
                return None
            parts.pop()
        elif name not in ("", "."):
            parts.append(name)
    return "/".join(parts)


def asked(path: str) -> tuple[str, str]:
    """What of a path, or of a link as it is written, names the note, and which heading of it."""
    link = LINK.fullmatch(path)
    inner = link[1].split("|")[0] if link else path
    target, _, heading = inner.partition("#")
    return target.strip() if link else target, heading


def of_markdown(target: str) -> str | None:
    """The path in a Markdown link; None when it leads elsewhere or to a place in the same note."""
    if not target or target.startswith("#") or ELSEWHERE.match(target):
        return None
    return unquote(target.partition("#")[0]) or None
