"""What judging arguments is made of: a refusal, a settled command, a path in the workspace."""

import msgspec

from gatepost.packs.git.url import Remote
from gatepost.workspace.path import is_repository, problem_of

ROOT = "/workspace"
NOT_OURS = "A folder named .git belongs to git itself: name the folder that holds it instead."


class Refused(msgspec.Struct, frozen=True):
    """Why arguments are not accepted, as a sentence for a model."""

    message: str


class Settled(msgspec.Struct, frozen=True):
    """What a command's own rules make of its arguments."""

    operands: tuple[str, ...]
    reads: bool = False
    remote: Remote | None = None
    named: str | None = None
    urls: tuple[Remote, ...] = ()
    target: tuple[str, ...] | None = None


def relative(
    text: str, folder: tuple[str, ...], *, pattern: bool = False
) -> Refused | tuple[str, ...]:
    """
    The names of a path below *folder*; `/workspace` is the root of the workspace.

    A *pattern* may hold wildcards, and end in `/`.
    """
    absolute = text.startswith("/")
    if absolute and text != ROOT and not text.startswith(f"{ROOT}/"):
        return Refused(f"{text[:60]!r} leads out of the workspace, whose root is {ROOT}.")
    inner = text.removeprefix(ROOT) if absolute else text
    names = [name for name in inner.split("/") if name not in ("", ".")]
    if ".." in names or text.startswith("~"):
        return Refused(f"{text[:60]!r} leads out of the workspace: it must not hold `..`.")
    if not pattern and any(set(name) & set("*?[]:") for name in names):
        return Refused(f"{text[:60]!r} is not the plain path of a folder.")
    if any(is_repository(name) for name in names):
        return Refused(NOT_OURS)
    if absolute:
        if tuple(names[: len(folder)]) != folder:
            shown = "/".join((ROOT, *folder))
            return Refused(f"{text[:60]!r} is not in {shown}, where the command runs.")
        names = names[len(folder) :]
    # No deeper than the tools for files go: what git made there, they could neither list nor
    # delete.
    if not pattern and names and (problem := problem_of("/".join((*folder, *names)))) is not None:
        return Refused(f"{text[:60]!r} {problem}.")
    return tuple(names)
