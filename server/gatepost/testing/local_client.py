"""A client in memory: calls, tasks, elicitation, progress, resources and prompts of one caller."""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Mapping
from inspect import isawaitable
from typing import Any

import httpx2
import msgspec

VERSION = "2026-07-28"
META = "io.modelcontextprotocol/"
TASKS = META + "tasks"
MIRRORED = ("name", "uri", "taskId")
"""The parameters that the header `Mcp-Name` repeats."""
MAX_ROUNDS = 32
POLL_S = 0.02
WITHIN_S = 30.0

AnswerElicitation = Callable[[Mapping[str, Any]], Any]
"""
Answers one request to the client. It gets the request's parameters with ``method``, and returns the
fields of the form as a dictionary, True to accept a page, None to decline, or the whole result of
any other request. It may be a coroutine function.
"""


class CallRefused(Exception):
    """
    The server refused a request, instead of answering with a result.

    ``status`` is of HTTP, ``code`` and ``data`` are of JSON-RPC (None if there is no such error),
    ``scopes`` are those that a challenge asks for.
    """

    def __init__(self, answer: httpx2.Response, error: Mapping[str, Any]) -> None:
        self.status = answer.status_code
        self.code: int | None = error.get("code") if isinstance(error.get("code"), int) else None
        self.data = error.get("data")
        self.challenge = answer.headers.get("www-authenticate", "")
        scope = self.challenge.partition('scope="')[2].partition('"')[0]
        self.scopes = frozenset(scope.split())
        super().__init__(f"{self.status} {error.get('message') or error.get('error') or ''}")


class CallResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a call and what the server sent while it ran."""

    content: tuple[Mapping[str, Any], ...]
    """The content blocks in MCP's form."""
    structured: Any = None
    """The structured value, if the tool has an output schema."""
    is_error: bool = False
    meta: Mapping[str, Any] = {}
    progress: tuple[Mapping[str, Any], ...] = ()
    """
    The progress reports in order: `progress`, and `total` and `message` if the tool sent them.
    """
    logs: tuple[Any, ...] = ()
    """The data of the log messages."""

    @property
    def text(self) -> str:
        """Return the text blocks, joined by line breaks."""
        return "\n".join(block["text"] for block in self.content if block["type"] == "text")

    @property
    def images(self) -> list[bytes]:
        """Return the images."""
        blocks = (block for block in self.content if block["type"] == "image")
        return [base64.b64decode(block["data"]) for block in blocks]


class LocalConnection:
    """Sends requests of 2026-07-28 to an app in this process; *token* signs one for each."""

    def __init__(self, app: Any, resource: str, token: Callable[[], str]) -> None:
        self._app, self._resource, self.token = app, resource, token

    async def ask(
        self, method: str, params: Mapping[str, Any], capabilities: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], list[Mapping[str, Any]]]:
        """Return the result and the notifications before it; raises CallRefused."""
        meta = {
            META + "protocolVersion": VERSION,
            META + "clientCapabilities": capabilities,
            META + "clientInfo": {"name": "gatepost.testing", "version": "1"},
            META + "logLevel": "debug",
            "progressToken": 1,
        }
        body = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": method,
            "params": {**params, "_meta": meta},
        }
        headers = {
            "Authorization": f"Bearer {self.token()}",
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
            "MCP-Protocol-Version": VERSION,
            "Mcp-Method": method,
        }
        for parameter in MIRRORED:
            if isinstance(name := params.get(parameter), str):
                headers["Mcp-Name"] = _in_header(name)
        transport = httpx2.ASGITransport(app=self._app)
        async with httpx2.AsyncClient(transport=transport) as client:
            answer = await client.post(
                self._resource, content=msgspec.json.encode(body), headers=headers
            )
        return _read(answer)


