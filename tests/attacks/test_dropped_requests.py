"""Requests that are dropped or taken back after every single step: what is left of each."""

import asyncio
from typing import Any

import pytest

from gatepost import CallContext, Pack
from gatepost.http import body as intake
from gatepost.mcp.sessions import request_messages
from gatepost.storage.memory.records import MemoryRecords
from gatepost.storage.shared_store import MemorySharedStore
from gatepost_authz.middleware import CALLER
from tests.support.endpoint import JSON, META, VERSION, EndpointTaskClient, Header, message
from tests.support.runners import run_ready, run_until

WITHIN_S = 10
MAX_STEPS = 60
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}

pack = Pack("steps")


@pack.tool()
async def report(ctx: CallContext) -> str:
    """Say how far it is, three times."""
    for number in range(1, 4):
        await ctx.progress(number)
        await ctx.log("error", "message")
    return "done"


@pack.tool()
async def ask(ctx: CallContext) -> str:
    """Ask for a name."""
    return (await ctx.ask("Who?", FORM)).action


@pack.tool(task_support="optional")
async def last(ctx: CallContext) -> str:
    """Become a task where that can be."""
    await ctx.progress(1)
    return "done"


@pack.resource("doc://one")
async def one(ctx: CallContext) -> str:
    """Return a document."""
    return "one"


