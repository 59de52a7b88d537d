"""Replicas with approvals and revocations: an operator, a receiver of webhooks, open requests."""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from click.testing import CliRunner

from gatepost.cli.approvals import opened
from gatepost.cli.configuration import checked_configuration
from gatepost.cli.main import main
from gatepost.policy.approvals import waiting_call
from gatepost.policy.approvals.service import ApprovalService
from tests.support import tools as process_tools
from tests.support.client import ResourceClient, message
from tests.support.commands import CommandProcess
from tests.support.issuers import Idp
from tests.support.proxies import in_a_thread
from tests.support.replicas import (
    META,
    WITHIN_S,
    BalancedReplicas,
    ReplicaClient,
    ReplicaProcesses,
    ReplicaStream,
)
from tests.support.stores import Postgres, Valkey

KEY = bytes(range(32))


class WebhookMessage(msgspec.Struct):
    """One POST that the listener got."""

    headers: dict[str, str]
    body: bytes

    @property
    def event(self) -> Any:
        """Verify the signature (Standard Webhooks 1.0), then return the decoded body."""
        head = self.headers
        signed = f"{head['webhook-id']}.{head['webhook-timestamp']}.".encode() + self.body
        expected = base64.b64encode(hmac.digest(KEY, signed, hashlib.sha256)).decode()
        assert head["webhook-signature"] == f"v1,{expected}"
        assert head["content-type"] == "application/json"
        return json.loads(self.body)


class WebhookReceiver:
    """A receiver that is away at first, for so many messages."""

    def __init__(self) -> None:
        self.got: list[WebhookMessage] = []
        self.tried: list[WebhookMessage] = []
        """Also those that it did not take."""
        self.refusing = 1
        self.refused = 0
        listener = self

        class WebhookHandler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["content-length"])
                body = self.rfile.read(length)
                if len(body) < length:
                    return  # its sender was killed meanwhile
                head = {name.lower(): value for name, value in self.headers.items()}
                message = WebhookMessage(head, body)
                listener.tried.append(message)
                away = listener.refused < listener.refusing
                if away:
                    listener.refused += 1
                else:
                    listener.got.append(message)
                self.send_response(503 if away else 204)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # its name there
                """Print nothing: no test reads this log."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), WebhookHandler)

    @property
    def port(self) -> int:
        return int(self.server.server_address[1])

    @contextmanager
    def running(self) -> Iterator[None]:
        with self.server, in_a_thread(self.server):
            yield

    def events(self, approval: str) -> list[tuple[str, str]]:
        """Return type and state of each message about one request, in the order of arrival."""
        told = [message.event for message in self.got]
        return [
            (one["type"], one["data"]["state"]) for one in told if one["data"]["id"] == approval
        ]


class ApprovalServers(ReplicaProcesses):
    """Two replicas, an operator at the command line, and a receiver of webhooks."""

    def __init__(self, idp: Idp, folder: Path, storage: Mapping[str, str]) -> None:
        self.listener = WebhookReceiver()
        place = f"127.0.0.1:{self.listener.port}"
        (folder / "hook").write_text(f"whsec_{base64.b64encode(KEY).decode()}")
        super().__init__(
            idp,
            folder,
            storage,
            tools=Path(process_tools.__file__),
            network={"allow_hosts": [place]},
            approvals={
                "timeout_s": 60,
                "webhook": {"url": f"http://{place}/hook", "secret": "file:hook"},
            },
        )
        self.clients = [ResourceClient(f"http://127.0.0.1:{port}/mcp") for port in self.ports]
        for client in self.clients:
            client.authority = f"127.0.0.1:{self.port}"

    @contextmanager
    def running(self) -> Iterator[None]:
        with self.listener.running(), super().running():
            yield

    def rest(
        self, at: int, token: str, tool: str = "transfer", **arguments: Any
    ) -> tuple[int, Any]:
        """Pay by REST at one replica; return status and body."""
        body = json.dumps(arguments).encode()
        answer = self.clients[at].send("POST", f"/tool/{tool}/call", body=body, token=token)
        return answer.status, json.loads(answer.body)

    def mcp(self, at: int, token: str, **arguments: Any) -> Any:
        """Pay by MCP at one replica; return the document."""
        return json.loads(self.clients[at].call(token, "transfer", arguments).body)

    def operator(self, *arguments: str) -> str:
        """Return what `gatepost approvals …` prints for the tenant acme."""
        return self.attempt(0, *arguments)

    def attempt(self, code: int, *arguments: str) -> str:
        """Run a command that must end with that exit code; return what it prints."""
        command = ["approvals", *arguments, "--tenant", "acme"]
        done = CliRunner().invoke(main, [*command, "--config", "gatepost.toml"])
        assert done.exit_code == code, done.output
        return done.stderr if code else done.stdout

    def waiting(self) -> str:
        """Return the id of the only waiting request."""
        [_, line] = self.operator("list").splitlines()
        return line.split()[0]

    def paid(self, to: str) -> int:
        """Return how often *to* was paid."""
        marks = self.folder / "marks"
        lines = marks.read_text().splitlines() if marks.exists() else []
        return sum(line.split()[0] == to for line in lines)


@pytest.fixture(autouse=True)
def short_poll_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll often: a wake-up may be lost in every test, and none has to wait a second for it."""
    monkeypatch.setattr(waiting_call, "POLL_S", 0.02)


