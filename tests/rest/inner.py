"""The bridge in this process, driven as ASGI, with any caller one likes before it."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from gatepost.rest.routes import RestLimits, RestRoutes
from gatepost.tools.registry import Registry
from gatepost.tools.runner import Runner
from gatepost_authz.caller import TenantContext
from gatepost_authz.challenge import Challenge
from gatepost_authz.config import Beside, Resource
from gatepost_authz.middleware import CALLER
from tests.support.endpoint import URL, Response


class Inner:
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
