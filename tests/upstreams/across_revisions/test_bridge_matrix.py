"""
Callers of every revision in front of upstreams of both eras: one test for each cell.

| | call | progress | cancel | elicit | image | error | list change |
| --- | --- | --- | --- | --- | --- | --- | --- |
| 2026-07-28 | yes | yes | yes | in rounds | yes | yes | `subscriptions/listen` |
| 2025-11-25, 2025-06-18 | yes | yes | yes | on the call's stream | yes | yes | the GET stream |
| 2025-03-26 | yes | yes | yes | no: not in the revision | yes | yes | the GET stream |
"""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import httpx2
import msgspec
import pytest

from tests.support.client import MODERN_REVISION, message
from tests.support.measuring import eventually
from tests.support.replicas import ReplicaClient, ReplicaStream
from tests.support.server import Server
from tests.upstreams.across_revisions.test_real_clients import PIXEL, WITHIN_S, Bridge, Era, bridge

__all__ = ["bridge"]  # a fixture
REVISIONS = [MODERN_REVISION, "2025-11-25", "2025-06-18", "2025-03-26"]
SESSION_REVISIONS = REVISIONS[:-1]
"""Those that know elicitation."""
ACCEPT_ANSWER = {"action": "accept", "content": {"yes": True}}


class Answered(msgspec.Struct):
    """How a call ended, and what came before."""

    message: dict[str, Any]
    server_notifications: list[dict[str, Any]]
    asked: list[dict[str, Any]]

    @property
    def result(self) -> dict[str, Any]:
        assert "result" in self.message, self.message
        result: dict[str, Any] = self.message["result"]
        return result

    @property
    def text(self) -> str:
        return "".join(block.get("text", "") for block in self.result["content"])


class RevisionCaller:
    """A client of one revision that accepts every client request."""

    def __init__(self, http: httpx2.AsyncClient, url: str, revision: str) -> None:
        self._http, self._url, self.revision = http, url, revision
        self._ids = count(1)
        self._headers: dict[str, str] = {}
        self.answer: dict[str, Any] = ACCEPT_ANSWER
        """What questions are answered with."""
        self.capabilities: dict[str, Any] = (
            {"elicitation": {}} if revision in SESSION_REVISIONS else {}
        )
        if revision == MODERN_REVISION:
            self.capabilities = {"elicitation": {"form": {}}}

    @property
    def is_modern(self) -> bool:
        return self.revision == MODERN_REVISION

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
        """Return the body and headers of a request."""
        if not self.is_modern:
            meta = {"progressToken": f"p{identity}"}
            return message(method, {**params, "_meta": meta}, identity), self._headers
        meta = {
            "io.modelcontextprotocol/protocolVersion": MODERN_REVISION,
            "io.modelcontextprotocol/clientCapabilities": self.capabilities,
            "progressToken": f"p{identity}",
        }
        body = message(method, {**params, "_meta": meta}, identity)
        return body, ReplicaClient.mirrors(method, params)

    @asynccontextmanager
    async def messages_of(
        self, method: str, params: Mapping[str, Any], identity: int
    ) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """Yield the messages of one request; the end of the block disconnects."""
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
                elicited = ended.message.get("result", {})
                if elicited.get("resultType") != "input_required":
                    return ended
                ended.asked += [request["params"] for request in elicited["inputRequests"].values()]
                params["inputResponses"] = dict.fromkeys(elicited["inputRequests"], self.answer)
                params["requestState"] = elicited["requestState"]

    async def _round(self, params: Mapping[str, Any], ended: Answered) -> None:
        async with self.messages_of("tools/call", params, next(self._ids)) as messages:
            async for message in messages:
                if "method" not in message:
                    ended.message = message
                elif "id" in message:
                    ended.asked.append(message["params"])
                    await self.say({"jsonrpc": "2.0", "id": message["id"], "result": self.answer})
                else:
                    ended.server_notifications.append(message)

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
        """Return the whole answer to one request."""
        body, headers = self.request(method, params, next(self._ids))
        return await self._http.post(self._url, content=body, headers=headers)

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the result of one request."""
        async with self.messages_of(method, params, next(self._ids)) as messages:
            last = [message async for message in messages][-1]
        assert "result" in last, last
        result: dict[str, Any] = last["result"]
        return result

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
        """Open the stream on which the revision announces changed lists."""
        if not self.is_modern:
            headers = self._headers | {"Accept": "text/event-stream"}
            async with self._http.stream("GET", self._url, headers=headers) as answer:
                assert answer.status_code == 200
                yield ReplicaStream(answer)
            return
        filters = {"notifications": {"toolsListChanged": True}}
        body, headers = self.request("subscriptions/listen", filters, next(self._ids))
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
async def open_caller(
    gate: Server,
    revision: str = MODERN_REVISION,
    scope: str = "mcp:modern mcp:session",
    **claims: Any,
) -> AsyncIterator[RevisionCaller]:
    """Open a caller of a running gate."""
    headers = {
        "Authorization": f"Bearer {gate.token(org_id='acme', scope=scope, **claims)}",
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
    }
    async with httpx2.AsyncClient(headers=headers, timeout=WITHIN_S, trust_env=False) as http:
        caller = RevisionCaller(http, gate.client.resource, revision)
        await caller.open()
        yield caller


every_cell = [
    pytest.mark.parametrize("era", ["modern", "session"]),
    pytest.mark.parametrize("revision", REVISIONS),
]
names = count()


def each_cell(test: object) -> object:
    """Run a test once for each caller and upstream."""
    for mark in every_cell:
        test = mark(test)
    return test


@each_cell
async def test_a_call_runs_once_in_every_revision(bridge: Bridge, revision: str, era: Era) -> None:
    """The tool runs once; revisions with structured values get one."""
    before = bridge.servers[era].did["count"]
    async with open_caller(bridge.gate, revision) as caller:
        await caller.listed(f"mcp_{era}__count")
        answered = await caller.call(f"mcp_{era}__count", upto=0)

    assert answered.text == "0"
    assert answered.result.get("isError", False) is False
    assert answered.server_notifications == []
    if revision >= "2025-06-18":
        assert answered.result["structuredContent"] == {"result": 0}
    assert bridge.servers[era].did["count"] == before + 1


@each_cell
async def test_progress_reaches_the_caller_in_every_revision(
    bridge: Bridge, revision: str, era: Era
) -> None:
    """The reports have the caller's own token."""
    async with open_caller(bridge.gate, revision) as caller:
        await caller.listed(f"mcp_{era}__count")
        answered = await caller.call(f"mcp_{era}__count", upto=3)

    progress = [notification["params"] for notification in answered.server_notifications]
    assert answered.text == "3"
    assert [notification["progress"] for notification in progress] == [1, 2, 3]
    assert {notification["total"] for notification in progress} == {3}
    (token,) = {notification["progressToken"] for notification in progress}
    assert token.startswith("p")