class SlowStore:
    """A store that lets others go on before and after whatever it does."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self.inner, name)

        async def ask(*arguments: Any, **options: Any) -> Any:
            await asyncio.sleep(0)
            answer = await operation(*arguments, **options)
            if name != "follow":  # who is cancelled while it follows follows not, by contract
                await asyncio.sleep(0)
            return answer

        return ask


class SlowServer:
    """A server on slow stores, and one exchange with it."""

    def __init__(self) -> None:
        records, shared_store = MemoryRecords(), MemorySharedStore()
        self.kept: Any = records.for_tenant("acme")
        for name in ("tasks", "idempotency", "sessions"):
            setattr(self.kept, name, SlowStore(getattr(self.kept, name)))
        self.wire: Any = shared_store.for_tenant("acme")
        shared_store._tenants["acme"] = SlowStore(self.wire)  # type: ignore[assignment]
        tools = [*pack.tools.values(), *pack.documents.values()]
        self.client = EndpointTaskClient(tools, records=records, shared_store=shared_store)
        self.sent: list[Any] = []
        self.before = asyncio.all_tasks()

    async def exchange(
        self, verb: str, body: bytes, headers: list[Header], steps: int, *, dropped: bool
    ) -> bool:
        """Return whether the exchange ended within *steps*; else drop its connection or task."""
        unread = [{"type": "http.request", "body": body, "more_body": False}]
        gone = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if unread:
                return unread.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(sent: Any) -> None:
            await asyncio.sleep(0)
            self.sent.append(sent)

        scope = {
            "type": "http",
            "method": verb,
            "path": "/mcp",
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
            CALLER: self.client.caller,
            "gatepost.request_id": "request-1",
        }
        task = asyncio.ensure_future(self.client.endpoint(scope, receive, send))
        await run_ready(steps)
        was_over = task.done()
        if dropped:
            gone.set()
        else:
            task.cancel()
        _, waiting = await asyncio.wait({task}, timeout=WITHIN_S)
        assert not waiting
        assert task.cancelled() or task.exception() is None
        return was_over

    def left(self) -> dict[str, object]:
        """Return what an idle server holds."""
        client, handshake = self.client, self.client.endpoint._handshake
        tasks = self.kept.tasks.inner.records.values()
        remaining: dict[str, object] = {
            "streams": [*client.streams, *client.streams._of_caller],
            "followed": [*client.pubsub.tenants, *self.wire._followers],
            "tasks": [*client.task_runner._running_tasks, *client.task_runner.task_store._opening],
            "requests": [*handshake._running, *handshake._client_requests._open],
            "unfinished": [t for t in tasks if t.status in ("working", "input_required")],
            "idempotency": [
                record
                for record in self.kept.idempotency.inner.records.values()
                if record.outcome is None
            ],
            "running": [*asyncio.all_tasks() - self.before],
        }
        return {name: value for name, value in remaining.items() if value}


CAPABILITIES = {"elicitation": {}, "extensions": {META + "tasks": {}}}
EVENTS = [JSON, ("accept", "application/json, text/event-stream")]
META_FIELDS = {"progressToken": "p", META + "logLevel": "debug"}
KEY = ("idempotency-key", "k")


def modern_post(method: str, *more: Header, **params: Any) -> tuple[str, bytes, list[Header]]:
    meta = {
        META + "protocolVersion": VERSION,
        META + "clientCapabilities": CAPABILITIES,
        **META_FIELDS,
    }
    named = params.get("name") or params.get("uri")
    headers = [*EVENTS, ("mcp-protocol-version", VERSION), ("mcp-method", method), *more]
    headers += [("mcp-name", named)] if named else []
    return "POST", message(method, {**params, "_meta": meta}), headers


def session_post(method: str, *more: Header, **params: Any) -> tuple[str, bytes, list[Header]]:
    return "POST", message(method, {**params, "_meta": META_FIELDS}), [*EVENTS, *more]


LISTEN_FILTERS = {
    "toolsListChanged": True,
    "taskIds": ["t_1"],
    "resourceSubscriptions": ["doc://one"],
}
REQUESTS = {
    "report": modern_post("tools/call", name="report"),
    "report once": modern_post("tools/call", KEY, name="report"),
    "last": modern_post("tools/call", name="last"),
    "last once": modern_post("tools/call", KEY, name="last"),
    "ask": modern_post("tools/call", name="ask"),
    "listen": modern_post("subscriptions/listen", notifications=LISTEN_FILTERS),
    "read": modern_post("resources/read", uri="doc://one"),
    "old report": session_post("tools/call", name="report"),
    "old report once": session_post("tools/call", KEY, name="report"),
    "old ask": session_post("tools/call", name="ask"),
    "old ask once": session_post("tools/call", KEY, name="ask"),
    "old level": session_post("logging/setLevel", level="error"),
    "old watch": session_post("resources/subscribe", uri="doc://one"),
    "old stream": ("GET", b"", EVENTS),
    "old end": ("DELETE", b"", EVENTS),
}
# A dropped connection is no cancellation in sessions (S-08): these go on asking.
ENDLESS_REQUESTS = {"old ask", "old ask once"}
REQUEST_CASES = [
    *((name, True) for name in REQUESTS if name not in ENDLESS_REQUESTS),
    *((n, False) for n in REQUESTS),
]


@pytest.mark.parametrize(("name", "dropped"), REQUEST_CASES)
async def test_a_request_dropped_after_any_step_leaves_no_state_behind(
    monkeypatch: pytest.MonkeyPatch, name: str, dropped: bool
) -> None:
    """No limit, task or lease stays taken, and the client gets one answer at most."""
    monkeypatch.setattr(intake, "WATCH_AFTER_S", 0)
    monkeypatch.setattr(request_messages, "WATCH_AFTER_S", 0)
    verb, body, headers = REQUESTS[name]
    for steps in range(MAX_STEPS):
        server = SlowServer()
        if name.startswith("old"):
            session = await server.client.open(capabilities={"elicitation": {}})
            headers = [*REQUESTS[name][2], ("mcp-session-id", session)]
        was_over = await server.exchange(verb, body, headers, steps, dropped=dropped)
        await wait_until_finished(server, steps)
        kinds = [(sent["type"], sent.get("more_body", False)) for sent in server.sent]
        assert kinds.count(("http.response.start", False)) == bool(kinds)
        assert ("http.response.body", False) not in kinds[:-1]
        if was_over:
            break


async def wait_until_finished(server: SlowServer, steps: int) -> None:
    """Wait until nothing is left; say what is, if that does not come."""

    async def is_over() -> bool:
        server.client.server.session_registry.close()
        return not server.left()

    try:
        await run_until(is_over)
    except TimeoutError:
        pytest.fail(f"after {steps} steps: {server.left()}")
