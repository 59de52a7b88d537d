"""Check paths in a workspace; pure functions."""

import re
import secrets
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from gatepost.execution.failure import ToolFailure

SHOWN_ROOT = "/workspace/"
"""The name of the workspace in paths; tools accept absolute paths with it."""

NAME_BYTES = 255
PATH_BYTES = 4096
DEPTH = 32

CONTROLS = frozenset({"Cc", "Zl", "Zp"})
"""The Unicode categories of control characters and line separators."""
BIDI = frozenset({"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"})
"""Direction marks: they could make `txt.exe` look like another name to an approver."""

PLAIN_NAME = re.compile(r"[A-Za-z0-9_ -][A-Za-z0-9_ .-]{0,200}")
"""A name of which no path has a problem in a folder that is neither too deep nor too long."""
REPOSITORY = re.compile(r"\.git|git~[0-9]+")
# A file system may treat both cases as the same name.
PARTIAL = re.compile(r"\.[0-9a-f]{16}\.partial", re.IGNORECASE)
"""The prefix of temporary files, which no path may name and no list shows."""


def parts_of(path: str, root: str = SHOWN_ROOT) -> tuple[str, ...]:
    """
    Return the names in a tool's path; raise ToolFailure for a path outside *root*.

    `./a//b` is `a/b`, as everywhere else. Absolute paths, `..`, control and reordering characters,
    text that UTF-8 cannot encode and long names are refused rather than repaired: a repaired path
    is not the one that was approved.
    """
    relative = relative_of(path, root)
    problem = problem_of(relative, root)
    if problem:
        raise ToolFailure("validation", f"The path {problem}.", field="path")
    return tuple(names_of(relative))


def written_of(path: str, root: str) -> tuple[str, ...]:
    """
    Return the names in a path that is written to.

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
    Return whether some file system treats *name* as `.git`.

    HFS+ ignores characters that are not seen, Windows what follows a colon, dots and spaces at
    the end, and it has the short name `git~1` (CVE-2014-9390, CVE-2019-1352).
    """
    visible = "".join(c for c in name.partition(":")[0] if unicodedata.category(c) != "Cf")
    return bool(REPOSITORY.fullmatch(visible.rstrip(". ").casefold()))


def folder_of(path: str, root: str = SHOWN_ROOT) -> tuple[str, ...]:
    """
    Return the names in a path that may be the whole workspace (`.`, `/workspace`, `/workspace/`).

    A folder may end in `/`, as people write it.
    """
    inner = relative_of(path, root)
    if inner.startswith("/") or not inner:
        return parts_of(path, root)
    # If the path ends with an empty or dot name, it is a folder's.
    while inner.endswith(("/", "/.")):
        inner = inner.removesuffix(".").rstrip("/")
    return parts_of(inner, root) if inner not in ("", ".") else ()


def relative_of(path: str, root: str) -> str:
    """Return the path relative to its *root*; `.` for the root itself."""
    if not root or (path != root[:-1] and not path.startswith(root)):
        return path
    # `/workspace//a` is `/workspace/a`, because repeated slashes mean nothing.
    return path[len(root) :].lstrip("/") or "."


def names_of(path: str) -> list[str]:
    """Return the names in a path, without `.` and empty ones."""
    return [name for name in path.split("/") if name not in ("", ".")]


def problem_of(path: str, root: str = SHOWN_ROOT) -> str | None:
    """Return the problem of a relative path, as the end of a sentence, or None."""
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        return "is not valid text: it holds half a character"
    names = names_of(path)
    return (
        _way_out(path, names, root)
        or _odd_character(path)
        or _length(size, names)
        or ("is a name that the workspace keeps for itself" if _is_kept(names) else None)
    )


def listed_paths(
    folder: Sequence[str], names: Iterable[str], *, hidden: bool
) -> Iterator[tuple[str, str]]:
    """
    Yield each of the *names* in a folder that a path may have, with its path.

    Without *hidden*, names that begin with a dot are left out.
    """
    prefix = "".join([f"{name}/" for name in folder])
    is_roomy = 4 * len(prefix) + NAME_BYTES <= PATH_BYTES and len(folder) < DEPTH
    for name in names:
        path = prefix + name
        # A folder may have thousands of names, nearly all of which are plain.
        if (is_roomy and PLAIN_NAME.fullmatch(name)) or (
            (hidden or not name.startswith(".")) and problem_of(path) is None
        ):
            yield name, path


def partial_name() -> str:
    """Return a new name for a temporary file."""
    return f".{secrets.token_hex(8)}.partial"


def _way_out(path: str, names: list[str], root: str) -> str | None:
    if not path:
        return "is empty: name a file, for example `notes.md`"
    if path.startswith("/"):
        return f"leads out of the workspace: it must be relative, or start with {root}"
    if ".." in names:
        return "leads out of the workspace: it must not hold `..`"
    if "://" in path:
        return "is an address of something else: it must be relative, for example `notes.md`"
    if path.endswith(("/", "/.")) or not names:
        return "names a folder: name a file in it, for example `notes.md`"
    return None


def _odd_character(path: str) -> str | None:
    if path.isascii() and path.isprintable():
        return None  # the fast case, because lists check every name
    if any(
        unicodedata.category(character) in CONTROLS or unicodedata.bidirectional(character) in BIDI
        for character in path
    ):
        return "must not hold null bytes, control characters or marks that reorder text"
    return None


def _length(size: int, names: list[str]) -> str | None:
    has_long_name = size > NAME_BYTES and any(len(name.encode()) > NAME_BYTES for name in names)
    if size > PATH_BYTES or len(names) > DEPTH or has_long_name:
        return (
            f"is too long: at most {PATH_BYTES} bytes, {NAME_BYTES} for each name, "
            f"and {DEPTH} names"
        )
    return None


def _is_kept(names: list[str]) -> bool:
    return any(PARTIAL.fullmatch(name) for name in names)
