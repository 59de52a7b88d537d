"""The file that a call would write: what stands there now, and what would stand there after."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from gatepost.approvals.filing import MARK
from gatepost.approvals.request import Request
from gatepost.dashboard.difference import Difference, difference
from gatepost.packs.vault.names import SUFFIX, is_note
from gatepost.packs.vault.writing import changed_by
from gatepost.redaction.automaton import Redactor
from gatepost.tools.api import ToolFailure
from gatepost.tools.redaction import Redaction
from gatepost.tools.surroundings import Workspace

MOST_BYTES = 500_000
"""Of the file; a longer one is not compared."""


class Writing(msgspec.Struct, frozen=True):
    """Which arguments of a tool are a file's path and its text."""

    path: str
    text: str
    is_note: bool = False
    """Of the vault, which has rules of its own for what becomes of a note."""


WRITING: Mapping[tuple[str, str], Writing] = {
    ("workspace", "workspace_write"): Writing("path", "content"),
    ("filesystem", "fs_write_text"): Writing("path", "text"),
    ("vault", "vault_write"): Writing("path", "content", is_note=True),
}
"""By pack and tool."""

Arguments = Mapping[str, Any]


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What a call does to a file."""

    path: str
    exists: bool
    change: Difference | None = None
    """None where it cannot be compared; *why* says the reason."""
    why: str = ""
    secrets: bool = False
    """Whether something in it is withheld, so that another secret in its place reads like it."""


class Targets:
    """
    Looks at the files that calls would write.

    What stands there is redacted like every answer. Only the tools of `WRITING` are known to write
    a text to a path; for any other the arguments have to do.
    """

    def __init__(
        self, workspace_of: Callable[[str], Workspace], redaction: Redaction, vault: str = "vault"
    ) -> None:
        self._workspace_of, self._redaction, self._vault = workspace_of, redaction, vault

    async def of(self, request: Request, pack: str) -> Target | None:
        """The file that this call would write; None: none that we know of."""
        writing = WRITING.get((pack, request.tool))
        if writing is None or request.kind != "call":
            return None
        arguments = _object(request.edited or request.arguments)
        path, text = arguments.get(writing.path), arguments.get(writing.text)
        if not isinstance(path, str) or not isinstance(text, str):
            return None
        place = _placed(path, self._vault) if writing.is_note else path
        try:
            head = await self._workspace_of(request.tenant).head(place, limit=MOST_BYTES)
        except ToolFailure as failure:
            if failure.failure.kind == "not_found":
                return Target(path=path, exists=False)
            return Target(path=path, exists=True, why=failure.failure.message)
        if head.size > MOST_BYTES:
            why = f"The file has {head.size:,} bytes: too many to compare here."
            return Target(path=path, exists=True, why=why)
        await self._redaction.ready(request.tenant)
        redactor = self._redaction.of(request.tenant)
        after = _note(arguments) if writing.is_note else lambda old: text.encode()
        return await asyncio.to_thread(_compared, path, head.data, after, redactor)


def _compared(path: str, now: bytes, after: Callable[[bytes], bytes], redactor: Redactor) -> Target:
    try:
        before, then = now.decode(), after(now).decode()
    except UnicodeDecodeError:
        return Target(path=path, exists=True, why="What stands there is no UTF-8 text.")
    except ToolFailure as failure:
        return Target(path=path, exists=True, why=failure.failure.message)
    shown = redactor.clean(then)
    change = difference(redactor.clean(before), shown)
    return Target(path=path, exists=True, change=change, secrets=MARK in shown)


def _note(arguments: Arguments) -> Callable[[bytes], bytes]:
    """What becomes of a note, by the vault's own rules."""
    values = arguments.get("front_matter")
    return changed_by(
        arguments["content"],
        values if isinstance(values, dict) else None,
        append=arguments.get("append") is True,
    )


def _placed(path: str, vault: str) -> str:
    inner = path.removeprefix("/vault/")
    named = inner if is_note(inner) else inner + SUFFIX
    return named if vault == "." else f"{vault}/{named}"


def _object(encoded: bytes) -> Arguments:
    value = msgspec.json.decode(encoded)
    return value if isinstance(value, dict) else {}
