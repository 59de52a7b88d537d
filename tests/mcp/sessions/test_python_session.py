"""The official Python client in an older session, before two servers that no affinity holds to."""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import msgspec
import pytest
from mcp import types
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from pydantic import FileUrl

from gatepost.check.pack_loading import load
from gatepost.config.settings import Config
from gatepost.runtime.http_server import bind
from gatepost.secrets.keyring import KeyRing
from tests.mcp import fixture_tools
from tests.support import client_requests
from tests.support.endpoint import message
from tests.support.issuers import Idp, TokenFactory
from tests.support.processes import free_port
from tests.support.proxies import balanced
from tests.support.server import Server, configuration, issuer_settings

WITHIN_S = 60
TOOLS = [str(Path(str(module.__file__))) for module in (fixture_tools, client_requests)]


class BalancedServers:
    """Two servers with one database and one Valkey, and the address that stands before them."""

    def __init__(self, url: str, token: str) -> None:
        self.url, self.token, self.session = url, token, ""
        self.requests: list[tuple[str, int, str | None]] = []
        """Verb, status and `Last-Event-ID` of what the client sent."""

    async def seen(self, response: httpx2.Response) -> None:
        request = response.request
        event = request.headers.get("last-event-id")
        self.session = request.headers.get("mcp-session-id", self.session)
        self.requests.append((request.method, response.status_code, event))

    @contextlib.asynccontextmanager
    async def client(self, **callbacks: Any) -> AsyncIterator[Client]:
        headers = {"Authorization": f"Bearer {self.token}"}
        async with (
            httpx2.AsyncClient(
                headers=headers, event_hooks={"response": [self.seen]}, timeout=30, trust_env=False
            ) as http,
            Client(
                streamable_http_client(self.url, http_client=http), mode="legacy", **callbacks
            ) as client,
        ):
            yield client


@pytest.fixture
def servers(
    tmp_path: Path, valkey: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[BalancedServers]:
    monkeypatch.chdir(tmp_path)
    port = free_port()
    with Idp() as idp, contextlib.ExitStack() as stack:
        issuers = [issuer_settings(idp, tenants={"acme": "acme"})]
        settings = configuration(
            port,
            issuers,
            tools={"load": TOOLS},
            storage={"database": f"sqlite:///{tmp_path}/state.db", "shared": valkey},
        )
        config = msgspec.convert(settings, Config)
        loaded_packs = load(config.tools, config.packs, config.network)
        assert not loaded_packs.problems
        keyring, origins = KeyRing.ephemeral(), []
        for _ in range(2):
            sock = bind("127.0.0.1", 0)
            origins.append(f"http://127.0.0.1:{sock.getsockname()[1]}")
            stack.enter_context(Server(config, loaded_packs, sock, keyring=keyring).running())
        origin = stack.enter_context(balanced(origins, port))
        token = TokenFactory(issuers[0]["issuer"], config.resource).token(org_id="acme")
        yield BalancedServers(f"{origin}/mcp", token)


def text(result: types.CallToolResult) -> str:
    assert not result.is_error, result
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    return block.text


async def filled_in(context: object, params: types.ElicitRequestParams) -> types.ElicitResult:
    if isinstance(params, types.ElicitRequestURLParams):
        return types.ElicitResult(action="accept")
    return types.ElicitResult(action="accept", content={"name": "Ann"})


async def sampled(
    context: object, params: types.CreateMessageRequestParams
) -> types.CreateMessageResult:
    content = types.TextContent(type="text", text="hello")
    return types.CreateMessageResult(role="assistant", model="m-1", content=content)


async def folders(context: object) -> types.ListRootsResult:
    return types.ListRootsResult(roots=[types.Root(uri=FileUrl("file:///work"))])


@pytest.mark.requirement("E-12", "SA-02", "RO-01", "DE-10", "S-20")
async def test_the_python_client_is_asked_at_one_server_and_answers_at_the_other(
    servers: BalancedServers,
) -> None:
    """The balancer sends each form, sampling or roots request to another server."""
    callbacks: dict[str, Callable[..., Any]] = {
        "elicitation_callback": filled_in,
        "sampling_callback": sampled,
        "list_roots_callback": folders,
    }
    with anyio.fail_after(WITHIN_S):
        async with servers.client(**callbacks) as client:
            assert client.protocol_version == "2025-11-25"
            for _ in range(3):
                assert text(await client.call_tool("ask_name", {})) == "accept Ann"
                assert text(await client.call_tool("ask_two", {})) == "accept accept"
                assert text(await client.call_tool("sample", {})) == "m-1"
                assert text(await client.call_tool("roots", {})) == "file:///work"

    assert {status for verb, status, _ in servers.requests if verb == "POST"} == {200, 202}
    assert ("DELETE", 204, None) in servers.requests


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
@pytest.mark.requirement("LG-05")
async def test_the_python_client_sets_a_log_level_that_both_servers_apply(
    servers: BalancedServers,
) -> None:
    """Messages below the level are not sent, whichever server runs the call."""
    heard: list[str] = []

    async def hear(params: types.LoggingMessageNotificationParams) -> None:
        heard.append(params.level)

    with anyio.fail_after(WITHIN_S):
        async with servers.client(logging_callback=hear) as client:
            for level, expected in (("info", 3), ("error", 0), ("debug", 3)):
                await client.set_logging_level(level)  # type: ignore[arg-type]
                for _ in range(2):
                    heard.clear()
                    await client.call_tool("test_tool_with_logging", {})
                    assert heard == ["info"] * expected


@pytest.mark.requirement("S-06", "S-12")
async def test_the_python_client_resumes_a_closed_stream(servers: BalancedServers) -> None:
    """The stream closes before the answer; the client finds the rest at any server."""
    with anyio.fail_after(WITHIN_S):
        async with servers.client() as client:
            for _ in range(3):
                assert text(await client.call_tool("test_reconnection", {})) == "Reconnected."

    back = [status for verb, status, event in servers.requests if verb == "GET" and event]
    assert back == [200] * 3


@pytest.mark.requirement("S-16", "S-17")
async def test_the_python_client_ends_its_session_at_every_server(servers: BalancedServers) -> None:
    """It ends its session when it disconnects, and no server accepts the id any more."""
    with anyio.fail_after(WITHIN_S):
        async with servers.client() as client:
            await client.list_tools()
    headers = {
        "Authorization": f"Bearer {servers.token}",
        "Mcp-Session-Id": servers.session,
        "Content-Type": "application/json",
    }
    async with httpx2.AsyncClient(headers=headers, trust_env=False) as http:
        answers = [await http.post(servers.url, content=message("ping")) for _ in range(4)]

    assert ("DELETE", 204, None) in servers.requests
    assert [answer.status_code for answer in answers] == [404] * 4
