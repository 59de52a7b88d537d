"""Servers of both libraries in both eras, and callers of every revision, with the gate between."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import Annotated, Any, Literal

import httpx2
import msgspec
import pytest
from mcp.server.lowlevel import NotificationOptions
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp.server.mcpserver.utilities.types import Image
from pydantic import BaseModel
from starlette.types import ASGIApp, Receive, Scope, Send

from gatepost.upstreams import plan
from tests.support.client import MODERN, message
from tests.support.issuers import AsgiServer, Idp, respond
from tests.support.measuring import eventually
from tests.support.replicas import ReplicaClient, ReplicaStream
from tests.support.server import Server, issuer_settings, running_server

REVISIONS = [MODERN, "2025-11-25", "2025-06-18", "2025-03-26"]
ASKED = REVISIONS[:-1]
"""Those that know elicitation."""
PIXEL = b"\x89PNG\r\n\x1a\n"
WITHIN_S = 30
ACCEPTED = {"action": "accept", "content": {"yes": True}}
Era = Literal["modern", "session"]


class BridgeChoice(BaseModel):
    yes: bool


def may_remove() -> Elicit[BridgeChoice]:
    return Elicit("Remove it?", BridgeChoice)


class Books(MCPServer):
    """A server of the SDK with one tool for each kind of cell, which counts what it did."""

    def __init__(self) -> None:
        super().__init__("books")
        self.did: Counter[str] = Counter()
        self.sessions: dict[int, Any] = {}
        for tool in (self.count, self.wait, self.remove, self.cover, self.fail, self.publish):
            self.add_tool(tool)
        # By default, this SDK declares no changes to sessions.
        self._lowlevel_server.create_initialization_options = partial(  # type: ignore[method-assign]
            self._lowlevel_server.create_initialization_options,
            NotificationOptions(tools_changed=True),
        )

    async def _handle_list_tools(self, ctx: Any, params: Any) -> Any:
        self.sessions[id(ctx.session)] = ctx.session
        return await super()._handle_list_tools(ctx, params)

    async def count(self, ctx: Context[Any, Any], upto: int) -> int:
        """Count with progress."""
        self.did["count"] += 1
        for number in range(upto):
            await ctx.report_progress(number + 1, upto)
        return upto

    async def wait(self) -> str:
        """Run until it is cancelled."""
        self.did["begun"] += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.did["cancelled"] += 1
            raise
        return "never"

    async def remove(self, choice: Annotated[BridgeChoice, Resolve(may_remove)]) -> str:
        """Ask first."""
        self.did["removed"] += choice.yes
        return f"removed: {choice.yes}"

    async def cover(self) -> Image:
        """A picture."""
        return Image(data=PIXEL, format="png")

    async def fail(self) -> str:
        """Fail."""
        raise ToolError("out of paper")

    async def publish(self, ctx: Context[Any, Any], name: str) -> str:
        """Offer another tool, and announce it in the manner of the era."""

        async def added() -> str:
            return name

        self.add_tool(added, name=name)
        if ctx.protocol_version == MODERN:
            await ctx.notify_tools_changed()
        else:
            for session in self.sessions.values():
                await session.send_tool_list_changed()
        return name


class BeforeDiscovery:
    """Knows nothing of 2026-07-28, like every server of the years before."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse requests of the modern era, and pass the others on."""
        if (
            scope["type"] == "http"
            and dict(scope["headers"]).get(b"mcp-protocol-version") == MODERN.encode()
        ):
            error = {"code": -32601, "message": "Method not found"}
            body = {"jsonrpc": "2.0", "id": None, "error": error}
            await respond(send, 400, json.dumps(body).encode())
            return
        await self._app(scope, receive, send)


class Answered(msgspec.Struct):
    """How a call ended, and what came before."""

    message: dict[str, Any]
    server_notifications: list[dict[str, Any]]
    asked: list[dict[str, Any]]

    @property
    def result(self) -> dict[str, Any]:
        assert "result" in self.message, self.message
        found: dict[str, Any] = self.message["result"]
        return found

    @property
    def text(self) -> str:
        return "".join(block.get("text", "") for block in self.result["content"])