TASKS = {"extensions": {META + "tasks": {}}}


APPROVAL_SETTINGS = {"rules": [{"tools": ["pay"], "by": ["role:approver"]}]}


LATER_S = 2
"""A token of a sign-in this much later was issued after whatever a test has done meanwhile."""


class RevocationReplicas(BalancedReplicas):
    """The replicas, and a process that runs commands in their folder."""

    commands: CommandProcess

    def __init__(
        self, idp: Idp, folder: Path, storage: Mapping[str, str], shared_store: Valkey
    ) -> None:
        # This preset's tokens may say that they are a program's without naming a client.
        super().__init__(idp, folder, storage, preset="auth0", approvals=APPROVAL_SETTINGS)
        self.shared_store = shared_store
        self.issuer = idp.issuer("main")

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run both replicas, the balancer and the process that runs commands."""
        self.commands = CommandProcess(self.folder)
        try:
            with super().running():
                yield
        finally:
            self.commands.kill()

    @contextmanager
    def without_shared_store(self, *, really: bool = True) -> Iterator[None]:
        """Stop the shared store inside the block, so that nothing travels between the replicas."""
        if not really:
            yield
            return
        self.shared_store.stop()
        try:
            yield
        finally:
            self.shared_store.start()

    @asynccontextmanager
    async def service(self) -> AsyncIterator[ApprovalService]:
        """Open an approval service beside both replicas, for approvers who have signed in."""
        # The configuration names its key ring as a server sees it that runs there.
        with contextlib.chdir(self.folder):
            config, loaded_packs = checked_configuration(Path("gatepost.toml"))
            async with opened(config, loaded_packs, "acme") as services:
                yield services.service

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Wait until something that may be asked again and again is so."""
        async with asyncio.timeout(WITHIN_S):
            while not await condition():  # noqa: ASYNC110  # it is asked of other processes
                await asyncio.sleep(0.02)

    @asynccontextmanager
    async def later(self, **claims: Any) -> AsyncIterator[ReplicaClient]:
        """Return a client with a token of a new sign-in, after every order until now."""
        async with self.client(**claims, iat=int(time.time()) + LATER_S) as client:
            yield client