class LocalTask:
    """A call that became a task; ``id`` is the task's."""

    def __init__(self, client: "LocalClient", created: Mapping[str, Any]) -> None:
        self.id: str = created["taskId"]
        self._client = client

    async def status(self) -> Mapping[str, Any]:
        """Return what `tasks/get` shows: `status`, `statusMessage`, and more."""
        return await self._client.ask("tasks/get", {"taskId": self.id})

    async def cancel(self) -> None:
        """Ask the server to cancel the task."""
        await self._client.ask("tasks/cancel", {"taskId": self.id})

    async def result(self, *, within_s: float = WITHIN_S) -> CallResult:
        """
        Return the result once the task has ended; the client answers its requests meanwhile.

        Raises TimeoutError after *within_s* seconds, and RuntimeError if the task has no result,
        because it was cancelled or failed.
        """
        messages: list[str] = []
        async with asyncio.timeout(within_s):
            while (state := await self.status())["status"] not in (
                "completed",
                "failed",
                "cancelled",
            ):
                if (message := state.get("statusMessage")) and message not in messages[-1:]:
                    messages.append(message)
                if state["status"] == "input_required":
                    answers = await self._client.answers(state.get("inputRequests") or {})
                    await self._client.ask(
                        "tasks/update", {"taskId": self.id, "inputResponses": answers}
                    )
                await asyncio.sleep(POLL_S)
        if "result" not in state:
            raise RuntimeError(f"the task is {state['status']}: {state.get('error') or ''}")
        return _result_of(state["result"], [{"message": message} for message in messages], [])


