"""A process that connects to upstreams, with nothing imitated between it and them."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest

from gatepost.credentials.credential import NoCredential, OutboundCredential
from gatepost.outbound.client import OutboundClient
from gatepost.upstreams.connection import (
    ConnectionFailure,
    RequestOptions,
    UpstreamConnection,
    UpstreamMessage,
    UpstreamResult,
)
from gatepost.upstreams.server import StdioProgram, UpstreamServer
from gatepost.upstreams.transport.connections import UpstreamConnections
from gatepost.upstreams.transport.stdio_program import ProgramServices
from gatepost_authz.config import Network
from gatepost_authz.fetch import Fetcher
from tests.support.asgi_server import AsgiServer
from tests.upstreams.transport.scripted import ScriptedServer

WITHIN_S = 60
SECRET = "gh-secret-0123456789"


class ConnectingProcess:
    """Opens connections; *hosts* are those of `allow_hosts`."""

    def __init__(self, *hosts: str, ca_bundle: str = "", kept: int = 100) -> None:
        network = Network(allow_hosts=hosts, ca_bundle=ca_bundle)
        self.client = OutboundClient(network, tls=Fetcher(development=True, network=network).tls)
        self.credential: OutboundCredential = NoCredential()
        self.secrets = {("acme", "GITHUB"): SECRET}
        self.connections = UpstreamConnections(
            self.client,
            lambda server: self.credential,
            ProgramServices(self._secret, lambda tenant, text: text.replace(SECRET, "[secret]")),
            kept=kept,
        )

    async def _secret(self, tenant: str, name: str) -> str | None:
        return self.secrets.get((tenant, name))

    def http(
        self, url: str, principal: tuple[str, ...] | None = None, **more: Any
    ) -> UpstreamConnection:
        usual: dict[str, Any] = {"id": url, "tenant": "acme", "name": "crm", "url": url}
        return self.connections.of(UpstreamServer(**(usual | more)), principal)

    def stdio(
        self, program: StdioProgram, principal: tuple[str, ...] | None = None, **more: Any
    ) -> UpstreamConnection:
        usual: dict[str, Any] = {"id": "s", "tenant": "acme", "name": "crm", "transport": "stdio"}
        return self.connections.of(UpstreamServer(program=program, **(usual | more)), principal)

    async def aclose(self) -> None:
        await self.connections.aclose()
        await self.client.aclose()


async def messages_of(
    connection: UpstreamConnection,
    method: str = "tools/call",
    params: Mapping[str, Any] | None = None,
    **options: Any,
) -> list[UpstreamMessage]:
    """All messages of one request."""
    given = {"name": "act", "arguments": {}} if params is None else params
    async with (
        asyncio.timeout(WITHIN_S),
        connection.exchange(method, given, RequestOptions(**options)) as exchange,
    ):
        return [one async for one in exchange.messages()]


async def result_of(
    connection: UpstreamConnection,
    method: str = "tools/call",
    params: Mapping[str, Any] | None = None,
    **options: Any,
) -> Mapping[str, Any]:
    """The result of one request."""
    last = (await messages_of(connection, method, params, **options))[-1]
    assert isinstance(last, UpstreamResult), last
    return last.value


async def failure_of(connection: UpstreamConnection, **options: Any) -> ConnectionFailure:
    """Why a request fails."""
    with pytest.raises(ConnectionFailure) as failed:
        await messages_of(connection, **options)
    return failed.value


@pytest.fixture
def scripted() -> Iterator[tuple[ScriptedServer, str]]:
    """A scripted server and its URL."""
    app = ScriptedServer()
    server = AsgiServer(app, timeout_graceful_shutdown=1).start()
    try:
        yield app, f"{server.url}/mcp"
    finally:
        server.stop()


@pytest.fixture
async def crm(scripted: tuple[ScriptedServer, str]) -> AsyncIterator[tuple[ScriptedServer, Any]]:
    """A scripted server, and a function that connects to it."""
    app, url = scripted
    process = ConnectingProcess(url.split("/")[2])

    def connect(principal: tuple[str, ...] | None = None, **more: Any) -> UpstreamConnection:
        process_credential = more.pop("credential", None)
        if process_credential is not None:
            process.credential = process_credential
        return process.http(url, principal, **more)

    yield app, connect
    await process.aclose()
