"""Structs that Python's collector does not see can hold no ring."""

import importlib
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from tests.architecture.source import SOURCE_ROOTS, source_files

UNTRACKED_TYPES = (str, bytes, int, float, bool, types.NoneType, msgspec.Raw, msgspec.UnsetType)
CONTAINERS = (tuple, frozenset, dict, Mapping)


def unseen() -> Iterator[type[msgspec.Struct]]:
    """Yield every struct that is declared with `gc=False`."""
    for path in source_files():
        if "gc=False" not in path.read_text(encoding="utf-8"):
            continue
        root = next(root for root in SOURCE_ROOTS.values() if path.is_relative_to(root))
        name = ".".join(path.relative_to(root).with_suffix("").parts)
        for value in vars(importlib.import_module(name)).values():
            if is_unseen(value) and value.__module__ == name:
                yield value


def is_unseen(kind: Any) -> bool:
    """Return whether the collector does not look into objects of this type."""
    struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    return struct and not kind.__struct_config__.gc


def holds_no_ring(kind: Any) -> bool:
    """Return whether values of this type lead to plain values only, however deep."""
    origin = typing.get_origin(kind)
    if origin is typing.Literal or kind is Ellipsis or kind in UNTRACKED_TYPES or is_unseen(kind):
        return True
    if origin in (typing.Union, types.UnionType) or origin in CONTAINERS:
        return all(map(holds_no_ring, typing.get_args(kind)))
    return False


def test_structs_without_gc_cannot_be_part_of_a_reference_cycle() -> None:
    """One reference to a client, an exception or a function could keep a call alive forever."""
    classes = [*unseen()]
    rings = [
        f"{class_.__module__}.{class_.__name__}.{name}"
        for class_ in classes
        for name, kind in typing.get_type_hints(class_).items()
        if not holds_no_ring(kind)
    ]

    assert len(classes) > 10
    assert rings == []
