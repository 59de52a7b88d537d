"""What is sent to an upstream, and what callers hear when it fails."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import msgspec

from gatepost.secrets.keyring import KeyRing
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.shared_store import MemorySharedStore, SharedStore
from gatepost.tools.context.client import SilentClient
from gatepost.tools.context.content import Relevance
from gatepost.tools.offers.offer import CallContext, Offer, Tool
from gatepost.tools.offers.offer_kinds import ResourceOffer
from gatepost.upstreams.calls.calls import UpstreamCalls
from gatepost.upstreams.calls.progress_and_logs import passed_on
from gatepost.upstreams.catalogue import Definition
from gatepost.upstreams.connection import (
    NO_OPTIONS,
    ConnectionFailure,
    Era,
    RequestOptions,
    ServerDescription,
    UpstreamError,
    UpstreamMessage,
    UpstreamNotification,
    UpstreamRequest,
    UpstreamResult,
)
from gatepost.upstreams.upstream_server import UpstreamServer
from gatepost.workspace import TenantWorkspace
from tests.support.client_requests import call_with_responses, input_requests_of, result_text
from tests.support.endpoint import EndpointClient, Response, a_caller

FORM = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
CRM = UpstreamServer(id="0b5e", tenant="acme", name="crm")


def text_result(text: str, **more: Any) -> UpstreamResult:
    """Return a result of one text."""
    return UpstreamResult({"content": [{"type": "text", "text": text}], **more})


def form(message: str = "Sure?") -> dict[str, Any]:
    """Return the parameters of a form."""
    return {"mode": "form", "message": message, "requestedSchema": FORM}


class Exchanged:
    """One request as the upstream gets it, and what the script does with it."""

    def __init__(self, method: str, params: Mapping[str, Any], options: RequestOptions) -> None:
        self.method, self.params, self.options = method, params, options
        self.cancelled: str | None = None
        self.heard: list[tuple[int | str, Mapping[str, Any]]] = []
        self._out: asyncio.Queue[UpstreamMessage | ConnectionFailure] = asyncio.Queue()
        self._answers: dict[int | str, asyncio.Future[Mapping[str, Any]]] = {}

    async def messages(self) -> AsyncIterator[UpstreamMessage]:
        while True:
            message = await self._out.get()
            if isinstance(message, ConnectionFailure):
                raise message
            yield message
            if isinstance(message, UpstreamResult | UpstreamError):
                return

    async def respond(self, request_id: int | str, answer: Mapping[str, Any]) -> None:
        self.heard.append((request_id, answer))
        self._answers[request_id].set_result(answer)

    async def cancel(self, reason: str) -> None:
        self.cancelled = reason

    # For scripts.

    def say(self, message: UpstreamMessage | ConnectionFailure) -> None:
        self._out.put_nowait(message)

    def tell(self, method: str, **params: Any) -> None:
        self.say(UpstreamNotification(method, params))

    async def ask(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        identity = len(self._answers) + 1
        self._answers[identity] = asyncio.get_running_loop().create_future()
        self.say(UpstreamRequest(identity, method, params))
        return await self._answers[identity]


Script = Callable[[Exchanged], Awaitable[UpstreamMessage | ConnectionFailure | None]]


class ScriptedUpstreamCalls:
    """An upstream whose tools are a script; it implements `Connections` and its connection."""

    def __init__(self, script: Script, *, era: Era = "modern") -> None:
        self.script, self.era = script, era
        self.exchanges: list[Exchanged] = []
        self.begun, self.ended = asyncio.Event(), asyncio.Event()
        self.principals: list[tuple[str, ...] | None] = []
        self.unreachable: ConnectionFailure | None = None

    def connection_to(
        self, server: UpstreamServer, principal: tuple[str, ...] | None = None
    ) -> Any:
        self.principals.append(principal)
        return self

    async def describe(self) -> ServerDescription:
        if self.unreachable is not None:
            raise self.unreachable
        return ServerDescription(era=self.era, revision="2026-07-28", capabilities={})

    @asynccontextmanager
    async def exchange(
        self, method: str, params: Mapping[str, Any], options: RequestOptions = NO_OPTIONS
    ) -> AsyncIterator[Exchanged]:
        exchange = Exchanged(method, params, options)
        self.exchanges.append(exchange)
        self.begun.set()

        async def play() -> None:
            last = await self.script(exchange)
            if last is not None:
                exchange.say(last)

        playing = asyncio.create_task(play())
        try:
            yield exchange
        finally:
            playing.cancel()
            await asyncio.wait({playing})
            self.ended.set()

    def notifications(self) -> AbstractAsyncContextManager[AsyncIterator[UpstreamNotification]]:
        raise NotImplementedError

    async def forget(self, server_id: str) -> None:
        """Do nothing, because nothing is stored."""

    async def aclose(self) -> None:
        """Do nothing, because nothing is open."""

    def ran(self, method: str = "tools/call") -> int:
        """Return how often a request of that method arrived."""
        return sum(exchange.method == method for exchange in self.exchanges)


def definition(key: str = "act", **value: Any) -> Definition:
    """Return the definition of a tool."""
    tool_fields = {"name": key, "inputSchema": {"type": "object"}, **value}
    return Definition(
        section="tools", key=key, name=f"mcp_crm__{key}", value=tool_fields, digest="d1"
    )


def offered_tool(
    calls: UpstreamCalls, server: UpstreamServer = CRM, made: Definition | None = None
) -> Tool:
    """Return the tool that the catalogue makes of an upstream's tool."""
    made = made or definition()
    schema = dict(made.value["inputSchema"])
    return Tool(
        name=made.name,
        description="Act.",
        input_schema=schema,
        check=msgspec.json.decode,
        invoke=calls.tool(server, made),
        timeout_s=120,
    )