class OpenRequests:
    """One caller's warm token, streams, calls and task at one replica."""

    def __init__(self, replicas: RevocationReplicas, client: ReplicaClient, at: int) -> None:
        self.replicas, self.client, self.at = replicas, client, at
        self.names = {kind: f"{kind}-{replicas.name()}" for kind in ("modern", "legacy", "rest")}
        self.listener: ReplicaStream
        self.getter: ReplicaStream
        self.session = ""
        self.task = ""
        self.calls: dict[str, asyncio.Task[httpx2.Response]] = {}

    async def open(self, stack: AsyncExitStack) -> None:
        """Begin everything, and see that it has begun."""
        client, at = self.client, self.at
        await client.ask("server/discover", at=at)
        wanted = {"notifications": {"toolsListChanged": True}}
        head = client.mirrors("subscriptions/listen", wanted)
        body = client.modern("subscriptions/listen", wanted)
        listening = client.stream("POST", body, head, at=at)
        self.listener = await stack.enter_async_context(listening)
        await self.listener.until("notifications/subscriptions/acknowledged")
        self.session = await client.open("2025-11-25", at=at)
        getting = client.stream("GET", headers={"Mcp-Session-Id": self.session}, at=at)
        self.getter = await stack.enter_async_context(getting)
        for kind, name in self.names.items():
            self.calls[kind] = asyncio.create_task(self._call(kind, name))
            stack.callback(self.calls[kind].cancel)
        params = {"name": "rebuild", "arguments": {"name": self.names["modern"]}}
        task = await client.ask("tools/call", params, at=at, capabilities=TASKS)
        self.task = task["taskId"]
        for name in self.names.values():
            await self.replicas.marked(f"holding {name}")
        await self.replicas.marked(f"rebuilding {self.names['modern']}")

    async def _call(self, kind: str, name: str) -> httpx2.Response:
        client, at = self.client, self.at
        params = {"name": "hold", "arguments": {"name": name}}
        if kind == "modern":
            body = client.modern("tools/call", params).replace(b'"progressToken": 7', b'"x": 7')
            head = client.mirrors("tools/call", params) | {"Accept": "application/json"}
            return await client.send(body, head, at=at)
        if kind == "legacy":
            body, head = message("tools/call", params, 77), {"Mcp-Session-Id": self.session}
            return await client.send(body, head, at=at)
        url = client.url(at).replace("/mcp", "/tool/hold/call")
        return await client.send(json.dumps({"name": name}).encode(), {}, url=url)

    async def answers(self) -> dict[str, tuple[int, int | str]]:
        """Wait for the answer of each call; return their status and error."""
        told = {}
        for kind, call in self.calls.items():
            answer = await asyncio.wait_for(asyncio.shield(call), WITHIN_S)
            error = answer.json().get("error", "")
            told[kind] = (answer.status_code, error["code"] if isinstance(error, dict) else error)
        return told

    async def let_go(self) -> None:
        """Let the calls and the task come to their ends."""
        for name in self.names.values():
            self.replicas.let_go(name)


def are_stopped(replicas: RevocationReplicas, open_requests: OpenRequests) -> bool:
    """Tell whether the tools of its calls were stopped."""
    return all(replicas.marks(f"stopped {name}") == 1 for name in open_requests.names.values())


async def wait_for_end(stream: ReplicaStream) -> None:
    """Wait until the stream ends, whatever it says before."""
    try:
        while True:
            await stream.next()
    except AssertionError as end:
        assert "the stream ended" in str(end)  # noqa: PT017  # its one way to end


@pytest.fixture(scope="package")
def replicas(
    tmp_path_factory: pytest.TempPathFactory,
    postgres_server: Postgres,
    postgres_template: str,
) -> Iterator[RevocationReplicas]:
    folder = tmp_path_factory.mktemp("revocation")
    with (
        Idp() as idp,
        Valkey.running() as shared_store,
        postgres_server.database(like=postgres_template) as database,
    ):
        replicas = RevocationReplicas(
            idp, folder, {"database": database, "shared": shared_store.url()}, shared_store
        )
        with replicas.running():
            yield replicas
