"""Pin definitions: a changed definition is not offered until an administrator accepts it."""

import difflib
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

import msgspec

from gatepost.upstreams.catalogue import Change, Section
from gatepost.upstreams.definitions import FoundDefinition
from gatepost.upstreams.digest import digest_of
from gatepost.upstreams.upstream_server import Pin

MAX_PINNED = 8_000
"""
Maximum number of definitions that are pinned of a server; further ones wait until removed ones are
gone.
"""
MAX_DIFF_LINES = 4_000

PinnedSection = Section | Literal["instructions"]
_NAMES = frozenset({"name", "title", "uri", "uriTemplate"})
_TOOL_WORDS = _NAMES | {"description"}
"""The members that a tool may change and still count as the same one under another name."""


class PinnedDefinition(msgspec.Struct, frozen=True):
    """A definition that was accepted, by its digest, with its text for the next diff."""

    digest: str
    value: Mapping[str, Any]


class Pins(msgspec.Struct, frozen=True):
    """The accepted definitions of one server, by section and key."""

    pinned: Mapping[PinnedSection, Mapping[str, PinnedDefinition]] = {}

    def get(self, section: PinnedSection, key: str) -> PinnedDefinition | None:
        """Return the pinned definition of a key."""
        return self.pinned.get(section, {}).get(key)

    @property
    def count(self) -> int:
        """Return the number of pinned definitions."""
        return sum(map(len, self.pinned.values()))

    def changed(
        self, changes: Iterable[tuple[PinnedSection, str, PinnedDefinition | None]]
    ) -> "Pins":
        """Return the pins with these added; None removes one."""
        pinned = {section: dict(definitions) for section, definitions in self.pinned.items()}
        for section, key, definition in changes:
            definitions = pinned.setdefault(section, {})
            if definition is None:
                definitions.pop(key, None)
            else:
                definitions[key] = definition
        return Pins(pinned)


class Review(msgspec.Struct, frozen=True, kw_only=True):
    """The definitions of a server that may be offered, and those that wait."""

    offered: tuple[FoundDefinition, ...]
    changes: tuple[Change, ...]
    pins: Pins


def review(
    pin: Pin, pins: Pins, listed: Collection[FoundDefinition], complete: Collection[Section]
) -> Review:
    """
    Compare definitions with those that are pinned.

    *complete* are the sections that were listed to their end for all callers: only there a missing
    definition is gone, and a new one may be an old one under another name. With `first`, a new
    definition is pinned when it is first seen. With `review` it waits.
    """
    if pin == "off":
        return Review(offered=tuple(listed), changes=(), pins=pins)
    missing = _missing(pins, listed, complete)
    unpinned = [item for item in listed if pins.get(item.section, item.key) is None]
    renamed = _renamed(missing, unpinned)
    offered: list[FoundDefinition] = []
    changes: list[Change] = []
    fresh: list[tuple[PinnedSection, str, PinnedDefinition | None]] = []
    for definition in listed:
        pinned = pins.get(definition.section, definition.key)
        before = pinned or renamed.get((definition.section, definition.key))
        may_pin = pins.count + len(fresh) < MAX_PINNED
        if pinned is not None and pinned.digest == definition.digest:
            offered.append(definition)
        elif before is None and pin == "first" and may_pin:
            new = PinnedDefinition(definition.digest, definition.value)
            fresh.append((definition.section, definition.key, new))
            offered.append(definition)
        else:
            changes.append(_change(definition, before))
    changes += [
        Change(section=section, key=key, before=old.value, after=None, digest=_gone_digest(old))
        for (section, key), old in missing.items()
    ]
    new_pins = pins.changed(fresh) if fresh else pins
    return Review(offered=tuple(offered), changes=tuple(changes), pins=new_pins)


def review_instructions(pin: Pin, pins: Pins, text: str) -> tuple[str, Change | None, Pins]:
    """
    Return the instructions to show, the change that waits, and the pins.

    While a change waits, the accepted instructions stay: they are text, and run no code.
    """
    pinned = pins.get("instructions", "")
    if pin == "off" or (pinned is None and not text):
        return text, None, pins
    value = {"instructions": text}
    definition = PinnedDefinition(digest_of(value), value)
    if pinned is None and pin == "first":
        return text, None, pins.changed([("instructions", "", definition)])
    if pinned is not None and pinned.digest == definition.digest:
        return text, None, pins
    before = None if pinned is None else pinned.value
    change = Change(
        section="instructions", key="", before=before, after=value, digest=definition.digest
    )
    return "" if pinned is None else str(pinned.value["instructions"]), change, pins


def accept(pins: Pins, changes: Iterable[Change], digests: Collection[str] | None) -> Pins:
    """Return the pins after accepting the changes with these digests, or all of them (None)."""
    return pins.changed(
        (
            change.section,
            change.key,
            None if change.after is None else PinnedDefinition(change.digest, change.after),
        )
        for change in changes
        if digests is None or change.digest in digests
    )


def diff(change: Change) -> str:
    """
    Return a change as a unified diff of JSON, for the command line and the dashboard.

    Everything but ASCII is escaped, so that invisible characters are seen.
    """
    title = f"{change.section}/{json.dumps(change.key)[1:-1]}"
    lines = difflib.unified_diff(
        _lines(change.before),
        _lines(change.after),
        f"accepted/{title}",
        f"new/{title}",
        lineterm="",
    )
    return "\n".join(lines)


def _lines(value: Mapping[str, Any] | None) -> list[str]:
    if value is None:
        return []
    lines = json.dumps(value, indent=2, sort_keys=True).splitlines()
    if len(lines) <= MAX_DIFF_LINES:
        return lines
    remaining = len(lines) - MAX_DIFF_LINES
    return [*lines[:MAX_DIFF_LINES], f"… {remaining} more lines, digest {digest_of(value)}"]


def _change(listed: FoundDefinition, before: PinnedDefinition | None) -> Change:
    return Change(
        section=listed.section,
        key=listed.key,
        before=None if before is None else before.value,
        after=listed.value,
        digest=listed.digest,
    )


def _gone_digest(pinned: PinnedDefinition) -> str:
    return digest_of({"gone": pinned.digest})


def _missing(
    pins: Pins, listed: Collection[FoundDefinition], complete: Collection[Section]
) -> dict[tuple[Section, str], PinnedDefinition]:
    present = {(definition.section, definition.key) for definition in listed}
    return {
        (section, key): definition
        for section in complete
        for key, definition in pins.pinned.get(section, {}).items()
        if (section, key) not in present
    }


def _renamed(
    missing: Mapping[tuple[Section, str], PinnedDefinition], new: Iterable[FoundDefinition]
) -> dict[tuple[Section, str], PinnedDefinition]:
    """Return, for new definitions, those that are gone and whose content they have."""
    by_content: dict[str, list[PinnedDefinition]] = {}
    if not missing:
        return {}
    for (section, _), definition in missing.items():
        by_content.setdefault(_content(section, definition.value), []).append(definition)
    renamed = {}
    for candidate in new:
        if waiting := by_content.get(_content(candidate.section, candidate.value)):
            renamed[candidate.section, candidate.key] = waiting[0]
    return renamed


def _content(section: Section, value: Mapping[str, Any]) -> str:
    words = _TOOL_WORDS if section == "tools" else _NAMES
    compared = {member: item for member, item in value.items() if member not in words}
    hints = compared.get("annotations")
    if isinstance(hints, Mapping):
        compared["annotations"] = {name: hint for name, hint in hints.items() if name != "title"}
    return digest_of({"section": section, "content": compared})