async def asks_in_rounds(exchange: Exchanged) -> UpstreamResult:
    """Answer like a modern tool that asks once."""
    options = exchange.options
    if options.input_responses is None:
        input_requests = {"sure?": {"method": "elicitation/create", "params": form()}}
        return UpstreamResult(
            {
                "resultType": "input_required",
                "inputRequests": input_requests,
                "requestState": "their-state",
            }
        )
    assert options.request_state == "their-state"
    return text_result(f"{options.input_responses['sure?']['content']}")


async def asks_once(exchange: Exchanged) -> UpstreamResult:
    """Answer like a session-era tool that asks once while it runs."""
    answer = await exchange.ask("elicitation/create", form())
    return text_result(f"{answer['result']['content']}")


class UpstreamGate:
    """One replica with one upstream tool, and its client."""

    def __init__(
        self,
        upstream: ScriptedUpstreamCalls,
        *,
        server: UpstreamServer = CRM,
        shared_store: SharedStore | None = None,
        keyring: KeyRing | None = None,
        records: Any = None,
        definition: Definition | None = None,
        offers: Callable[[UpstreamCalls], Sequence[Offer]] | None = None,
        **more: Any,
    ) -> None:
        self.shared_store, self.keyring = (
            shared_store or MemorySharedStore(),
            keyring or KeyRing.ephemeral(),
        )
        self.calls = UpstreamCalls(upstream, self.shared_store, self.keyring, **more)
        tools = offers(self.calls) if offers else [offered_tool(self.calls, server, definition)]
        self.client = EndpointClient(
            tools, shared_store=self.shared_store, keyring=self.keyring, records=records
        )


def key_of(response: Response) -> str:
    (key,) = input_requests_of(response)
    return key


TOOL = "mcp_crm__act"


def calls_answered_by(message: UpstreamMessage | ConnectionFailure) -> ScriptedUpstreamCalls:
    async def script(_: Exchanged) -> UpstreamMessage | ConnectionFailure:
        return message

    return ScriptedUpstreamCalls(script)


async def test_the_upstream_request_is_built_from_scratch() -> None:
    """It has the upstream's tool name and headers, and nothing of the caller's `_meta`."""
    schema = {
        "type": "object",
        "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "n": {"type": "integer", "x-mcp-header": "N"},
            "on": {"type": "boolean", "x-mcp-header": "On"},
        },
    }
    upstream = calls_answered_by(text_result("ok"))
    gate = UpstreamGate(upstream, definition=definition(inputSchema=schema))
    arguments = {"region": "Zürich", "n": 3, "on": True}
    await call_with_responses(
        gate.client, TOOL, arguments, meta={"secret": "x", "progressToken": "p"}
    )

    (sent,) = upstream.exchanges
    assert sent.params == {"name": "act", "arguments": arguments}
    assert sent.options.header_arguments == {
        "Mcp-Param-Region": "=?base64?WsO8cmljaA==?=",
        "Mcp-Param-N": "3",
        "Mcp-Param-On": "true",
    }
    assert sent.options.log_level is None
    assert upstream.principals == [None]


