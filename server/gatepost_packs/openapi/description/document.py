"""One description: its title, its operations, and the value at any place in it."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal
from urllib.parse import unquote

import msgspec

from gatepost_packs.openapi.description.reading import DescriptionUnreadable

Dialect = Literal["2.0", "3.0", "3.1"]
DIALECTS: Mapping[str, Dialect] = {"3.0": "3.0", "3.1": "3.1", "2.0": "2.0", "2": "2.0"}
METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
MAX_OPERATIONS = 20_000
MAX_MEMBERS = 100_000
"""Members of one object that are read at most."""
HOPS = 10
REMEMBERED = 64
"""Deeper places whose members are cached; many references point to few of them."""

RawContainer = Mapping[str, msgspec.Raw] | list[msgspec.Raw]


class UnresolvableReference(LookupError):
    """A reference to a place that the description does not have."""


class OperationSummary(msgspec.Struct, frozen=True, gc=False):
    """One operation as lists show it."""

    path: str
    method: str
    """In capitals."""
    summary: str
    tags: tuple[str, ...]
    operation_id: str
    """Empty if it has none."""


class _Head(msgspec.Struct, frozen=True):
    summary: Any = None
    description: Any = None
    tags: Any = None
    operation_id: Any = msgspec.field(default=None, name="operationId")


class ApiDescription:
    """
    A description that is kept as bytes; only the requested parts are decoded.

    *data* is the result of `reading.canonical`; DescriptionUnreadable if it is no description.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._levels: dict[tuple[str, ...], RawContainer] = {(): _level(msgspec.Raw(data))}
        self._containers: dict[tuple[str, ...], RawContainer] = {}
        self.dialect = self._dialect()
        info = self.member("info")
        info = info if isinstance(info, dict) else {}
        self.title, self.version = _text(info.get("title")), _text(info.get("version"))
        self.entries = tuple(self._index())
        self._by_place = {(entry.path, entry.method): entry for entry in self.entries}

    @property
    def weight(self) -> int:
        """Return about how many bytes of memory it takes."""
        return len(self.data) + 600 * len(self.entries)

    def entry(self, path: str, method: str) -> OperationSummary | None:
        """Return the operation of that path template and method."""
        return self._by_place.get((path, method.upper()))

    def member(self, name: str) -> Any:
        """Return a member of the root; None if it is missing."""
        level = self._levels[()]
        if not isinstance(level, Mapping) or name not in level:
            return None
        return msgspec.json.decode(level[name])

    def resolve(self, reference: str) -> msgspec.Raw:
        """
        Return the target of a local reference (`#/components/schemas/Pet`).

        Raises UnresolvableReference.
        """
        if reference == "#":
            return msgspec.Raw(self.data)
        if not reference.startswith("#/"):
            raise UnresolvableReference(reference)
        names = tuple(
            unquote(part).replace("~1", "/").replace("~0", "~") for part in reference[2:].split("/")
        )
        level: RawContainer = self._levels[()]
        raw = _inside(level, names[0], reference)
        for at, name in enumerate(names[1:], 1):
            raw = _inside(self._opened(names[:at], raw), name, reference)
        return raw

    def operation(self, entry: OperationSummary) -> dict[str, Any]:
        """
        Return the operation as it is written, after the parameters of its path.

        The path's `servers` apply if the operation has none.
        """
        item = self._item(entry.path)
        operation_source: dict[str, Any] = msgspec.json.decode(item[entry.method.lower()])
        for name in ("parameters", "servers"):
            shared = msgspec.json.decode(item[name]) if name in item else None
            if isinstance(shared, list):
                own_list = operation_source.get(name)
                own_list = own_list if isinstance(own_list, list) else []
                operation_source[name] = (
                    [*shared, *own_list] if name == "parameters" else own_list or shared
                )
        return operation_source

    def _dialect(self) -> Dialect:
        version = self.member("openapi") or self.member("swagger")
        text = _text(version)
        if dialect := DIALECTS.get(".".join(text.split(".")[:2])):
            return dialect
        if not text:
            raise DescriptionUnreadable(
                "This is not an API description: it has neither `openapi` (3.0 or 3.1) nor "
                "`swagger` (2.0) at its top level."
            )
        raise DescriptionUnreadable(
            f"Version {text[:20]!r} is not supported. Supported versions are 3.0, 3.1 and 2.0."
        )

    def _item(self, path: str) -> Mapping[str, msgspec.Raw]:
        """Return the members of a path, references resolved; raise UnresolvableReference."""
        item = _level(_inside(self._opened(("paths",), None), path, path))
        for _ in range(HOPS):
            if not isinstance(item, dict) or "$ref" not in item:
                break
            siblings = {name: raw for name, raw in item.items() if name != "$ref"}
            referred = _level(self.resolve(_text(msgspec.json.decode(item["$ref"]))))
            item = {**referred, **siblings} if isinstance(referred, dict) else siblings
        if not isinstance(item, dict):
            raise UnresolvableReference(path)
        return item

    def _index(self) -> Iterator[OperationSummary]:
        if "paths" not in self._levels[()]:
            return
        paths = self._opened(("paths",), None)
        count = 0
        for path in paths if isinstance(paths, Mapping) else ():
            # Any other path would become part of the host: `https://api.example` `@evil`.
            if not path.startswith("/"):
                continue
            try:
                item = self._item(path)
            except UnresolvableReference:
                continue
            for method in METHODS:
                if method in item and (entry := _entry(path, method, item[method])):
                    count += 1
                    if count > MAX_OPERATIONS:
                        raise DescriptionUnreadable(
                            f"The description has more than {MAX_OPERATIONS} operations."
                        )
                    yield entry

    def _opened(self, names: tuple[str, ...], raw: msgspec.Raw | None) -> RawContainer:
        """Return the members at a place; those near the root are cached."""
        if names in self._levels:
            return self._levels[names]
        if raw is None:
            raw = _inside(self._levels[()], names[0], names[0])
        if names in self._containers:
            return self._containers[names]
        level = _level(raw)
        if len(names) <= 2:
            self._levels[names] = level
            return level
        if len(self._containers) >= REMEMBERED:
            self._containers.pop(next(iter(self._containers)))
        self._containers[names] = level
        return level


def _level(raw: msgspec.Raw) -> RawContainer:
    first = bytes(memoryview(raw)[:1])
    level: RawContainer = {}
    if first == b"{":
        level = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    elif first == b"[":
        level = msgspec.json.decode(raw, type=list[msgspec.Raw])
    if len(level) > MAX_MEMBERS:
        raise DescriptionUnreadable(
            f"One of its objects has {len(level)} members; at most {MAX_MEMBERS} are allowed."
        )
    return level


def _inside(level: RawContainer, name: str, reference: str) -> msgspec.Raw:
    try:
        return level[int(name)] if isinstance(level, list) else level[name]
    except (KeyError, IndexError, ValueError):
        raise UnresolvableReference(reference) from None


def _entry(path: str, method: str, raw: msgspec.Raw) -> OperationSummary | None:
    try:
        head = msgspec.json.decode(raw, type=_Head)
    except msgspec.ValidationError:
        return None
    tags = head.tags if isinstance(head.tags, list) else []
    lines = _text(head.description).strip().splitlines()
    return OperationSummary(
        path=path,
        method=method.upper(),
        summary=_text(head.summary) or (lines[0][:200] if lines else ""),
        tags=tuple(_text(tag) for tag in tags),
        operation_id=_text(head.operation_id),
    )


def _text(value: Any) -> str:
    """Return a text; descriptions often hold a number in its place: `version: 1.0`."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else ""
