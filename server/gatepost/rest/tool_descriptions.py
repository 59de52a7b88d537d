"""Describe tools as the REST protocol does: their schemas in draft 7."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from gatepost.rest.responses import RestRefusal
from gatepost.tools.calls.registry import Registry
from gatepost.tools.offers.offer import Tool
from gatepost.tools.offers.offer_set import OfferSet
from gatepost.tools.offers.tenant_offers import capability_of
from gatepost_authz.caller import TenantContext

DRAFT_07 = "http://json-schema.org/draft-07/schema#"

SCHEMA_KEYWORDS = {
    "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then",
    "unevaluatedItems", "unevaluatedProperties",
}  # fmt: skip
"""Keywords whose value is a schema."""

SCHEMA_LIST_KEYWORDS = {"allOf", "anyOf", "oneOf", "prefixItems"}
"""Keywords whose value is a list of schemas."""

SCHEMA_MAP_KEYWORDS = {
    "$defs",
    "definitions",
    "dependentSchemas",
    "patternProperties",
    "properties",
}
"""Keywords whose value has schemas by name."""

IN_PLACE = {
    "$dynamicRef", "$ref", "allOf", "anyOf", "dependencies", "dependentSchemas", "else", "if",
    "not", "oneOf", "then",
}  # fmt: skip
"""Keywords that apply to the same value, so that what they evaluate counts as evaluated."""

NOT_IN_DRAFT_07 = {
    "$anchor", "$dynamicAnchor", "$dynamicRef", "$ref", "$schema", "$vocabulary",
    "additionalItems", "contentSchema", "dependencies", "dependentRequired", "dependentSchemas",
    "maxContains", "minContains", "unevaluatedItems", "unevaluatedProperties",
}  # fmt: skip
"""Keywords that draft-07 lacks or reads differently; they are converted if possible."""

Schema = Mapping[str, Any]


def as_draft_07(schema: Schema) -> Schema:
    """
    Return the same schema in draft-07.

    It accepts the same values, except for `minContains`, `maxContains`, and `unevaluatedProperties`
    or `unevaluatedItems` beside keywords that evaluate in place. Draft-07 cannot express these, so
    the result accepts more, and the tool's own check decides. A draft-07 schema is not changed.
    """
    if str(schema.get("$schema", "")).rstrip("#") == DRAFT_07.rstrip("#"):
        return schema
    converted: Schema = _convert(schema, schema)
    return converted


def _convert(node: Any, root: Schema) -> Any:
    """Convert *node* to draft-07; references in it are relative to *root*."""
    if not isinstance(node, Mapping):
        return node
    if not str(node.get("$id", "#")).startswith("#"):
        root = node
    converted: dict[str, Any] = {}
    if "$schema" in node:
        converted["$schema"] = DRAFT_07
    for keyword, value in node.items():
        if keyword not in NOT_IN_DRAFT_07 and not (
            keyword == "contains" and node.get("minContains") == 0
        ):
            converted[_renamed(node, keyword)] = _value(keyword, value, root)
    anchor = node.get("$anchor", node.get("$dynamicAnchor"))
    if anchor is not None:
        # Draft-07 names a place by the fragment of its `$id` (section 8.2.3).
        converted.setdefault("$id", f"#{anchor}")
    if dependencies := _dependencies(node, root):
        converted["dependencies"] = dependencies
    _add_unevaluated(node, root, converted)
    return _with_references(node, root, converted)


def _value(keyword: str, value: Any, root: Schema) -> Any:
    if keyword in SCHEMA_KEYWORDS:
        return _convert(value, root)
    if keyword in SCHEMA_LIST_KEYWORDS and isinstance(value, list | tuple):
        return [_convert(item, root) for item in value]
    if keyword in SCHEMA_MAP_KEYWORDS and isinstance(value, Mapping):
        return {name: _convert(item, root) for name, item in value.items()}
    return value


def _renamed(node: Schema, keyword: str) -> str:
    """Return the name of a keyword of *node* in draft-07."""
    if keyword == "$defs" and "definitions" not in node:
        return "definitions"
    if keyword == "items" and "prefixItems" in node:
        return "additionalItems"
    return {"prefixItems": "items", "dependentSchemas": "dependencies"}.get(keyword, keyword)


def _dependencies(node: Schema, root: Schema) -> dict[str, Any]:
    """Merge the three keywords that are one in draft-07."""
    dependencies: dict[str, list[Any]] = {}
    for name, value in node.get("dependencies", {}).items():
        # Not a keyword of 2020-12, but validators still support it.
        dependencies.setdefault(name, []).append(
            _convert(value, root) if isinstance(value, Mapping | bool) else value
        )
    for name, names in node.get("dependentRequired", {}).items():
        dependencies.setdefault(name, []).append(names)
    for name, schema in node.get("dependentSchemas", {}).items():
        dependencies.setdefault(name, []).append(_convert(schema, root))
    return {
        name: schemas[0]
        if len(schemas) == 1
        else {"allOf": [_as_schema(schema) for schema in schemas]}
        for name, schemas in dependencies.items()
    }


def _as_schema(dependency: Any) -> Any:
    return {"required": dependency} if isinstance(dependency, list | tuple) else dependency


def _add_unevaluated(node: Schema, root: Schema, converted: dict[str, Any]) -> None:
    """Convert unevaluated to additional members, if no other keyword evaluates the value."""
    if not IN_PLACE.isdisjoint(node):
        return
    if "unevaluatedProperties" in node and "additionalProperties" not in node:
        converted["additionalProperties"] = _convert(node["unevaluatedProperties"], root)
    if "unevaluatedItems" in node and "items" not in node and "contains" not in node:
        name = "additionalItems" if "prefixItems" in node else "items"
        converted[name] = _convert(node["unevaluatedItems"], root)


def _with_references(node: Schema, root: Schema, converted: dict[str, Any]) -> dict[str, Any]:
    targets = [node[keyword] for keyword in ("$ref", "$dynamicRef") if keyword in node]
    references = [{"$ref": _translated(root, str(target))} for target in targets]
    if not references:
        return converted
    if not converted and len(references) == 1:
        return references[0]
    # Draft-07 ignores keywords beside `$ref` (section 8.3). Appended at the end, so that pointers
    # to the other members stay valid.
    converted["allOf"] = [*converted.get("allOf", ()), *references]
    return converted


def _translated(root: Schema, target: str) -> str:
    """Return a reference whose pointer has the names of the converted schema."""
    address, hash_sign, fragment = target.partition("#")
    if not fragment.startswith("/") or address not in ("", root.get("$id")):
        return target
    parts: list[str] = []
    node: Any = root
    kind = "schema"
    for part in fragment[1:].split("/"):
        name = part.replace("%24", "$").replace("~1", "/").replace("~0", "~")
        parts.append(_renamed(node, name) if kind == "schema" and node else part)
        node, kind = _step(node, kind, name)
    return f"{address}{hash_sign}/{'/'.join(parts)}"


def _step(node: Any, kind: str, name: str) -> tuple[Any, str]:
    """Return the target of a pointer's next part, and whether it is a schema or contains some."""
    if isinstance(node, Mapping):
        target = node.get(name)
    elif isinstance(node, list | tuple) and name.isdigit() and int(name) < len(node):
        target = node[int(name)]
    else:
        target = None
    if kind == "schema":
        has_schemas = name in SCHEMA_LIST_KEYWORDS or name in SCHEMA_MAP_KEYWORDS
        return (
            target,
            "schemas" if has_schemas else "schema" if name in SCHEMA_KEYWORDS else "value",
        )
    return target if isinstance(
        target, Mapping
    ) else None, "schema" if kind == "schemas" else "value"


