"""Clients of the REST routes: over HTTP as Octopus describes it, and in this process."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from gatepost.rest.routes import RestLimits, RestRoutes
from gatepost.tools.registry import Registry
from gatepost.tools.runner import Runner
from gatepost_authz.caller import TenantContext
from gatepost_authz.challenge import Challenge
from gatepost_authz.config import Beside, Resource
from gatepost_authz.middleware import CALLER
from tests.support.client import Fields, RawAnswer
from tests.support.endpoint import URL, Response
from tests.support.server import Server


class Heard(msgspec.Struct):
    """One answer, which is JSON and says so, whatever it is about."""

    status: int
    json: Any
    raw: RawAnswer

    @property
    def error(self) -> tuple[int, str]:
        """Status and stable word; the message is there for the model."""
        assert isinstance(self.json["message"], str)
        assert self.json["message"]
        return self.status, self.json["error"]


class Octopus:
    """An agent of one tenant; *base* is where the routes are."""

    def __init__(self, server: Server, token: str | None = None, *, base: str = "") -> None:
        self.server = server
        self.token = server.token() if token is None else token
        self.base = base

    def health(self) -> Heard:
        return self.send("GET", "/health", token="")

    def tools(self, *fields: tuple[str, str]) -> Heard:
        return self.send("GET", f"{self.base}/tools", fields)

    def names(self) -> list[str]:
        return [tool["name"] for tool in self.tools().json]

    def call(
        self, tool: str, arguments: Mapping[str, Any] | None = None, *fields: tuple[str, str]
    ) -> Heard:
        body = json.dumps(arguments or {}).encode()
        return self.post(tool, body, *fields)

    def post(self, tool: str, body: bytes, *fields: tuple[str, str]) -> Heard:
        return self.send("POST", f"{self.base}/tool/{tool}/call", fields, body)

    def send(
        self,
        method: str,
        path: str,
        fields: Fields = (),
        body: bytes = b"",
        *,
        token: str | None = None,
    ) -> Heard:
        """Any request; every answer of this protocol is JSON (O6)."""
        token = self.token if token is None else token
        raw = self.server.client.send(method, path, fields, body, token=token or None)
        assert raw.field("content-type") == "application/json", raw
        return Heard(raw.status, json.loads(raw.body) if raw.body else None, raw)


class RestEndpoint:
    """Talks to one bridge over this runner and registry."""

    def __init__(
        self, runner: Runner, registry: Registry, *, limits: RestLimits | None = None
    ) -> None:
        self.bridge = RestRoutes(
            runner,
            registry,
            challenge=Challenge(),
            place=Beside(Resource(URL)),
            limits=limits or RestLimits(),
        )

    async def tools(self, caller: TenantContext) -> Response:
        return await self._send(caller, "GET", "/tools")

    async def call(
        self, caller: TenantContext, tool: str, arguments: Mapping[str, Any] | None = None
    ) -> Response:
        body = json.dumps(arguments or {}).encode()
        return await self._send(caller, "POST", f"/tool/{tool}/call", body, name=tool)

    async def post(self, caller: TenantContext, tool: str, body: bytes) -> Response:
        """A call with exactly these bytes."""
        return await self._send(caller, "POST", f"/tool/{tool}/call", body, name=tool)

    async def _send(
        self, caller: TenantContext, method: str, path: str, body: bytes = b"", **named: str
    ) -> Response:
        sent: list[Any] = []
        bodies = iter([body])

        async def receive() -> dict[str, Any]:
            body = next(bodies, None)
            if body is None:
                await asyncio.Event().wait()  # the client stays
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "path_params": named,
            "headers": [(b"content-type", b"application/json")],
            CALLER: caller,
        }
        app = self.bridge.list_tools if method == "GET" else self.bridge.call_tool
        await app(scope, receive, send)
        headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        assert len(headers) == len(sent[0]["headers"])
        return Response(sent[0]["status"], headers, sent[1]["body"])
