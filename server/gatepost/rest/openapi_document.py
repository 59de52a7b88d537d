"""The OpenAPI 3.1 document of the REST routes; it is public, so it names no tools or tenants."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import msgspec

from gatepost.rest.responses import UNREACHABLE
from gatepost.tools.offers.offer import OFFER_NAME
from gatepost_authz.config import TENANT_ID
from gatepost_authz.protected_resource import Resource, SiblingPaths

TITLE = "Gatepost REST tool protocol"

JSON = "application/json"
REFUSALS: Mapping[int, str] = {
    400: "The request cannot be read, or a field is invalid.",
    401: "There is no access token, or it is not valid for this resource.",
    403: "More scopes are needed, or this caller is refused.",
    404: "The caller can reach no such tool or entry, or the tool found nothing.",
    405: "The route has another method.",
    408: "The body did not arrive in time.",
    409: "The idempotency key belongs to another call, a name is taken, or there is too much.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "An argument is wrong; the message says which and what would work.",
    429: "Too many calls; try again later.",
    500: "An unexpected error occurred.",
    UNREACHABLE: "The MCP server cannot be reached, or did not answer within 60 seconds.",
    503: "A service that the call needs is unavailable; try again later.",
    504: "The tool took too long and was stopped.",
}

LISTING = (400, 401, 403, 405, 409, 429, 503)
CALLING = tuple(status for status in REFUSALS if status != UNREACHABLE)

CHALLENGED = {401, 403}
RETRYABLE = {429, 503}

DESCRIPTOR = {
    "type": "object",
    "required": ["name", "description", "inputSchema"],
    "properties": {
        "name": {"type": "string", "pattern": f"^{OFFER_NAME.pattern}$"},
        "description": {"type": "string"},
        "inputSchema": {"type": "object", "description": "JSON Schema draft-07"},
        "outputSchema": {"type": "object", "description": "JSON Schema draft-07"},
    },
}
ERROR = {
    "type": "object",
    "required": ["error", "message"],
    "properties": {
        "error": {"type": "string", "description": "A stable error code"},
        "message": {"type": "string", "description": "A message for the agent"},
        "field": {"type": "string", "description": "The argument at fault"},
        "retry_after": {"type": "integer", "minimum": 1, "description": "Seconds"},
        "scopes": {"type": "array", "items": {"type": "string"}},
    },
}
HEALTH = {
    "type": "object",
    "required": ["status", "version"],
    "properties": {"status": {"const": "ok"}, "version": {"type": "string"}},
}
CALL_HEADERS = (
    ("X-Octopus-Correlation-Id", "The correlation id; a retry with the same id runs once.", 255),
    ("Idempotency-Key", "The same key, tool and arguments run once within a day.", 255),
)


def document(resource: Resource, version: str, *, admin: bool = False) -> bytes:
    """Return the encoded document for one configuration, with the routes of administrators."""
    base = SiblingPaths(resource).base
    paths_of_management, schemas = _management(resource) if admin else ({}, {})
    paths = {
        f"{base}/tools": {**_tenant(resource), "get": _listing()},
        f"{base}/tool/{{name}}/call": {**_tenant(resource), "post": _calling()},
        "/health": {"get": _health()},
        **paths_of_management,
    }
    described = {
        "openapi": "3.1.0",
        "info": {"title": TITLE, "version": version},
        "servers": [{"url": resource.origin}],
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": {
                "Tool": DESCRIPTOR,
                "Error": ERROR,
                "Health": HEALTH,
                **schemas,
            },
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }
    return msgspec.json.encode(described)


def _management(resource: Resource) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the paths and the schemas of the routes of administrators."""
    # By name: a server without these routes does not load them.
    openapi = import_module("gatepost.rest.management.openapi")
    described = openapi.ManagementPaths(_refusals, [_tenant_header()])
    return described.paths(SiblingPaths(resource).base, _tenant(resource)), openapi.SCHEMAS


def _tenant(resource: Resource) -> dict[str, Any]:
    if not resource.templated:
        return {}
    return {"parameters": [_parameter("path", "tenant", "The tenant", TENANT_ID.pattern)]}


def _listing() -> dict[str, Any]:
    tools = {"type": "array", "maxItems": 100, "items": _reference("Tool")}
    return {
        "operationId": "listTools",
        "summary": "List the tools that the caller can call",
        "parameters": [_tenant_header()],
        "responses": {"200": _answer("The tools, by name", tools), **_refusals(LISTING)},
    }


def _calling() -> dict[str, Any]:
    result = {"type": "object", "description": "The result, which matches the tool's outputSchema"}
    return {
        "operationId": "callTool",
        "summary": "Call a tool with its arguments",
        "parameters": [
            _parameter("path", "name", "The tool", OFFER_NAME.pattern),
            _tenant_header(),
            *(
                _parameter("header", name, text, f"[!-~]{{1,{max_characters}}}")
                for name, text, max_characters in CALL_HEADERS
            ),
        ],
        "requestBody": {
            "required": True,
            "content": {JSON: {"schema": {"type": "object", "description": "The arguments"}}},
        },
        "responses": {"200": _answer("The result", result), **_refusals(CALLING)},
    }


def _health() -> dict[str, Any]:
    return {
        "operationId": "health",
        "summary": "Check whether the server runs",
        "security": [],
        "responses": {"200": _answer("The server runs", _reference("Health"))},
    }


def _parameter(location: str, name: str, text: str, pattern: str) -> dict[str, Any]:
    return {
        "in": location,
        "name": name,
        "description": text,
        "required": location == "path",
        "schema": {"type": "string", "pattern": f"^{pattern}$"},
    }


def _tenant_header() -> dict[str, Any]:
    text = "The tenant; it must be the access token's tenant"
    return _parameter("header", "X-Octopus-Tenant-Id", text, ".+")


def _refusals(statuses: tuple[int, ...]) -> dict[str, Any]:
    return {str(status): _refusal(status) for status in statuses}


def _refusal(status: int) -> dict[str, Any]:
    answer = _answer(REFUSALS[status], _reference("Error"))
    if status in CHALLENGED:
        answer["headers"] = {"WWW-Authenticate": _header("The challenge for another token")}
    if status in RETRYABLE:
        answer["headers"] = {"Retry-After": _header("Seconds")}
    return answer


def _answer(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {JSON: {"schema": schema}}}


def _header(text: str) -> dict[str, Any]:
    return {"description": text, "schema": {"type": "string"}}


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}