async def test_the_idempotency_key_is_forwarded_as_another_one_per_caller() -> None:
    upstream = calls_answered_by(text_result("ok"))
    gate = UpstreamGate(upstream)
    meta = {"io.gatepost/idempotency-key": "k"}
    await call_with_responses(gate.client, TOOL, meta=meta)
    gate.client.caller = a_caller(subject="bob")
    await call_with_responses(gate.client, TOOL, meta=meta)
    await call_with_responses(gate.client, TOOL)

    alices, bobs, without = (exchange.options.idempotency_key for exchange in upstream.exchanges)
    assert alices is not None
    assert bobs is not None
    assert len({alices, bobs, "k"}) == 3
    assert without is None


async def test_a_stateful_server_has_a_session_for_each_caller() -> None:
    upstream = calls_answered_by(text_result("ok"))
    gate = UpstreamGate(upstream, server=msgspec.structs.replace(CRM, stateful=True))
    await call_with_responses(gate.client, TOOL)

    assert upstream.principals == [gate.client.caller.principal_key]


async def test_a_hang_up_cancels_the_call() -> None:
    async def hangs(_: Exchanged) -> None:
        await asyncio.Event().wait()

    upstream = ScriptedUpstreamCalls(hangs)
    gate = UpstreamGate(upstream)
    leaves = asyncio.Event()
    call = {"name": TOOL, "arguments": {}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": _modern(call)})
    headers = [
        ("content-type", "application/json"),
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", "tools/call"),
        ("mcp-name", TOOL),
    ]
    sending = asyncio.create_task(gate.client.send(body.encode(), headers, hang_up=leaves))
    await asyncio.wait_for(upstream.begun.wait(), 20)
    leaves.set()
    await asyncio.wait_for(sending, 20)
    await asyncio.wait_for(upstream.ended.wait(), 20)

    assert upstream.exchanges[0].cancelled


def _modern(params: dict[str, Any]) -> dict[str, Any]:
    request_meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    return {**params, "_meta": request_meta}


async def test_a_resource_is_read_under_our_uri() -> None:
    definition = Definition(
        section="resources", key="a://b", name="mcp-crm-a://b", value={"uri": "a://b"}, digest="d"
    )
    upstream = calls_answered_by(UpstreamResult({"contents": [{"uri": "a://b", "text": "t"}]}))
    gate = UpstreamGate(
        upstream,
        offers=lambda calls: [
            ResourceOffer(
                uri=definition.name,
                name="b",
                description="B.",
                relevance=Relevance(),
                check=lambda _: (definition.name, {}),
                invoke=calls.resource(CRM, definition),
            )
        ],
    )

    response = await gate.client.ask("resources/read", {"uri": definition.name})

    assert response.json["result"]["contents"] == [{"uri": definition.name, "text": "t"}]
    assert upstream.exchanges[0].params == {"uri": "a://b"}


async def test_a_large_structured_answer_is_checked_too() -> None:
    """A thread checks it, so that it delays no other call."""
    checked_definition = definition(
        outputSchema={"type": "object", "properties": {"n": {"type": "string"}}}
    )
    fits = calls_answered_by(text_result("", structuredContent={"n": "x" * 300_000}))
    breaks = calls_answered_by(text_result("", structuredContent={"n": ["x" * 300_000]}))

    good_answer = await call_with_responses(
        UpstreamGate(fits, definition=checked_definition).client, TOOL
    )
    bad = await call_with_responses(
        UpstreamGate(breaks, definition=checked_definition).client, TOOL
    )

    assert len(good_answer.json["result"]["structuredContent"]["n"]) == 300_000
    assert "broke the protocol" in result_text(bad)


async def test_an_outage_of_our_store_during_a_call_does_not_invite_another_one() -> None:
    """The call was sent: a 503 would make the client send it again."""

    class CutOff(SilentClient):
        async def progress(self, *_: object) -> None:
            raise StoreUnavailable("the shared store")

    ctx = CallContext(
        caller=a_caller(), request_id="r", workspace=TenantWorkspace(-1, "acme"), client=CutOff()
    )
    await passed_on(ctx, CRM, UpstreamNotification("notifications/progress", {"progress": 1}))
