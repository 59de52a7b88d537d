"""Preview the file that a call would write: its current text, and its text after the call."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from gatepost.dashboard.difference import Difference, difference
from gatepost.documents.json_shape import decoded
from gatepost.policy.approvals.approval_request import ApprovalRequest
from gatepost.policy.approvals.stored_request import MARK
from gatepost.redaction.redactor import Redactor, cleaned_text
from gatepost.tools.calls.redaction import Redaction
from gatepost.tools.context.interfaces import Workspace
from gatepost.tools.offers.effects import FileWrite, SettingsLookup
from gatepost.tools.offers.offer import Tool, ToolFailure

MAX_BYTES = 500_000
"""Maximum size of a file that is compared."""


Arguments = Mapping[str, Any]


class FileChange(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of a call on a file."""

    path: str
    exists: bool
    change: Difference | None = None
    """None if the texts cannot be compared; *why* has the reason."""
    why: str = ""
    secrets: bool = False
    """Whether the text contains a redacted secret, so that a changed secret would look the same."""


class FilePreviews:
    """
    Look up the files that calls would write.

    Contents are redacted like results. Tools declare by `writes` that they write a text to a path.
    """

    def __init__(
        self,
        workspace_of: Callable[[str], Workspace],
        redaction: Redaction,
        settings: SettingsLookup,
    ) -> None:
        self._workspace_of, self._redaction, self._settings = workspace_of, redaction, settings

    async def of(self, request: ApprovalRequest, tool: Tool | None) -> FileChange | None:
        """Return the file that this call would write; None if it is not known."""
        writing = None if tool is None else tool.writes
        if writing is None or request.kind != "call":
            return None
        arguments = _object(request.edited or request.arguments)
        path, text = arguments.get(writing.path), arguments.get(writing.text)
        if not isinstance(path, str) or not isinstance(text, str):
            return None
        try:
            shown_path = path if writing.locate is None else writing.locate(path, self._settings)
            head = await self._workspace_of(request.tenant).head(shown_path, limit=MAX_BYTES)
        except ToolFailure as failure:
            if failure.failure.kind == "not_found":
                return FileChange(path=path, exists=False)
            return FileChange(path=path, exists=True, why=failure.failure.message)
        if head.size > MAX_BYTES:
            reason = f"The file is too large to compare ({head.size:,} bytes)."
            return FileChange(path=path, exists=True, why=reason)
        await self._redaction.prepare(request.tenant)
        redactor = self._redaction.of(request.tenant)
        after = _after(writing, arguments)
        return await asyncio.to_thread(_compared, path, head.data, after, redactor)


def _compared(
    path: str, now: bytes, after: Callable[[bytes], bytes], redactor: Redactor
) -> FileChange:
    try:
        before, proposed = now.decode(), after(now).decode()
    except UnicodeDecodeError:
        return FileChange(path=path, exists=True, why="The current file is not UTF-8 text.")
    except ToolFailure as failure:
        return FileChange(path=path, exists=True, why=failure.failure.message)
    shown_text = cleaned_text(proposed, redactor)
    change = difference(cleaned_text(before, redactor), shown_text)
    return FileChange(path=path, exists=True, change=change, secrets=MARK in shown_text)


def _after(writing: FileWrite, arguments: Arguments) -> Callable[[bytes], bytes]:
    """Return a function from a file's current content to its content after the call."""
    after = writing.after
    if after is None:
        written = str(arguments[writing.text]).encode()
        return lambda old: written
    return lambda old: after(old, arguments)


def _object(encoded: bytes) -> Arguments:
    value = decoded(encoded)
    return value if isinstance(value, dict) else {}
