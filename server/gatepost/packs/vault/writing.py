"""What becomes of a note when somebody writes it: text and front matter, each by its own rule."""

from collections.abc import Mapping
from typing import Any

from gatepost.packs.vault.matter import Unreadable, merged, split
from gatepost.tools.api import ToolFailure


class Change:
    """Makes a note's new bytes of its old ones; *remarks* says what was noticed on the way."""

    def __init__(self, content: str, values: Mapping[str, Any] | None, *, append: bool) -> None:
        self.remarks: list[str] = []
        self._content = content
        self._values = values
        self._append = append

    def __call__(self, old: bytes | None) -> bytes:
        before = self._read(old)
        matter = split(before)
        body = self._content
        if self._append:
            # Whatever it begins with, what is added is text.
            gap = "" if not matter.body or matter.body.endswith("\n") else "\n"
            body = f"{matter.body}{gap}{self._content}"
        else:
            brought = split(self._content)
            if brought.problem is not None:
                self.remarks.append(brought.problem)
            if brought.values is not None or matter.problem is not None:
                matter, body = brought, brought.body
        raw = matter.raw
        if self._values:
            try:
                raw = merged(matter, self._values)
            except Unreadable as error:
                message = f"`front_matter` cannot be set: {error}"
                raise ToolFailure("validation", message, field="front_matter") from None
        return f"{raw}{body}".encode()

    def _read(self, old: bytes | None) -> str:
        try:
            return "" if old is None else old.decode()
        except UnicodeDecodeError:
            message = "What stands there is no UTF-8 text, so it is not changed. Delete it first."
            raise ToolFailure("validation", message, field="path") from None


def changed_by(content: str, values: Mapping[str, Any] | None, *, append: bool) -> Change:
    """How such a call changes the note at its path."""
    return Change(content, values, append=append)
