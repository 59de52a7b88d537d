"""Read `x-mcp-header` in a tool's schema: arguments that a client repeats as headers."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from gatepost.tools.schemas.secret import KEYWORD as SECRET

KEYWORD = "x-mcp-header"
TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+", re.ASCII)  # RFC 9110 section 5.6.2
TYPES: tuple[Any, ...] = ("string", "integer", "boolean")


class Routed(msgspec.Struct, frozen=True):
    """An argument that the client repeats as ``Mcp-Param-<header>`` (``x-mcp-header``)."""

    path: tuple[str, ...]
    """The property names that lead to it from the root of the arguments."""
    header: str
    """The header's last part, as declared."""
    type: Literal["string", "integer", "boolean"]


def routed_arguments(schema: Mapping[str, Any]) -> tuple[Routed, ...]:
    """
    Return the arguments that a schema declares as headers; raises ValueError if one is invalid.

    Clients drop a tool with an invalid declaration (2026-07-28, x-mcp-header), so it is refused
    here, where the author sees it. A header must be an RFC 9110 token and unique, ignoring case.
    Its argument must be a string, integer or boolean that the root reaches only through
    ``properties``.
    """
    routed = tuple(_reached(schema, ()))
    names = [item.header.lower() for item in routed]
    if len(set(names)) != len(names):
        raise ValueError(f"{KEYWORD}: the same header is declared twice")
    if _declarations(schema) != len(routed):
        raise ValueError(
            f"{KEYWORD}: only properties reached through `properties` alone may have it"
        )
    return routed


def _reached(schema: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[Routed]:
    for name, inner in schema.get("properties", {}).items():
        if not isinstance(inner, Mapping):
            continue
        argument_path = (*path, name)
        if KEYWORD in inner:
            header, kind = inner[KEYWORD], inner.get("type")
            if not isinstance(header, str) or not TOKEN.fullmatch(header):
                raise ValueError(f"{KEYWORD} of {'.'.join(argument_path)} is not a header name")
            if kind not in TYPES:
                raise ValueError(f"{KEYWORD} of {'.'.join(argument_path)}: only {', '.join(TYPES)}")
            if SECRET in inner:
                raise ValueError(
                    f"{KEYWORD} of {'.'.join(argument_path)}: proxies log headers; no secrets"
                )
            yield Routed(argument_path, header, kind)  # type: ignore[arg-type]  # just checked
        yield from _reached(inner, argument_path)


def _declarations(node: Any) -> int:
    if isinstance(node, Mapping):
        declares = KEYWORD in node and not isinstance(node[KEYWORD], Mapping)
        return declares + sum(_declarations(value) for value in node.values())
    if isinstance(node, list):
        return sum(_declarations(item) for item in node)
    return 0
