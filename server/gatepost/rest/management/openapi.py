"""The part of the OpenAPI document that describes the routes of administrators."""

from collections.abc import Callable, Mapping
from typing import Any

from gatepost.rest.responses import UNREACHABLE
from gatepost.upstreams.fields import API_KEY, HEADER_NAME
from gatepost.upstreams.registration_changes import (
    CAPABILITY,
    MAX_CAPABILITIES,
    MAX_CLIENT_ID,
    MAX_WORD,
)
from gatepost.upstreams.upstream_server import MAX_DESCRIPTION, MAX_HEADERS, MAX_NAME, MAX_URL

JSON = "application/json"
REFUSAL_STATUSES = (400, 401, 403, 404, 405, 408, 409, 413, 415, 429, 500, 503)
"""The statuses of refusals of these routes; a refresh also has 502."""

TEXT = {"type": "string"}
TIMESTAMP = {"type": ["string", "null"], "description": "RFC 3339, in UTC"}
STATUS = {"enum": ["active", "disabled"]}
NAME = {"type": "string", "minLength": 1, "maxLength": MAX_NAME}
DESCRIPTION = {"type": ["string", "null"], "maxLength": MAX_DESCRIPTION}

SERVER_FIELDS: Mapping[str, Any] = {
    "name": {**NAME, "description": "Unique; begins the names of the tools, so use snake_case"},
    "url": {"type": "string", "maxLength": MAX_URL, "format": "uri", "pattern": "^https?://"},
    "description": DESCRIPTION,
    "transport_type": {"const": "http"},
    "api_key": {
        "type": ["string", "null"],
        "pattern": f"^{API_KEY.pattern}$",
        "description": "Sent as `Authorization: Bearer`, stored encrypted, never returned",
    },
    "headers": {
        "type": ["object", "null"],
        "maxProperties": MAX_HEADERS,
        "propertyNames": {"pattern": f"^{HEADER_NAME.pattern}$"},
        "additionalProperties": TEXT,
        "description": "Sent with every request, stored encrypted, never returned",
    },
    "status": STATUS,
}
AGENT_FIELDS: Mapping[str, Any] = {
    "name": NAME,
    "description": DESCRIPTION,
    "icon": {"type": ["string", "null"], "maxLength": MAX_WORD},
    "category": {"type": ["string", "null"], "maxLength": MAX_WORD},
    "client_id": {
        "type": ["string", "null"],
        "maxLength": MAX_CLIENT_ID,
        "description": "The OAuth client id whose callers see only these capabilities",
    },
    "mode": {"enum": ["list", "search"]},
    "capabilities": {
        "type": "array",
        "maxItems": MAX_CAPABILITIES,
        "items": {
            "type": "object",
            "required": ["ref"],
            "properties": {"ref": {"type": "string", "pattern": f"^{CAPABILITY.pattern}$"}},
        },
    },
}


def _input(fields: Mapping[str, Any], required: list[str]) -> dict[str, Any]:
    schema = {"type": "object", "properties": dict(fields), "additionalProperties": False}
    return {**schema, "required": required} if required else schema