class LocalClient:
    """
    The client of one caller.

    With an *answer* function it supports elicitation, pages, sampling and roots, and answers what
    tools ask. Without one, tools learn that the client cannot be asked.
    """

    def __init__(self, connection: LocalConnection, answer: AnswerElicitation | None) -> None:
        self.connection = connection
        self._answer = answer

    async def call(self, tool: str, /, **arguments: Any) -> CallResult:
        """
        Call a tool and return its result, failures of the tool included.

        The call waits for an approval, so run it in a task if the test approves it. Raises
        CallRefused if the server refuses the call, such as for a missing scope.
        """
        result, progress, logs = await self._rounds(
            "tools/call", {"name": tool, "arguments": arguments}
        )
        return _result_of(result, progress, logs)

    async def start(self, tool: str, /, **arguments: Any) -> LocalTask:
        """Call a tool that becomes a task; RuntimeError if the call ended without one."""
        params = {"name": tool, "arguments": arguments}
        result, _, _ = await self._rounds("tools/call", params, tasks=True)
        if result["resultType"] != "task":
            raise RuntimeError(f"{tool} did not become a task; declare task_support")
        return LocalTask(self, result)

    async def tools(self) -> dict[str, Mapping[str, Any]]:
        """Return the tools that this caller sees, by name, in MCP's form."""
        return {tool["name"]: tool async for tool in self._list_all("tools/list", "tools")}

    async def resources(self) -> dict[str, Mapping[str, Any]]:
        """Return the resources that this caller sees, by URI."""
        return {
            resource["uri"]: resource
            async for resource in self._list_all("resources/list", "resources")
        }

    async def prompts(self) -> dict[str, Mapping[str, Any]]:
        """Return the prompts that this caller sees, by name."""
        return {
            prompt["name"]: prompt async for prompt in self._list_all("prompts/list", "prompts")
        }

    async def read(self, uri: str) -> list[str | bytes]:
        """Return the contents of a resource: text, or bytes."""
        result, _, _ = await self._rounds("resources/read", {"uri": uri})
        return [
            contents["text"] if "text" in contents else base64.b64decode(contents["blob"])
            for contents in result["contents"]
        ]

    async def prompt(self, name: str, /, **arguments: str) -> list[Mapping[str, Any]]:
        """Return the messages of a prompt in MCP's form: `role` and `content`."""
        result, _, _ = await self._rounds("prompts/get", {"name": name, "arguments": arguments})
        messages: list[Mapping[str, Any]] = result["messages"]
        return messages

    async def complete(
        self, of: str, argument: str, value: str = "", **context_arguments: str
    ) -> list[str]:
        """Return the suggestions for an argument of a prompt, or of a URI template with `{`."""
        kind = (
            {"type": "ref/resource", "uri": of} if "{" in of else {"type": "ref/prompt", "name": of}
        )
        params = {"ref": kind, "argument": {"name": argument, "value": value}}
        result = await self.ask(
            "completion/complete", {**params, "context": {"arguments": context_arguments}}
        )
        values: list[str] = result["completion"]["values"]
        return values

    async def ask(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send any request of MCP and return its result; raises CallRefused."""
        return (await self.connection.ask(method, params, self._capabilities(tasks=True)))[0]

    async def answers(self, requests: Mapping[str, Any]) -> dict[str, Any]:
        """Return the results of requests to this client by their keys."""
        return {key: await self._answered(request) for key, request in requests.items()}

    def _capabilities(self, *, tasks: bool) -> dict[str, Any]:
        capabilities: dict[str, Any] = {
            "elicitation": {"form": {}, "url": {}},
            "sampling": {},
            "roots": {},
        }
        return (capabilities if self._answer else {}) | (
            {"extensions": {TASKS: {}}} if tasks else {}
        )

    async def _rounds(
        self, method: str, params: Mapping[str, Any], *, tasks: bool = False
    ) -> tuple[Mapping[str, Any], list[Mapping[str, Any]], list[Any]]:
        """Ask again with answers until there is a result; return progress and logs as well."""
        progress: list[Mapping[str, Any]] = []
        logs: list[Any] = []
        answers: dict[str, Any] = {}
        for _ in range(MAX_ROUNDS):
            result, notifications = await self.connection.ask(
                method, {**params, **answers}, self._capabilities(tasks=tasks)
            )
            for notification in notifications:
                if notification["method"] == "notifications/progress":
                    report = notification["params"]
                    progress.append({k: v for k, v in report.items() if k != "progressToken"})
                elif notification["method"] == "notifications/message":
                    logs.append(notification["params"].get("data"))
            if result.get("resultType") != "input_required":
                return result, progress, logs
            answers = {"inputResponses": await self.answers(result.get("inputRequests") or {})}
            if "requestState" in result:
                answers["requestState"] = result["requestState"]
        raise RuntimeError(f"{method} asked more than {MAX_ROUNDS} times")

    async def _answered(self, request: Mapping[str, Any]) -> Any:
        if self._answer is None:
            raise RuntimeError("the client has no `answer` function")
        method = request["method"]
        answer = self._answer({"method": method, **request.get("params", {})})
        if isawaitable(answer):
            answer = await answer
        if method != "elicitation/create":
            return answer
        if answer is None or answer is False:
            return {"action": "decline"}
        return {"action": "accept", **({} if answer is True else {"content": answer})}

    async def _list_all(self, method: str, member: str) -> AsyncIterator[Mapping[str, Any]]:
        params: dict[str, Any] = {}
        while True:
            page = await self.ask(method, params)
            for item in page[member]:
                yield item
            if not page.get("nextCursor"):
                return
            params = {"cursor": page["nextCursor"]}


def _read(answer: httpx2.Response) -> tuple[Mapping[str, Any], list[Mapping[str, Any]]]:
    kind = answer.headers.get("content-type", "")
    if kind.startswith("text/event-stream"):
        lines = (line for line in answer.text.split("\n") if line.startswith("data: {"))
        *notifications, last = [msgspec.json.decode(line.removeprefix("data: ")) for line in lines]
    else:
        notifications, last = [], msgspec.json.decode(answer.content)
    if "result" not in last:
        error = last.get("error")
        raise CallRefused(answer, error if isinstance(error, Mapping) else last)
    return last["result"], notifications


def _result_of(
    result: Mapping[str, Any], progress: list[Mapping[str, Any]], logs: list[Any]
) -> CallResult:
    return CallResult(
        content=tuple(result["content"]),
        structured=result.get("structuredContent"),
        is_error=bool(result.get("isError")),
        meta=result.get("_meta", {}),
        progress=tuple(progress),
        logs=tuple(logs),
    )


def _in_header(value: str) -> str:
    if value.isascii() and value.isprintable() and value == value.strip():
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="