MAX_TOOLS = 100
"""Maximum number of tools that this protocol lists (O10); MCP has pages instead."""

REMEMBERED_LISTS = 16
"""Lists of one permission set: a sign-in that is too old or too weak makes them shorter."""

_encode = msgspec.json.encode


class Descriptors:
    """
    The lists of a registry, each enabled tool described once and each list encoded once.

    *may* returns whether a caller's token suffices for a tool. A list has only such tools, because
    this protocol cannot ask for another token.
    """

    def __init__(self, registry: Registry, may: Callable[[TenantContext, Tool], bool]) -> None:
        self._registry = registry
        self._may = may
        self._described: dict[str, bytes] = {}
        # The same names may be other tools of another tenant.
        self._lists: WeakKeyDictionary[OfferSet, dict[tuple[str, ...], bytes]] = WeakKeyDictionary()

    def of(self, caller: TenantContext) -> bytes:
        """Return the JSON array of tools that the caller may call, by name; raises RestRefusal."""
        visible = self._registry.visible(caller)
        tools = [tool for tool in visible.tools if self._may(caller, tool)]
        names = tuple(tool.name for tool in tools)
        lists = self._lists.setdefault(visible, {})
        encoded = lists.get(names)
        if encoded is None:
            if len(tools) > MAX_TOOLS:
                raise too_many(tools)
            encoded = b"[" + b",".join(self._encoded(tool) for tool in tools) + b"]"
            if len(lists) >= REMEMBERED_LISTS:
                lists.pop(next(iter(lists)))
            lists[names] = encoded
        return encoded

    def _encoded(self, tool: Tool) -> bytes:
        if self._registry.tools.get(tool.name) is not tool:
            return _encode(described(tool))
        encoded = self._described.get(tool.name)
        if encoded is None:
            encoded = self._described[tool.name] = _encode(described(tool))
        return encoded


def described(tool: Tool) -> Mapping[str, Any]:
    """Return a tool descriptor with the protocol's four members."""
    descriptor: dict[str, Any] = {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": as_draft_07(tool.input_schema),
    }
    # An answer that is not an object is wrapped in one, which its schema does not describe.
    if tool.output_schema is not None and tool.output_schema.get("type") == "object":
        descriptor["outputSchema"] = as_draft_07(tool.output_schema)
    return descriptor


def too_many(tools: Sequence[Tool]) -> RestRefusal:
    """Return the refusal of a list that is so long that clients would cut it."""
    counted = Counter(capability_of(tool) for tool in tools if tool.pack or tool.origin)
    listing = ", ".join(f"{pack} ({count})" for pack, count in sorted(counted.items()))
    return RestRefusal(
        409,
        "too_many_tools",
        f"This token may call {len(tools)} tools, and this protocol lists {MAX_TOOLS} at most. "
        "Use a token with fewer scopes, enable fewer packs on the server (`tools.packs`, "
        f"`tools.load`), or list the tools over MCP. They are: {listing or 'tools of no pack'}.",
    )