def _output(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": dict(properties)}


SERVER = _output(
    {
        "id": {"type": "string", "format": "uuid"},
        **dict.fromkeys(("name", "description", "url", "transport_type"), TEXT),
        "status": STATUS,
        "api_key_set": {"type": "boolean"},
        "header_names": {"type": "array", "items": TEXT},
        "source": {"enum": ["configuration", "api"]},
        **dict.fromkeys(
            ("tools_cached_at", "failing_since", "created_at", "updated_at"), TIMESTAMP
        ),
        "failure": {"type": ["string", "null"]},
    }
)
TOOL = _output(
    {
        **dict.fromkeys(("name", "full_name", "description"), TEXT),
        "input_schema": {"type": "object"},
    }
)
WITH_TOOLS = _output(
    {
        **SERVER["properties"],
        "cached_tools": {"type": "array", "items": {"$ref": "#/components/schemas/CachedTool"}},
    }
)
AGENT = _output(
    {
        "id": {"type": "string", "format": "uuid"},
        **dict.fromkeys(("name", "description", "icon", "category"), TEXT),
        "client_id": {"type": ["string", "null"]},
        "mode": AGENT_FIELDS["mode"],
        "capabilities": {"type": "array", "items": _output({"ref": TEXT})},
        "source": {"enum": ["configuration", "api"]},
        **dict.fromkeys(("created_at", "updated_at"), TIMESTAMP),
    }
)
OFFERED_CAPABILITY = _output(dict.fromkeys(("id", "name", "description", "icon", "category"), TEXT))
SCHEMAS: Mapping[str, Any] = {
    "McpServer": SERVER,
    "McpServerWithTools": WITH_TOOLS,
    "CachedTool": TOOL,
    "NewMcpServer": _input(SERVER_FIELDS, ["name", "url"]),
    "McpServerChanges": _input(SERVER_FIELDS, []),
    "Agent": AGENT,
    "NewAgent": _input(AGENT_FIELDS, ["name"]),
    "AgentChanges": _input(AGENT_FIELDS, []),
    "Capability": OFFERED_CAPABILITY,
}

Refusals = Callable[[tuple[int, ...]], dict[str, Any]]


class ManagementPaths:
    """Builds the path items; *refusals* describes refusals, all routes have the *parameters*."""

    def __init__(self, refusals: Refusals, parameters: list[dict[str, Any]]) -> None:
        self._refusals, self._parameters = refusals, parameters

    def paths(self, base: str, shared: dict[str, Any]) -> dict[str, Any]:
        """Return the path items of all routes; *shared* stands in each of them."""
        servers, agents = f"{base}/v1/mcp-servers", f"{base}/v1/agents"
        listing = {"get": self._list("listCapabilities", "List what agents can have", "Capability")}
        items = {
            servers: self._all("McpServer", "MCP server", "McpServerWithTools"),
            f"{servers}/{{id}}": self._item("McpServer", "MCP server", "McpServerWithTools"),
            f"{servers}/{{id}}/refresh": {"post": self._refresh()},
            agents: self._all("Agent", "agent", "Agent"),
            f"{agents}/{{id}}": self._item("Agent", "agent", "Agent"),
            f"{base}/v1/capabilities": listing,
        }
        return {path: {**shared, **item} for path, item in items.items()}

    def _all(self, kind: str, noun: str, answer: str) -> dict[str, Any]:
        return {
            "get": self._list(f"list{kind}s", f"List all {noun}s", kind),
            "post": self._operation(
                f"add{kind}", f"Add an {noun}", {"201": _answer(answer)}, body=f"New{kind}"
            ),
        }

    def _item(self, kind: str, noun: str, answer: str) -> dict[str, Any]:
        responses = {"200": _answer(answer)}
        return {
            "get": self._operation(f"get{kind}", f"Read an {noun}", responses, has_id=True),
            "patch": self._operation(
                f"change{kind}", f"Change an {noun}", responses, body=f"{kind}Changes", has_id=True
            ),
            "delete": self._operation(
                f"remove{kind}", f"Remove an {noun}", {"204": _GONE}, has_id=True
            ),
        }

    def _list(self, name: str, summary: str, kind: str) -> dict[str, Any]:
        items = {"type": "array", "items": {"$ref": f"#/components/schemas/{kind}"}}
        schema = _output({"data": items})
        answer = {"description": summary, "content": {JSON: {"schema": schema}}}
        return self._operation(name, summary, {"200": answer})

    def _refresh(self) -> dict[str, Any]:
        summary = "Fetch the tools of an MCP server now"
        operation = self._operation(
            "refreshMcpServer", summary, {"200": _answer("McpServerWithTools")}, has_id=True
        )
        operation["responses"] |= self._refusals((UNREACHABLE,))
        return operation

    def _operation(
        self,
        name: str,
        summary: str,
        answers: Mapping[str, Any],
        *,
        body: str = "",
        has_id: bool = False,
    ) -> dict[str, Any]:
        operation: dict[str, Any] = {
            "operationId": name,
            "summary": summary,
            "parameters": [*([_ID] if has_id else []), *self._parameters],
            "responses": {**answers, **self._refusals(REFUSAL_STATUSES)},
        }
        if body:
            schema = {"$ref": f"#/components/schemas/{body}"}
            operation["requestBody"] = {"required": True, "content": {JSON: {"schema": schema}}}
        return operation


def _answer(kind: str) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{kind}"}
    return {"description": "How it is now", "content": {JSON: {"schema": schema}}}


_GONE = {"description": "It is removed"}
_ID = {
    "in": "path",
    "name": "id",
    "description": "Its id",
    "required": True,
    "schema": {"type": "string", "pattern": "^[0-9a-f-]{36}$"},
}
