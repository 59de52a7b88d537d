"""An upstream in this process that follows a script, behind the real endpoint."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import msgspec
import pytest

from gatepost.secrets.keyring import KeyRing
from gatepost.storage.shared_store import MemorySharedStore, SharedStore
from gatepost.storage.valkey.shared_store import ValkeySharedStore
from gatepost.tools.api import Offer, Tool
from gatepost.upstreams.calls.calls import UpstreamCalls
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
from tests.support.client_requests import input_requests_of
from tests.support.endpoint import EndpointClient, Response

FORM = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
CRM = UpstreamServer(id="0b5e", tenant="acme", name="crm")


def text_result(text: str, **more: Any) -> UpstreamResult:
    """A result of one text."""
    return UpstreamResult({"content": [{"type": "text", "text": text}], **more})


def form(message: str = "Sure?") -> dict[str, Any]:
    """The parameters of a form."""
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

    def of(self, server: UpstreamServer, principal: tuple[str, ...] | None = None) -> Any:
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
        made = Exchanged(method, params, options)
        self.exchanges.append(made)
        self.begun.set()

        async def play() -> None:
            last = await self.script(made)
            if last is not None:
                made.say(last)

        playing = asyncio.create_task(play())
        try:
            yield made
        finally:
            playing.cancel()
            await asyncio.wait({playing})
            self.ended.set()

    def notifications(self) -> AbstractAsyncContextManager[AsyncIterator[UpstreamNotification]]:
        raise NotImplementedError

    async def forget(self, server_id: str) -> None:
        """Nothing is kept."""

    async def aclose(self) -> None:
        """Nothing is open."""

    def ran(self, method: str = "tools/call") -> int:
        """How often a request came in."""
        return sum(one.method == method for one in self.exchanges)


def definition(key: str = "act", **value: Any) -> Definition:
    """The definition of a tool."""
    shown = {"name": key, "inputSchema": {"type": "object"}, **value}
    return Definition(section="tools", key=key, name=f"mcp_crm__{key}", value=shown, digest="d1")


def offered(
    calls: UpstreamCalls, server: UpstreamServer = CRM, made: Definition | None = None
) -> Tool:
    """The tool behind which an upstream's tool stands, as the catalogue makes it."""
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
    """A modern tool that asks once."""
    options = exchange.options
    if options.input_responses is None:
        asked = {"sure?": {"method": "elicitation/create", "params": form()}}
        return UpstreamResult(
            {"resultType": "input_required", "inputRequests": asked, "requestState": "their-state"}
        )
    assert options.request_state == "their-state"
    return text_result(f"{options.input_responses['sure?']['content']}")


async def asks_once(exchange: Exchanged) -> UpstreamResult:
    """A session-era tool that asks once while it runs."""
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
        made: Definition | None = None,
        offers: Callable[[UpstreamCalls], Sequence[Offer]] | None = None,
        **more: Any,
    ) -> None:
        self.shared_store, self.keyring = (
            shared_store or MemorySharedStore(),
            keyring or KeyRing.ephemeral(),
        )
        self.calls = UpstreamCalls(upstream, self.shared_store, self.keyring, **more)
        tools = offers(self.calls) if offers else [offered(self.calls, server, made)]
        self.client = EndpointClient(
            tools, shared_store=self.shared_store, keyring=self.keyring, records=records
        )


def key_of(response: Response) -> str:
    (key,) = input_requests_of(response)
    return key


@pytest.fixture(params=["memory", "valkey"])
async def shared_store(request: pytest.FixtureRequest) -> AsyncIterator[SharedStore]:
    if request.param == "memory":
        yield MemorySharedStore()
        return
    opened = ValkeySharedStore(request.getfixturevalue("valkey"))
    yield opened
    await opened.aclose()
