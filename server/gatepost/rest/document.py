"""The OpenAPI 3.1 document of the REST routes; public, so no tool and no tenant is named in it."""

from collections.abc import Mapping
from typing import Any

import msgspec

from gatepost.tools.function import NAME
from gatepost_authz.config import TENANT_ID, Beside, Resource

TITLE = "Gatepost REST tool protocol"

JSON = "application/json"

REFUSALS: Mapping[int, str] = {
    400: "The request cannot be read.",
    401: "No access token, or one that does not open this resource.",
    403: "More scopes are needed, or this caller is refused.",
    404: "No such tool within this caller's reach, or the tool found nothing.",
    405: "The route has another method.",
    408: "The body did not arrive in time.",
    409: "The retry key belongs to a call with other arguments, or there are too many tools.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "An argument is wrong; the message says which and what would work.",
    429: "Too many calls; try again later.",
    500: "Something unforeseen happened.",
    503: "Something that the call needs does not answer; try again later.",
    504: "The tool took too long and was stopped.",
}

LISTING = (400, 401, 403, 405, 409, 429, 503)
CALLING = tuple(REFUSALS)

CHALLENGED = {401, 403}
LATER = {429, 503}

DESCRIPTOR = {
    "type": "object",
    "required": ["name", "description", "inputSchema"],
    "properties": {
        "name": {"type": "string", "pattern": f"^{NAME.pattern}$"},
        "description": {"type": "string"},
        "inputSchema": {"type": "object", "description": "JSON Schema draft-07"},
        "outputSchema": {"type": "object", "description": "JSON Schema draft-07"},
    },
}
ERROR = {
    "type": "object",
    "required": ["error", "message"],
    "properties": {
        "error": {"type": "string", "description": "A stable word"},
        "message": {"type": "string", "description": "What a model can be told"},
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
    ("X-Octopus-Correlation-Id", "What the call is part of; a retry within it runs once.", 255),
    ("Idempotency-Key", "The same key, tool and arguments run once within a day.", 255),
)


def document(resource: Resource, version: str) -> bytes:
    """The document for one configuration, encoded."""
    base = Beside(resource).base
    paths = {
        f"{base}/tools": {**_tenant(resource), "get": _listing()},
        f"{base}/tool/{{name}}/call": {**_tenant(resource), "post": _calling()},
        "/health": {"get": _health()},
    }
    shown = {
        "openapi": "3.1.0",
        "info": {"title": TITLE, "version": version},
        "servers": [{"url": resource.origin}],
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": {"Tool": DESCRIPTOR, "Error": ERROR, "Health": HEALTH},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }
    return msgspec.json.encode(shown)


def _tenant(resource: Resource) -> dict[str, Any]:
    if not resource.templated:
        return {}
    return {"parameters": [_parameter("path", "tenant", "Whose tools", TENANT_ID.pattern)]}


def _listing() -> dict[str, Any]:
    tools = {"type": "array", "maxItems": 100, "items": _named("Tool")}
    return {
        "operationId": "listTools",
        "summary": "The tools within the caller's reach",
        "parameters": [_tenant_header()],
        "responses": {"200": _answer("The tools, by name", tools), **_refusals(LISTING)},
    }


def _calling() -> dict[str, Any]:
    result = {"type": "object", "description": "As the tool's outputSchema says"}
    return {
        "operationId": "callTool",
        "summary": "Call a tool with its bare arguments",
        "parameters": [
            _parameter("path", "name", "The tool", NAME.pattern),
            _tenant_header(),
            *(
                _parameter("header", name, text, f"[!-~]{{1,{most}}}")
                for name, text, most in CALL_HEADERS
            ),
        ],
        "requestBody": {
            "required": True,
            "content": {JSON: {"schema": {"type": "object", "description": "The arguments"}}},
        },
        "responses": {"200": _answer("The bare result", result), **_refusals(CALLING)},
    }


def _health() -> dict[str, Any]:
    return {
        "operationId": "health",
        "summary": "Whether the server runs",
        "security": [],
        "responses": {"200": _answer("It runs", _named("Health"))},
    }


def _parameter(where: str, name: str, text: str, pattern: str) -> dict[str, Any]:
    return {
        "in": where,
        "name": name,
        "description": text,
        "required": where == "path",
        "schema": {"type": "string", "pattern": f"^{pattern}$"},
    }


def _tenant_header() -> dict[str, Any]:
    text = "Checked against the access token's tenant, never believed"
    return _parameter("header", "X-Octopus-Tenant-Id", text, TENANT_ID.pattern)


def _refusals(statuses: tuple[int, ...]) -> dict[str, Any]:
    return {str(status): _refusal(status) for status in statuses}


def _refusal(status: int) -> dict[str, Any]:
    answer = _answer(REFUSALS[status], _named("Error"))
    if status in CHALLENGED:
        answer["headers"] = {"WWW-Authenticate": _header("Where and for what to get a token")}
    if status in LATER:
        answer["headers"] = {"Retry-After": _header("Seconds")}
    return answer


def _answer(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {JSON: {"schema": schema}}}


def _header(text: str) -> dict[str, Any]:
    return {"description": text, "schema": {"type": "string"}}


def _named(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}
