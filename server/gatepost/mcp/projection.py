"""Requests for input in the form of each protocol revision."""

from collections.abc import Mapping
from typing import Any

from gatepost.mcp.revisions import MODERN
from gatepost.tools.context.client import FORMS, InputRequest, MissingCapability
from gatepost.tools.context.sampling import blocks

URL_ELICITATION_REVISION = "2025-11-25"
"""The revision that added URL elicitation, all defaults, titled choices and sampling tools."""
REVISION_WITHOUT_ELICITATION = "2025-03-26"

ClientJson = dict[str, Any]

# The keywords that 2025-06-18 allows for each type of field (its PrimitiveSchemaDefinition).
OLD_FIELDS: Mapping[str, set[str]] = {
    "string": {
        *("type", "title", "description", "minLength", "maxLength", "format"),
        *("enum", "enumNames"),
    },
    "number": {"type", "title", "description", "minimum", "maximum"},
    "integer": {"type", "title", "description", "minimum", "maximum"},
    "boolean": {"type", "title", "description", "default"},
}


def projected(request: InputRequest, revision: str, *, elicitation_id: str = "") -> ClientJson:
    """
    Return the parameters of *request* in the form of *revision* (E-01 to E-05, SA-01).

    *elicitation_id* identifies a URL elicitation in 2025-11-25. Raises MissingCapability if the
    revision has no form for the request, because then its client cannot support it.
    """
    params = dict(request.params)
    if request.method == "elicitation/create":
        return _elicitation(params, revision, elicitation_id)
    if request.method == "sampling/createMessage":
        return _sampling(params, revision)
    return params


def _elicitation(params: ClientJson, revision: str, elicitation_id: str) -> ClientJson:
    if revision == REVISION_WITHOUT_ELICITATION:
        raise MissingCapability({"elicitation": {}})
    if params.get("mode") == "url":
        if revision == MODERN:
            return params
        if revision != URL_ELICITATION_REVISION:
            raise MissingCapability({"elicitation": {"url": {}}})
        return {**params, "elicitationId": elicitation_id}
    if revision in (MODERN, URL_ELICITATION_REVISION):
        return params
    return {
        "message": params["message"],
        "requestedSchema": _old_form(params["requestedSchema"]),
    }


def _old_form(schema: Mapping[str, Any]) -> ClientJson:
    required = schema.get("required", ())
    fields = {}
    for name, field in schema["properties"].items():
        if field["type"] in OLD_FIELDS:
            fields[name] = _old_field(field)
        elif name in required:
            # The revision has no multiple choice. Without a required field no answer is valid.
            raise MissingCapability({"elicitation": FORMS})
    if not fields:
        raise MissingCapability({"elicitation": FORMS})
    form: ClientJson = {"type": "object", "properties": fields}
    if required:
        form["required"] = list(required)
    return form


def _old_field(field: Mapping[str, Any]) -> ClientJson:
    projected_field = dict(field)
    if titled := projected_field.get("oneOf"):
        projected_field["enum"] = [choice["const"] for choice in titled]
        projected_field["enumNames"] = [choice["title"] for choice in titled]
    keywords = OLD_FIELDS[field["type"]]
    return {keyword: value for keyword, value in projected_field.items() if keyword in keywords}


def _sampling(params: ClientJson, revision: str) -> ClientJson:
    if revision in (MODERN, URL_ELICITATION_REVISION):
        return params
    if params.get("tools"):
        raise MissingCapability({"sampling": {"tools": {}}})
    params["messages"] = [
        # Older revisions allow one content block per message.
        {**message, "content": block}
        for message in params["messages"]
        for block in blocks(message["content"])
    ]
    return params
