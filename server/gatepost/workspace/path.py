"""What a path inside a workspace may look like: pure rules, nothing is opened."""

import re
import secrets
import unicodedata

from gatepost.tools.api import ToolFailure

SHOWN_ROOT = "/workspace/"
"""How tools show the directory; a path may be written with it or relative to it."""

NAME_BYTES = 255
PATH_BYTES = 4096
DEPTH = 32

CONTROLS = frozenset({"Cc", "Zl", "Zp"})
"""Unicode categories: controls, and what begins a new line."""
BIDI = frozenset({"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"})
"""Marks that reorder what follows: who approves `txt.exe` would be shown another name."""

REPOSITORY = re.compile(r"\.git|git~[0-9]+")
# A file system may take both cases for the same name.
PARTIAL = re.compile(r"\.[0-9a-f]{16}\.partial", re.IGNORECASE)
"""What is being written or removed; no path may name it, and no list shows it."""


def parts_of(path: str, root: str = SHOWN_ROOT) -> tuple[str, ...]:
    """
    The names in a tool's path; ToolFailure when it is not one inside what is shown as *root*.

    Absolute paths, `..`, empty names, control and reordering characters, what UTF-8 cannot encode
    and what is too long are refused rather than repaired: a repaired path is not the one that was
    approved.
    """
    relative = path.removeprefix(root)
    problem = problem_of(relative, root)
    if problem:
        raise ToolFailure("validation", f"The path {problem}.", field="path")
    return tuple(relative.split("/"))


def written_of(path: str, root: str = SHOWN_ROOT) -> tuple[str, ...]:
    """
    The same for a path that is written to.

    What git reads of a repository's own folder makes it run programs (hooks, filters, monitors),
    so nothing but git itself writes there.
    """
    parts = parts_of(path, root)
    if any(is_repository(name) for name in parts):
        message = (
            "The path leads into a git repository's own folder (.git), which only git itself "
            "changes. It may be read, and deleted as a whole."
        )
        raise ToolFailure("denied", message, field="path")
    return parts


def is_repository(name: str) -> bool:
    """
    Whether some file system takes *name* for `.git`.

    HFS+ ignores characters that are not seen, Windows what follows a colon, dots and spaces at
    the end, and it has the short name `git~1` (CVE-2014-9390, CVE-2019-1352).
    """
    seen = "".join(c for c in name.partition(":")[0] if unicodedata.category(c) != "Cf")
    return bool(REPOSITORY.fullmatch(seen.rstrip(". ").casefold()))


def folder_of(path: str, root: str = SHOWN_ROOT) -> tuple[str, ...]:
    """
    The same for a path that may name the whole workspace (`.`, `/workspace`, `/workspace/`).

    A folder may end in one `/`, as people write it.
    """
    if path in (".", "./", root, root[:-1]):
        return ()
    return parts_of(path.removesuffix("/") if len(path) > 1 else path, root)


def problem_of(path: str, root: str = SHOWN_ROOT) -> str | None:
    """What is wrong with a relative path, as the end of a sentence about it."""
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        return "is not valid text: it holds half a character"
    names = path.split("/")
    return (
        _way_out(path, names, root)
        or _odd_character(path)
        or _length(size, names)
        or ("is a name that the workspace keeps for itself" if _is_kept(names) else None)
    )


def partial_name() -> str:
    """A fresh name for what nobody may see yet, or any more."""
    return f".{secrets.token_hex(8)}.partial"


def _way_out(path: str, names: list[str], root: str) -> str | None:
    if not path:
        return "is empty: name a file, for example `notes.md`"
    if path.startswith("/"):
        return f"leads out of the workspace: it must be relative, or start with {root}"
    if ".." in names:
        return "leads out of the workspace: it must not hold `..`"
    if any(name in ("", ".") for name in names):
        return "must not hold `.` or empty names: write `a/b`, not `./a//b`"
    return None


def _odd_character(path: str) -> str | None:
    if path.isascii() and path.isprintable():
        return None  # decided at once: lists ask this for every name in them
    if any(
        unicodedata.category(character) in CONTROLS or unicodedata.bidirectional(character) in BIDI
        for character in path
    ):
        return "must not hold null bytes, control characters or marks that reorder text"
    return None


def _length(size: int, names: list[str]) -> str | None:
    long = size > NAME_BYTES and any(len(name.encode()) > NAME_BYTES for name in names)
    if size > PATH_BYTES or len(names) > DEPTH or long:
        return (
            f"is too long: at most {PATH_BYTES} bytes, {NAME_BYTES} for each name, "
            f"and {DEPTH} names"
        )
    return None


def _is_kept(names: list[str]) -> bool:
    return any(PARTIAL.fullmatch(name) for name in names)
