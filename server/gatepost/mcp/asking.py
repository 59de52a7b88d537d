"""Questions to the client, as each revision writes them; the newest one's form is ours."""

from collections.abc import Mapping
from typing import Any

from gatepost.mcp.era import MODERN
from gatepost.tools.client import FORMS, InputRequest, MissingCapability
from gatepost.tools.sampling import blocks

WITH_URLS = "2025-11-25"
"""Pages to visit, defaults of every kind, titled choices and tools of samplings came with it."""
WITHOUT_ELICITATION = "2025-03-26"

Shown = dict[str, Any]

# What 2025-06-18 knows about each type of field (its PrimitiveSchemaDefinition).
OLD_FIELDS: Mapping[str, set[str]] = {
    "string": {
        *("type", "title", "description", "minLength", "maxLength", "format"),
        *("enum", "enumNames"),
    },
    "number": {"type", "title", "description", "minimum", "maximum"},
    "integer": {"type", "title", "description", "minimum", "maximum"},
    "boolean": {"type", "title", "description", "default"},
}


def projected(request: InputRequest, revision: str, *, elicitation_id: str = "") -> Shown:
    """
    The parameters of *request* in the words of *revision* (E-01 to E-05, SA-01).

    *elicitation_id* goes with a page to visit in 2025-11-25. Raises MissingCapability for what the
    revision cannot say, as if its client could not do it: it cannot.
    """
    params = dict(request.params)
    if request.method == "elicitation/create":
        return _elicitation(params, revision, elicitation_id)
    if request.method == "sampling/createMessage":
        return _sampling(params, revision)
    return params


def _elicitation(params: Shown, revision: str, elicitation_id: str) -> Shown:
    if revision == WITHOUT_ELICITATION:
        raise MissingCapability({"elicitation": {}})
    if params.get("mode") == "url":
        if revision == MODERN:
            return params
        if revision != WITH_URLS:
            raise MissingCapability({"elicitation": {"url": {}}})
        return {**params, "elicitationId": elicitation_id}
    if revision in (MODERN, WITH_URLS):
        return params
    return {
        "message": params["message"],
        "requestedSchema": _old_form(params["requestedSchema"]),
    }


def _old_form(schema: Mapping[str, Any]) -> Shown:
    required = schema.get("required", ())
    fields = {}
    for name, field in schema["properties"].items():
        if field["type"] in OLD_FIELDS:
            fields[name] = _old_field(field)
        elif name in required:
            # Several choices at once cannot be asked for; left out, the answer would never fit.
            raise MissingCapability({"elicitation": FORMS})
    if not fields:
        raise MissingCapability({"elicitation": FORMS})
    shown: Shown = {"type": "object", "properties": fields}
    if required:
        shown["required"] = list(required)
    return shown


def _old_field(field: Mapping[str, Any]) -> Shown:
    shown = dict(field)
    if titled := shown.get("oneOf"):
        shown["enum"] = [choice["const"] for choice in titled]
        shown["enumNames"] = [choice["title"] for choice in titled]
    known = OLD_FIELDS[field["type"]]
    return {word: value for word, value in shown.items() if word in known}


def _sampling(params: Shown, revision: str) -> Shown:
    if revision in (MODERN, WITH_URLS):
        return params
    if params.get("tools"):
        raise MissingCapability({"sampling": {"tools": {}}})
    params["messages"] = [
        # One block a message, before there were lists of them.
        {**message, "content": block}
        for message in params["messages"]
        for block in blocks(message["content"])
    ]
    return params