@each_cell
async def test_a_cancellation_reaches_the_upstream_in_every_revision(
    bridge: Bridge, revision: str, era: Era
) -> None:
    """The running call is stopped at the upstream."""
    did = bridge.servers[era].did
    begun, cancelled = did["begun"], did["cancelled"]
    async with open_caller(bridge.gate, revision) as caller:
        await caller.listed(f"mcp_{era}__wait")
        await caller.cancelled(f"mcp_{era}__wait", lambda: did["begun"] > begun)
        await asyncio.to_thread(eventually, lambda: did["cancelled"] > cancelled, within=WITHIN_S)

    assert (did["begun"], did["cancelled"]) == (begun + 1, cancelled + 1)


@each_cell
async def test_an_elicitation_reaches_the_client_in_every_revision(
    bridge: Bridge, revision: str, era: Era
) -> None:
    """The question names its server; a client that cannot be asked gets an error."""
    did = bridge.servers[era].did
    before = did["removed"]
    async with open_caller(bridge.gate, revision) as caller:
        await caller.listed(f"mcp_{era}__remove")
        answered = await caller.call(f"mcp_{era}__remove")

    if revision in SESSION_REVISIONS:
        assert [elicitation["message"] for elicitation in answered.asked] == [f"{era}: Remove it?"]
        assert answered.text == "removed: True"
        assert did["removed"] == before + 1
    else:
        assert answered.asked == []
        assert answered.result["isError"] is True
        assert "elicitation" in answered.text.lower()
        assert did["removed"] == before


@each_cell
async def test_an_image_arrives_byte_for_byte_in_every_revision(
    bridge: Bridge, revision: str, era: Era
) -> None:
    """Byte by byte."""
    async with open_caller(bridge.gate, revision) as caller:
        await caller.listed(f"mcp_{era}__cover")
        answered = await caller.call(f"mcp_{era}__cover")

    (picture,) = [block for block in answered.result["content"] if block["type"] == "image"]
    assert (picture["mimeType"], picture["data"]) == ("image/png", b64encode(PIXEL).decode())


@each_cell
async def test_an_error_of_the_tool_arrives_in_every_revision(
    bridge: Bridge, revision: str, era: Era
) -> None:
    """The tool's own sentence arrives as the tool's failure."""
    async with open_caller(bridge.gate, revision) as caller:
        await caller.listed(f"mcp_{era}__fail")
        answered = await caller.call(f"mcp_{era}__fail")

    assert answered.result["isError"] is True
    assert "out of paper" in answered.text


@each_cell
async def test_a_list_change_is_announced_in_every_revision(
    bridge: Bridge, revision: str, era: Era
) -> None:
    """A change announced by the upstream is announced to clients, and the new tool is listed."""
    name = f"added_{next(names)}"
    async with open_caller(bridge.gate, revision) as caller:
        await caller.listed(f"mcp_{era}__publish")
        async with caller.told_of_changes() as stream:
            await caller.call(f"mcp_{era}__publish", name=name)
            await stream.until("notifications/tools/list_changed")
        await caller.listed(f"mcp_{era}__{name}")

        assert (await caller.call(f"mcp_{era}__{name}")).text == name
