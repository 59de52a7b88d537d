"""Build requests to an upstream: the body, and over HTTP the headers; pure."""

import base64
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from gatepost.mcp.request import CAPABILITIES, IDEMPOTENCY_KEY, LOG_LEVEL, PREFIX, VERSION
from gatepost.mcp.revisions import MODERN
from gatepost.outbound.http_client import AGENT
from gatepost.upstreams.connection import Era, RequestOptions

CLIENT_INFO = PREFIX + "clientInfo"
IMPLEMENTATION = {"name": "gatepost", "version": AGENT.partition("/")[2]}
"""The name that Gatepost gives itself; it says nothing about the caller."""
WITH_PROGRESS = frozenset({"tools/call", "prompts/get", "resources/read"})
"""Requests that may take long, so progress shows that the server still works on them."""
NAME_MEMBERS = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
ACCEPT = "application/json, text/event-stream"
PARAM = "mcp-param-"

_LITERAL = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?", re.ASCII)
_encode = msgspec.json.encode


class PreparedRequest(msgspec.Struct, frozen=True):
    """A request with its place in the protocol."""

    id: int
    method: str
    params: Mapping[str, Any]
    options: RequestOptions
    era: Era
    revision: str

    def body(self) -> bytes:
        """Return the JSON-RPC message."""
        params: dict[str, Any] = dict(self.params)
        if self.era == "modern":
            if self.options.input_responses is not None:
                params["inputResponses"] = self.options.input_responses
            if self.options.request_state is not None:
                params["requestState"] = self.options.request_state
        meta = self._meta(params.pop("_meta", None))
        if meta:
            params["_meta"] = meta
        return message(self.method, params, self.id)

    def headers(self) -> dict[str, str]:
        """Return the headers that describe the message to proxies between us and the server."""
        headers = common_headers(self.era, self.revision)
        if self.options.idempotency_key is not None:
            headers["idempotency-key"] = self.options.idempotency_key
        if self.era == "session":
            return headers
        headers["mcp-method"] = self.method
        name = self.params.get(NAME_MEMBERS.get(self.method, ""))
        if isinstance(name, str):
            headers["mcp-name"] = encoded_value(name)
        for header, value in self.options.header_arguments.items():
            parameter = header.lower().removeprefix(PARAM)
            headers[PARAM + parameter] = encoded_value(value)
        return headers

    def _meta(self, meta: Any) -> dict[str, Any]:
        # Only this server may set the members about a connection; the caller's own members stay.
        new_meta = {
            name: value
            for name, value in (meta.items() if isinstance(meta, dict) else ())
            if not name.startswith(PREFIX) and name not in {"progressToken", IDEMPOTENCY_KEY}
        }
        if self.options.progress_token is not None or self.method in WITH_PROGRESS:
            new_meta["progressToken"] = self.id
        if self.options.idempotency_key is not None:
            new_meta[IDEMPOTENCY_KEY] = self.options.idempotency_key
        if self.era == "modern":
            new_meta |= modern_meta(self.options.capabilities)
            if self.options.log_level is not None:
                new_meta[LOG_LEVEL] = self.options.log_level
        return new_meta


def modern_meta(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of `_meta` that each modern request has."""
    return {VERSION: MODERN, CLIENT_INFO: IMPLEMENTATION, CAPABILITIES: capabilities}


def common_headers(era: Era | None, revision: str) -> dict[str, str]:
    """Return the headers of each POST; without an era, of the handshake."""
    headers = {"accept": ACCEPT, "content-type": "application/json"}
    if era is not None and revision not in {"2025-03-26", "2024-11-05"}:
        headers["mcp-protocol-version"] = revision
    return headers


def message(method: str, params: Mapping[str, Any], identity: int | None = None) -> bytes:
    """Encode a request, or without an id a notification."""
    body: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if identity is not None:
        body["id"] = identity
    if params:
        body["params"] = params
    return _encode(body)


def response(identity: int | str, answer: Mapping[str, Any]) -> bytes:
    """Encode the response to a request of the server; *answer* has its result or error."""
    members = {name: answer[name] for name in ("result", "error") if name in answer}
    return _encode({"jsonrpc": "2.0", "id": identity, **members})


def initialize(identity: int, revision: str, capabilities: Mapping[str, Any]) -> bytes:
    """Encode the first request of a session."""
    params = {
        "protocolVersion": revision,
        "capabilities": capabilities,
        "clientInfo": IMPLEMENTATION,
    }
    return message("initialize", params, identity)


def encoded_value(text: str) -> str:
    """Return a header's value: the text, or its Base64 form where a header cannot carry it."""
    if _LITERAL.fullmatch(text) and not (text.startswith("=?base64?") and text.endswith("?=")):
        return text
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="
