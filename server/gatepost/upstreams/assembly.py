"""Assemble the catalogue of an upstream from its lists: reviewed, cleaned and bounded."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from gatepost.tools.context.content import Icon, Relevance
from gatepost.upstreams.catalogue import Catalogue, Change, Definition, LeftOut, Section
from gatepost.upstreams.cleaning import (
    MAX_DESCRIPTION,
    MAX_TITLE,
    Unusable,
    check_exact,
    cleaned,
    cleaned_schema,
    usable,
    usable_input,
    visible_line,
)
from gatepost.upstreams.connection import ServerDescription
from gatepost.upstreams.definition_pins import Pins, accept, review, review_instructions
from gatepost.upstreams.definitions import Found
from gatepost.upstreams.offered_names import offered_name
from gatepost.upstreams.upstream_server import UpstreamServer

MAX_ICONS = 8
MAX_ICON = 65_536
MAX_META = 32_768
MAX_ARGUMENTS = 64
MAX_REASONS = 200
"""Maximum number of definitions that are listed with a reason each; the others are counted."""
_PICTURES = tuple(f"data:image/{kind};base64," for kind in ("png", "jpeg", "webp", "gif"))
NO_DEFINITIONS: Mapping[tuple[Section, str], Definition] = {}
_HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")

_encode = msgspec.json.encode


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one fetch."""

    description: ServerDescription
    definitions: tuple[Found, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    whole: frozenset[Section] = frozenset()
    """The sections that were listed completely."""
    failed: frozenset[Section] = frozenset()
    """The sections that could not be listed; they keep their previous definitions."""
    failure: str = ""
    ttl_ms: int = 86_400_000


def assembled(
    server: UpstreamServer, listed: Listed, pins: Pins, before: Catalogue | None, *, now: float
) -> tuple[Catalogue, Pins]:
    """Return the catalogue after a fetch and the pins; it takes time, so call it in a thread."""
    complete = listed.whole if server.catalogue == "shared" else frozenset[Section]()
    reviewed = review(server.pin, pins, listed.definitions, complete)
    text = listed.description.instructions
    instructions, waiting, new_pins = review_instructions(server.pin, reviewed.pins, text)
    definitions_before = (
        {}
        if before is None
        else {(definition.section, definition.key): definition for definition in before.definitions}
    )
    definitions, unusable = _definitions(server, reviewed.offered, definitions_before)
    changes = [*reviewed.changes, *([waiting] if waiting else [])]
    left_out = [*listed.left_out, *unusable]
    failing_since = None
    if listed.failed:
        failing_since = now if before is None else before.failing_since or now
        if before is not None:
            definitions += [
                definition
                for definition in before.definitions
                if definition.section in listed.failed
            ]
            changes += [change for change in before.changes if change.section in listed.failed]
            left_out += [entry for entry in before.left_out if entry.section in listed.failed]
    catalogue = Catalogue(
        server_id=server.id,
        fetched_at=now,
        revision=listed.description.revision,
        era=listed.description.era,
        capabilities=listed.description.capabilities,
        instructions=cleaned(instructions, MAX_DESCRIPTION)[0],
        definitions=tuple(definitions),
        left_out=_counted(left_out),
        changes=tuple(changes),
        ttl_ms=listed.ttl_ms,
        failing_since=failing_since,
        failure=listed.failure,
    )
    return catalogue, new_pins


def after_accepting(server: UpstreamServer, catalogue: Catalogue, pins: Pins) -> Catalogue:
    """Return a catalogue after its pins changed, without asking the server again."""
    offered: list[Found] = []
    changes: list[Change] = []
    instructions = catalogue.instructions
    for change in catalogue.changes:
        pinned = pins.get(change.section, change.key)
        if change.after is None:
            changes += [change] if pinned is not None else []
        elif server.pin != "off" and (pinned is None or pinned.digest != change.digest):
            changes.append(change)
        elif change.section == "instructions":
            instructions = cleaned(str(change.after["instructions"]), MAX_DESCRIPTION)[0]
        else:
            offered.append(
                Found(
                    section=change.section,
                    key=change.key,
                    value=change.after,
                    digest=change.digest,
                )
            )
    definitions, unusable = _definitions(server, offered)
    return msgspec.structs.replace(
        catalogue,
        instructions=instructions,
        definitions=(*catalogue.definitions, *definitions),
        left_out=_counted([*catalogue.left_out, *unusable]),
        changes=tuple(changes),
    )


def pins_after(catalogue: Catalogue, pins: Pins, digests: Iterable[str] | None) -> Pins:
    """Return the pins after accepting the waiting changes of a catalogue."""
    return accept(pins, catalogue.changes, None if digests is None else frozenset(digests))


def definition_of(server: UpstreamServer, listed: Found) -> Definition:
    """Return the clean definition of one that may be offered; raises Unusable."""
    value, report = dict(listed.value), list[str]()
    for member, max_chars in (("title", MAX_TITLE), ("description", MAX_DESCRIPTION)):
        if member in value:
            value[member], removed = cleaned(value[member], max_chars)
            report += [f"{member}: {removal}" for removal in removed]
    for member in ("mimeType", "size"):
        check_exact(value.get(member), f"its {member}")
    _keep_icons(value, report)
    _keep_meta(value, report)
    if listed.section == "tools":
        _clean_tool(value, report)
    elif listed.section == "prompts":
        _clean_prompt(value, report)
    else:
        value["name"] = cleaned(str(value.get("name", "")), MAX_TITLE)[0] or visible_line(
            listed.key
        )
        _keep_relevance(value, report)
    return Definition(
        section=listed.section,
        key=listed.key,
        name=_name(server, listed),
        value=value,
        digest=listed.digest,
        cleaned=tuple(dict.fromkeys(report)),
    )


def _definitions(
    server: UpstreamServer,
    offered: Iterable[Found],
    definitions_before: Mapping[tuple[Section, str], Definition] = NO_DEFINITIONS,
) -> tuple[list[Definition], list[LeftOut]]:
    definitions: list[Definition] = []
    left_out: list[LeftOut] = []
    for listed in offered:
        before = definitions_before.get((listed.section, listed.key))
        if before is not None and _is_same(server, listed, before):
            definitions.append(before)  # cleaning and checking thousands takes seconds
            continue
        try:
            definitions.append(definition_of(server, listed))
        except Unusable as problem:
            entry = LeftOut(
                section=listed.section, key=visible_line(listed.key), reason=f"{problem}"
            )
            left_out.append(entry)
    return definitions, left_out


def _is_same(server: UpstreamServer, listed: Found, before: Definition) -> bool:
    """Return whether a definition was cleaned before, with all that its digest does not cover."""
    if before.digest != listed.digest or before.name != _name(server, listed):
        return False
    members = ("icons",) if listed.section == "tools" else ("icons", "size", "annotations")
    return all(listed.value.get(member) == before.value.get(member) for member in members)


def _name(server: UpstreamServer, listed: Found) -> str:
    if listed.section == "tools":
        return offered_name(server.name, server.renames.get(listed.key, listed.key))
    return offered_name(server.name, listed.key) if listed.section == "prompts" else listed.key


def _counted(left_out: list[LeftOut]) -> tuple[LeftOut, ...]:
    reasons = list(dict.fromkeys((entry.section, entry.key, entry.reason) for entry in left_out))
    entries = [LeftOut(section=section, key=key, reason=text) for section, key, text in reasons]
    if len(entries) <= MAX_REASONS:
        return tuple(entries)
    summary = f"{len(entries) - MAX_REASONS} more definitions are left out as well"
    return (*entries[:MAX_REASONS], LeftOut(section="tools", key="", reason=summary))


def _clean_tool(value: dict[str, Any], report: list[str]) -> None:
    if "inputSchema" not in value:
        raise Unusable("it has no input schema")
    value["inputSchema"], removed = cleaned_schema(value["inputSchema"])
    report += removed
    usable_input(value["inputSchema"])
    if "outputSchema" in value:
        value["outputSchema"], removed = cleaned_schema(value["outputSchema"])
        report += removed
        usable(value["outputSchema"], "output")
    hints = value.pop("annotations", {})
    annotations = {name: hints[name] for name in _HINTS if isinstance(hints.get(name), bool)}
    if isinstance(hints.get("title"), str):
        annotations["title"] = cleaned(hints["title"], MAX_TITLE)[0]
    if annotations:
        value["annotations"] = annotations
    support = value.pop("execution", {}).get("taskSupport")
    if support in ("optional", "required"):
        value["execution"] = {"taskSupport": support}


def _clean_prompt(value: dict[str, Any], report: list[str]) -> None:
    arguments = value.pop("arguments", [])
    if not isinstance(arguments, list) or len(arguments) > MAX_ARGUMENTS:
        raise Unusable(f"its arguments are no list, or more than {MAX_ARGUMENTS}")
    cleaned_arguments: list[dict[str, Any]] = []
    for argument in arguments:
        if not isinstance(argument, Mapping) or not isinstance(argument.get("name"), str):
            raise Unusable("an argument of it has no name")
        check_exact(argument["name"], "the name of an argument")
        cleaned_argument = {"name": argument["name"], "required": argument.get("required") is True}
        for member, max_chars in (("title", MAX_TITLE), ("description", MAX_DESCRIPTION)):
            if isinstance(argument.get(member), str):
                cleaned_argument[member], removed = cleaned(argument[member], max_chars)
                report += [f"argument: {reason}" for reason in removed]
        cleaned_arguments.append(cleaned_argument)
    if len({named["name"] for named in cleaned_arguments}) != len(cleaned_arguments):
        raise Unusable("two arguments of it have the same name")
    value["arguments"] = cleaned_arguments


def _keep_icons(value: dict[str, Any], report: list[str]) -> None:
    icons = value.pop("icons", [])
    icons = icons if isinstance(icons, list) else []
    valid_icons = [icon for icon in icons[:MAX_ICONS] if _is_icon(icon)]
    if len(valid_icons) < len(icons):
        report.append("icons: those that are no https: or small data: pictures removed")
    if valid_icons:
        value["icons"] = valid_icons


def _is_icon(icon: Any) -> bool:
    try:
        converted = msgspec.convert(icon, Icon)
        check_exact({**icon, "src": ""}, "an icon")
    except (msgspec.ValidationError, ValueError, TypeError):
        return False
    source = converted.src
    if source.startswith("https://"):
        return len(source) <= MAX_TITLE * 8 and source.isascii() and source.isprintable()
    return source.startswith(_PICTURES) and len(source) <= MAX_ICON and source.isascii()


def _keep_meta(value: dict[str, Any], report: list[str]) -> None:
    if "_meta" not in value:
        return
    try:
        check_exact(value["_meta"], "its _meta")
        if len(_encode(value["_meta"])) > MAX_META:
            raise Unusable("its _meta is too large")
    except Unusable as problem:
        report.append(f"_meta: removed, because {problem}")
        del value["_meta"]


def _keep_relevance(value: dict[str, Any], report: list[str]) -> None:
    if "annotations" not in value:
        return
    try:
        relevance = msgspec.convert(value.pop("annotations"), Relevance)
    except (msgspec.ValidationError, ValueError, TypeError):
        report.append("annotations: removed, because they are not those of a resource")
        return
    value["annotations"] = msgspec.to_builtins(relevance)
