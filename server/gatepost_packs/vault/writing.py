"""Compute the new text of a note: text and front matter each have their own rule."""

from collections.abc import Mapping
from typing import Any

from gatepost import SettingsLookup, ToolFailure
from gatepost_packs.vault.front_matter import FrontMatterError, merged, split
from gatepost_packs.vault.note_names import SUFFIX, VAULT_PREFIX, is_note
from gatepost_packs.vault.settings import VaultSettings


class NoteChange:
    """Returns a note's new bytes from its old ones; *remarks* collects remarks."""

    def __init__(self, content: str, values: Mapping[str, Any] | None, *, append: bool) -> None:
        self.remarks: list[str] = []
        self._content = content
        self._values = values
        self._append = append

    def __call__(self, old: bytes | None) -> bytes:
        before = self._read(old)
        front_matter = split(before)
        body = self._content
        if self._append:
            # Appended content is text, even if it begins like front matter.
            gap = "" if not front_matter.body or front_matter.body.endswith("\n") else "\n"
            body = f"{front_matter.body}{gap}{self._content}"
        else:
            parsed = split(self._content)
            if parsed.problem is not None:
                self.remarks.append(parsed.problem)
            if parsed.values is not None or front_matter.problem is not None:
                front_matter, body = parsed, parsed.body
        raw = front_matter.raw
        if self._values:
            try:
                raw = merged(front_matter, self._values)
            except FrontMatterError as error:
                message = f"`front_matter` cannot be set: {error}"
                raise ToolFailure("validation", message, field="front_matter") from None
        return f"{raw}{body}".encode()

    def _read(self, old: bytes | None) -> str:
        try:
            return "" if old is None else old.decode()
        except UnicodeDecodeError:
            message = "The file is not UTF-8 text, so it was not changed. Delete it first."
            raise ToolFailure("validation", message, field="path") from None


def content_after(old: bytes, arguments: Mapping[str, Any]) -> bytes:
    """Return a note's content after a call of `vault_write`, for approvers."""
    values = arguments.get("front_matter")
    change = NoteChange(
        arguments["content"],
        values if isinstance(values, dict) else None,
        append=arguments.get("append") is True,
    )
    return change(old)


def place_of(path: str, settings: SettingsLookup) -> str:
    """Return the path within the workspace of the note that a call of `vault_write` names."""
    inner = path.removeprefix(VAULT_PREFIX)
    file_name = inner if is_note(inner) else inner + SUFFIX
    folder = settings(VaultSettings).folder
    return file_name if folder == "." else f"{folder}/{file_name}"
