"""JSON Schema 2020-12 → draft-07, which is what clients of the REST protocol read."""

from collections.abc import Mapping
from typing import Any

DRAFT_07 = "http://json-schema.org/draft-07/schema#"

ONE = {
    "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then",
    "unevaluatedItems", "unevaluatedProperties",
}  # fmt: skip
"""Keywords whose value is a schema."""

SEVERAL = {"allOf", "anyOf", "oneOf", "prefixItems"}
"""Keywords whose value is a list of schemas."""

NAMED = {"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"}
"""Keywords whose value has schemas by name."""

IN_PLACE = {
    "$dynamicRef", "$ref", "allOf", "anyOf", "dependencies", "dependentSchemas", "else", "if",
    "not", "oneOf", "then",
}  # fmt: skip
"""Keywords that judge the same value again, so that what they evaluate counts as evaluated."""

GONE = {
    "$anchor", "$dynamicAnchor", "$dynamicRef", "$ref", "$schema", "$vocabulary",
    "additionalItems", "contentSchema", "dependencies", "dependentRequired", "dependentSchemas",
    "maxContains", "minContains", "unevaluatedItems", "unevaluatedProperties",
}  # fmt: skip
"""Keywords that draft-07 lacks or reads differently; what can be said in its words is."""

Schema = Mapping[str, Any]


def as_draft_07(schema: Schema) -> Schema:
    """
    The same schema in the words of draft-07.

    It accepts the same values, but for `minContains`, `maxContains`, and `unevaluatedProperties`
    or `unevaluatedItems` beside keywords that evaluate in place: draft-07 has no words for them,
    so it accepts more, and the tool's own check decides. A schema that says it is draft-07 stays
    as it is.
    """
    if str(schema.get("$schema", "")).rstrip("#") == DRAFT_07.rstrip("#"):
        return schema
    converted: Schema = _convert(schema, schema)
    return converted


def _convert(node: Any, root: Schema) -> Any:
    """*node* in draft-07; *root* is the schema that references in it begin at."""
    if not isinstance(node, Mapping):
        return node
    if not str(node.get("$id", "#")).startswith("#"):
        root = node
    out: dict[str, Any] = {}
    if "$schema" in node:
        out["$schema"] = DRAFT_07
    for keyword, value in node.items():
        if keyword not in GONE and not (keyword == "contains" and node.get("minContains") == 0):
            out[_renamed(node, keyword)] = _value(keyword, value, root)
    anchor = node.get("$anchor", node.get("$dynamicAnchor"))
    if anchor is not None:
        # Draft-07 names a place by the fragment of its `$id` (section 8.2.3).
        out.setdefault("$id", f"#{anchor}")
    if dependencies := _dependencies(node, root):
        out["dependencies"] = dependencies
    _add_unevaluated(node, root, out)
    return _with_references(node, root, out)


def _value(keyword: str, value: Any, root: Schema) -> Any:
    if keyword in ONE:
        return _convert(value, root)
    if keyword in SEVERAL and isinstance(value, list | tuple):
        return [_convert(item, root) for item in value]
    if keyword in NAMED and isinstance(value, Mapping):
        return {name: _convert(item, root) for name, item in value.items()}
    return value


def _renamed(node: Schema, keyword: str) -> str:
    """What draft-07 calls a keyword of *node*."""
    if keyword == "$defs" and "definitions" not in node:
        return "definitions"
    if keyword == "items" and "prefixItems" in node:
        return "additionalItems"
    return {"prefixItems": "items", "dependentSchemas": "dependencies"}.get(keyword, keyword)


def _dependencies(node: Schema, root: Schema) -> dict[str, Any]:
    """The three keywords that are one in draft-07."""
    demands: dict[str, list[Any]] = {}
    for name, value in node.get("dependencies", {}).items():
        # No keyword of 2020-12, but validators still heed it.
        demands.setdefault(name, []).append(
            _convert(value, root) if isinstance(value, Mapping | bool) else value
        )
    for name, names in node.get("dependentRequired", {}).items():
        demands.setdefault(name, []).append(names)
    for name, schema in node.get("dependentSchemas", {}).items():
        demands.setdefault(name, []).append(_convert(schema, root))
    return {
        name: found[0] if len(found) == 1 else {"allOf": [_as_schema(one) for one in found]}
        for name, found in demands.items()
    }


def _as_schema(demand: Any) -> Any:
    return {"required": demand} if isinstance(demand, list | tuple) else demand


def _add_unevaluated(node: Schema, root: Schema, out: dict[str, Any]) -> None:
    """Where nothing else evaluates the value, what is unevaluated is what is additional."""
    if not IN_PLACE.isdisjoint(node):
        return
    if "unevaluatedProperties" in node and "additionalProperties" not in node:
        out["additionalProperties"] = _convert(node["unevaluatedProperties"], root)
    if "unevaluatedItems" in node and "items" not in node and "contains" not in node:
        name = "additionalItems" if "prefixItems" in node else "items"
        out[name] = _convert(node["unevaluatedItems"], root)


def _with_references(node: Schema, root: Schema, out: dict[str, Any]) -> dict[str, Any]:
    targets = [node[keyword] for keyword in ("$ref", "$dynamicRef") if keyword in node]
    references = [{"$ref": _translated(root, str(target))} for target in targets]
    if not references:
        return out
    if not out and len(references) == 1:
        return references[0]
    # Beside `$ref`, draft-07 reads nothing (section 8.3). At the end, so that no pointer into the
    # others goes wrong.
    out["allOf"] = [*out.get("allOf", ()), *references]
    return out


def _translated(root: Schema, target: str) -> str:
    """A reference, its pointer spelt as the converted schema is."""
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
    """What a pointer's next part leads to, and whether that is a schema or holds some."""
    if isinstance(node, Mapping):
        found = node.get(name)
    elif isinstance(node, list | tuple) and name.isdigit() and int(name) < len(node):
        found = node[int(name)]
    else:
        found = None
    if kind == "schema":
        holds = name in SEVERAL or name in NAMED
        return found, "schemas" if holds else "schema" if name in ONE else "value"
    return found if isinstance(found, Mapping) else None, "schema" if kind == "schemas" else "value"