class RevisionCaller:
    """A client of one revision that accepts every client request."""

    def __init__(self, http: httpx2.AsyncClient, url: str, revision: str) -> None:
        self._http, self._url, self.revision = http, url, revision
        self._ids = count(1)
        self._headers: dict[str, str] = {}
        self.answer: dict[str, Any] = ACCEPTED
        """What questions are answered with."""
        self.capabilities: dict[str, Any] = {"elicitation": {}} if revision in ASKED else {}
        if revision == MODERN:
            self.capabilities = {"elicitation": {"form": {}}}

    @property
    def is_modern(self) -> bool:
        return self.revision == MODERN

    async def open(self) -> None:
        """Open a session, where there are sessions."""
        if self.is_modern:
            return
        about = {"name": "matrix", "version": "1"}
        params = {
            "protocolVersion": self.revision,
            "capabilities": self.capabilities,
            "clientInfo": about,
        }
        answer = await self._http.post(self._url, content=message("initialize", params))
        assert answer.json()["result"]["protocolVersion"] == self.revision
        self._headers["Mcp-Session-Id"] = answer.headers["mcp-session-id"]
        if self.revision >= "2025-06-18":
            self._headers["MCP-Protocol-Version"] = self.revision
        await self.say({"jsonrpc": "2.0", "method": "notifications/initialized"})

    async def say(self, body: Mapping[str, Any]) -> None:
        """Send a notification or an answer."""
        sent = await self._http.post(self._url, content=json.dumps(body), headers=self._headers)
        assert sent.status_code == 202, sent.content

    def request(
        self, method: str, params: Mapping[str, Any], identity: int
    ) -> tuple[bytes, dict[str, str]]:
        """Body and headers of a request."""
        if not self.is_modern:
            meta = {"progressToken": f"p{identity}"}
            return message(method, {**params, "_meta": meta}, identity), self._headers
        meta = {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": self.capabilities,
            "progressToken": f"p{identity}",
        }
        body = message(method, {**params, "_meta": meta}, identity)
        return body, ReplicaClient.mirrors(method, params)

    @asynccontextmanager
    async def messages_of(
        self, method: str, params: Mapping[str, Any], identity: int
    ) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """The messages of one request; leaving the block hangs up."""
        body, headers = self.request(method, params, identity)
        async with self._http.stream("POST", self._url, content=body, headers=headers) as answer:
            yield _messages(answer)

    async def call(self, tool: str, **arguments: Any) -> Answered:
        """Call a tool to its end."""
        ended = Answered({}, [], [])
        params: dict[str, Any] = {"name": tool, "arguments": arguments}
        async with asyncio.timeout(WITHIN_S):
            while True:
                await self._round(params, ended)
                asked = ended.message.get("result", {})
                if asked.get("resultType") != "input_required":
                    return ended
                ended.asked += [one["params"] for one in asked["inputRequests"].values()]
                params["inputResponses"] = dict.fromkeys(asked["inputRequests"], self.answer)
                params["requestState"] = asked["requestState"]

    async def _round(self, params: Mapping[str, Any], ended: Answered) -> None:
        async with self.messages_of("tools/call", params, next(self._ids)) as messages:
            async for one in messages:
                if "method" not in one:
                    ended.message = one
                elif "id" in one:
                    ended.asked.append(one["params"])
                    await self.say({"jsonrpc": "2.0", "id": one["id"], "result": self.answer})
                else:
                    ended.server_notifications.append(one)

    async def cancelled(self, tool: str, begun: Callable[[], object]) -> None:
        """Call a tool, and cancel the call once it has begun, as the revision does."""
        identity = next(self._ids)

        async def reading() -> None:
            params = {"name": tool, "arguments": {}}
            async with self.messages_of("tools/call", params, identity) as messages:
                async for _ in messages:
                    pass

        task = asyncio.create_task(reading())
        await asyncio.to_thread(eventually, begun, within=WITHIN_S)
        if not self.is_modern:
            params = {"requestId": identity, "reason": "no longer needed"}
            await self.say(
                {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
            )
        task.cancel()
        await asyncio.wait({task})

    async def send(self, method: str, **params: Any) -> httpx2.Response:
        """The whole answer to one request."""
        body, headers = self.request(method, params, next(self._ids))
        return await self._http.post(self._url, content=body, headers=headers)

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of one request."""
        async with self.messages_of(method, params, next(self._ids)) as messages:
            last = [one async for one in messages][-1]
        assert "result" in last, last
        found: dict[str, Any] = last["result"]
        return found

    async def listed(self, name: str) -> None:
        """Wait until a tool is listed."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                listed = await self.ask("tools/list")
                if name in {tool["name"] for tool in listed["tools"]}:
                    return
                await asyncio.sleep(0.05)

    @asynccontextmanager
    async def told_of_changes(self) -> AsyncIterator[ReplicaStream]:
        """The stream on which the revision announces changed lists."""
        if not self.is_modern:
            headers = self._headers | {"Accept": "text/event-stream"}
            async with self._http.stream("GET", self._url, headers=headers) as answer:
                assert answer.status_code == 200
                yield ReplicaStream(answer)
            return
        wanted = {"notifications": {"toolsListChanged": True}}
        body, headers = self.request("subscriptions/listen", wanted, next(self._ids))
        async with self._http.stream("POST", self._url, content=body, headers=headers) as answer:
            stream = ReplicaStream(answer)
            await stream.until("notifications/subscriptions/acknowledged")
            yield stream


async def _messages(answer: httpx2.Response) -> AsyncIterator[dict[str, Any]]:
    if not answer.headers["content-type"].startswith("text/event-stream"):
        yield json.loads(await answer.aread())
        return
    async for line in answer.aiter_lines():
        if line.startswith("data:") and line[5:].strip():
            yield json.loads(line[5:])


@asynccontextmanager
async def calling(
    gate: Server, revision: str = MODERN, scope: str = "mcp:modern mcp:session", **claims: Any
) -> AsyncIterator[RevisionCaller]:
    """A caller of a running gate."""
    headers = {
        "Authorization": f"Bearer {gate.token(org_id='acme', scope=scope, **claims)}",
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
    }
    async with httpx2.AsyncClient(headers=headers, timeout=WITHIN_S, trust_env=False) as http:
        caller = RevisionCaller(http, gate.client.resource, revision)
        await caller.open()
        yield caller


class Bridge(msgspec.Struct):
    """The gate and the servers behind it, by their eras."""

    gate: Server
    servers: dict[Era, Books]


@pytest.fixture(scope="module")
def bridge(idp: Idp) -> Iterator[Bridge]:
    """Both eras behind one gate."""
    servers: dict[Era, Books] = {"modern": Books(), "session": Books()}
    apps = {
        "modern": servers["modern"].streamable_http_app(),
        "session": BeforeDiscovery(servers["session"].streamable_http_app()),
    }
    running = {name: AsgiServer(app, lifespan="on").start() for name, app in apps.items()}
    tables = [
        {"name": name, "tenants": ["acme"], "url": f"{one.url}/mcp"}
        for name, one in running.items()
    ]
    hosts = [one.url.split("/")[2] for one in running.values()]
    try:
        with (
            pytest.MonkeyPatch.context() as patch,
            running_server(
                idp,
                [issuer_settings(idp)],
                tenancy={"create_on_first_use": True},
                network={"allow_hosts": hosts},
                upstreams=tables,
            ) as gate,
        ):
            # So often is a list fetched because it changed; the test changes it again and again.
            patch.setattr(plan, "ANNOUNCED_S", 0.1)
            yield Bridge(gate, servers)
    finally:
        for one in running.values():
            one.stop()
