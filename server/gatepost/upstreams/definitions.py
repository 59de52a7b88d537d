"""Read the definitions of an upstream's lists, and bring them into the newest revision's form."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from gatepost.upstreams.catalogue import LeftOut, Section
from gatepost.upstreams.cleaning import Unusable, check_depth, is_visible, visible_line
from gatepost.upstreams.digest import digest_of

KEYS: Mapping[Section, str] = {
    "tools": "name",
    "resources": "uri",
    "templates": "uriTemplate",
    "prompts": "name",
}
"""The member that identifies the definitions of a list."""
MAX_KEY = 2_048

_COMMON = frozenset({"name", "title", "description", "icons", "_meta"})
MEMBERS: Mapping[Section, frozenset[str]] = {
    "tools": _COMMON | {"inputSchema", "outputSchema", "annotations", "execution"},
    "resources": _COMMON | {"uri", "mimeType", "size", "annotations"},
    "templates": _COMMON | {"uriTemplate", "mimeType", "annotations"},
    "prompts": _COMMON | {"arguments"},
}
"""The members of the newest revision; others have no meaning here."""
_TYPES: Mapping[str, type[Any]] = {
    "name": str,
    "title": str,
    "description": str,
    "mimeType": str,
    "_meta": dict,
    "annotations": dict,
    "execution": dict,
}
_VOLATILE = frozenset({"icons", "size"})
"""Members that change without a new meaning, so that no digest covers them."""


class FoundDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """One definition as the upstream wrote it, in the newest revision's form."""

    section: Section
    key: str
    value: Mapping[str, Any]
    digest: str


def read_list(
    section: Section, items: Iterable[Any]
) -> tuple[tuple[FoundDefinition, ...], tuple[LeftOut, ...]]:
    """Return the definitions of one list, and those that cannot be read, with the reasons."""
    definitions: dict[str, FoundDefinition] = {}
    left_out: list[LeftOut] = []
    for number, item in enumerate(items, 1):
        key = _key_of(section, item)
        shown_key = visible_line(key) if key is not None else f"number {number}"
        try:
            definition = _read(section, key, item)
        except Unusable as problem:
            left_out.append(LeftOut(section=section, key=shown_key, reason=f"{problem}"))
            continue
        if definition.key in definitions:
            reason = "the server lists it twice; only the first one counts"
            left_out.append(LeftOut(section=section, key=shown_key, reason=reason))
        else:
            definitions[definition.key] = definition
    return tuple(definitions.values()), tuple(left_out)


def _key_of(section: Section, item: Any) -> str | None:
    key = item.get(KEYS[section]) if isinstance(item, Mapping) else None
    return key if isinstance(key, str) and key else None


def _read(section: Section, key: str | None, item: Any) -> FoundDefinition:
    if key is None:
        raise Unusable(f"it has no {KEYS[section]}")
    if len(key) > MAX_KEY or not is_visible(key):
        raise Unusable(f"its {KEYS[section]} has invisible characters or is too long")
    check_depth(item)
    value = {member: item[member] for member in MEMBERS[section] & item.keys()}
    value = {
        member: member_value for member, member_value in value.items() if member_value is not None
    }
    for member, kind in _TYPES.items():
        if member in value and not isinstance(value[member], kind):
            raise Unusable(f"its {member} has the wrong type")
    title = value.get("annotations", {}).get("title")
    if section == "tools" and "title" not in value and isinstance(title, str) and title:
        # Before 2025-06-18 the annotations had the title.
        value["title"] = title
    return FoundDefinition(section=section, key=key, value=value, digest=digest_of(_lasting(value)))


def _lasting(value: Mapping[str, Any]) -> dict[str, Any]:
    lasting = {member: item for member, item in value.items() if member not in _VOLATILE}
    if "lastModified" in lasting.get("annotations", {}):
        annotations = {
            name: annotation
            for name, annotation in value["annotations"].items()
            if name != "lastModified"
        }
        lasting["annotations"] = annotations
    return lasting
