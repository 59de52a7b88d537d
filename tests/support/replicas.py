"""Replicas of `gatepost serve` that can be killed, and clients of one of them or of a balancer."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import httpx2

from gatepost.secrets.keyring import create
from tests.support import tools as process_tools
from tests.support.client import MODERN_REVISION, message
from tests.support.commands import READY_LINE, Gatepost, toml_file
from tests.support.issuers import Idp, TokenFactory
from tests.support.measuring import eventually
from tests.support.processes import free_port, python_environment
from tests.support.proxies import balanced
from tests.support.server import configuration, issuer_settings

WITHIN_S = 30
LEASE_S = 2.0
META = "io.modelcontextprotocol/"
Event = dict[str, Any]

COMMAND = [sys.executable, "-m", "gatepost", "serve", "--config", "gatepost.toml"]


class ReplicaProcesses:
    """
    Two replicas, numbered 0 and 1, that run in one folder; with more `ports`, more of them.

    *tools* is the file of their tools, which find the folder as their working directory. *port* is
    the resource's: a balancer's, or (None) the first replica's. *preset* says how its issuer writes
    tokens; *settings* are further tables of the configuration.
    """

    def __init__(
        self,
        idp: Idp,
        folder: Path,
        storage: Mapping[str, str],
        *,
        tools: Path,
        port: int | None = None,
        preset: str = "generic",
        **settings: Any,
    ) -> None:
        self.folder = folder
        self.ports = [free_port(), free_port()]
        self.port = self.ports[0] if port is None else port
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self.servers: list[Gatepost] = []
        table = {"acme": "acme", "globex": "globex"}
        trusted = issuer_settings(idp, tenants=table, preset=preset)
        self._forge = TokenFactory(trusted["issuer"], self.url)
        create(folder / "keyring.json")
        configured = configuration(
            self.port,
            [trusted],
            storage=dict(storage),
            keys={"ring": "file:keyring.json"},
            tools={"load": [str(tools)]},
            **settings,
        )
        (folder / "gatepost.toml").write_text(toml_file(configured), encoding="utf-8")

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run all replicas during the block."""
        try:
            # All before any is waited for: most of a start is the interpreter's.
            self.servers += [self._begun(number) for number in range(len(self.ports))]
            for server in self.servers:
                server.wait_for(READY_LINE)
            yield
        finally:
            for server in self.servers:
                server.kill()

    def kill(self, number: int) -> None:
        """End a replica without a word, as a machine ends that loses its power."""
        self.servers[number].kill()

    def restart(self, number: int) -> None:
        """Start a replica again at its old address."""
        self.kill(number)
        self.servers[number] = self._begun(number)
        self.servers[number].wait_for(READY_LINE)

    def token(self, **claims: Any) -> str:
        """Return a token for the resource; the same person's unless *claims* say otherwise."""
        return self._forge.token(**claims)

    def _begun(self, number: int) -> Gatepost:
        environment = {"GATEPOST_LISTEN__PORT": str(self.ports[number])}
        return Gatepost(COMMAND, env=python_environment(environment), cwd=self.folder)


class BalancedReplicas(ReplicaProcesses):
    """Two replicas of one resource, and the balancer whose address the resource is."""

    def __init__(
        self,
        idp: Idp,
        folder: Path,
        storage: Mapping[str, str],
        *,
        tools: Path = Path(process_tools.__file__),
        **settings: Any,
    ) -> None:
        super().__init__(
            idp,
            folder,
            storage,
            tools=tools,
            port=free_port(),
            tasks={"lease_s": LEASE_S},
            **settings,
        )
        self._names = count()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run both replicas and the balancer during the block."""
        origins = [f"http://127.0.0.1:{port}" for port in self.ports]
        with super().running(), balanced(origins, self.port):
            yield

    def name(self) -> str:
        """Return a name that no other test of these replicas uses."""
        return f"n{next(self._names)}"

    def let_go(self, name: str) -> None:
        """Let the tools that wait for this name go on."""
        (self.folder / f"go-{name}").touch()

    def marks(self, word: str) -> int:
        """Count how often a tool has left this mark."""
        file = self.folder / "marks"
        return file.read_text().splitlines().count(word) if file.exists() else 0

    async def marked(self, word: str, times: int = 1) -> None:
        """Wait until it has been left so often."""
        await asyncio.to_thread(eventually, lambda: self.marks(word) >= times, within=WITHIN_S)

    @asynccontextmanager
    async def client(self, **claims: Any) -> AsyncIterator["ReplicaClient"]:
        """Open a client with a token, of the same person each time unless *claims* differ."""
        headers = {
            "Authorization": f"Bearer {self.token(**claims)}",
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
            "Host": f"127.0.0.1:{self.port}",
        }
        limits = httpx2.Limits(max_keepalive_connections=0)
        async with httpx2.AsyncClient(
            headers=headers, timeout=WITHIN_S, limits=limits, trust_env=False
        ) as http:
            yield ReplicaClient(self, http)


class ReplicaClient:
    """Sends requests to a replica by its number, or (None) through the balancer."""

    def __init__(self, replicas: BalancedReplicas, http: httpx2.AsyncClient) -> None:
        self._replicas = replicas
        self._http = http
        self._ids = count(1)

    def url(self, at: int | None) -> str:
        return (
            self._replicas.url
            if at is None
            else self._replicas.url.replace(
                f":{self._replicas.port}/", f":{self._replicas.ports[at]}/"
            )
        )

    async def ask(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        at: int | None = None,
        capabilities: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Send a request of 2026-07-28 and return its result; assert that it is no error."""
        answer = await self._http.post(
            self.url(at),
            content=self.modern(method, params, capabilities),
            headers={**self.mirrors(method, params), **(headers or {})},
        )
        document = json.loads(answer.content)
        assert "result" in document, document
        return document["result"]

    async def say(self, at: int | None = None) -> str:
        """Return what the tool `pid` answers, as proof that a replica is there."""
        answer = await self.ask("tools/call", {"name": "pid", "arguments": {}}, at=at)
        return str(answer["content"][0]["text"])

    def modern(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        capabilities: Mapping[str, Any] | None = None,
    ) -> bytes:
        """Return the body of a request of 2026-07-28."""
        meta = {
            META + "protocolVersion": MODERN_REVISION,
            META + "clientCapabilities": capabilities or {},
            "progressToken": 7,
        }
        if method != "tools/call":
            del meta["progressToken"]
        return message(method, {**(params or {}), "_meta": meta}, next(self._ids))

    @staticmethod
    def mirrors(method: str, params: Mapping[str, Any] | None) -> dict[str, str]:
        """Return the headers that mirror a request."""
        found = {"MCP-Protocol-Version": MODERN_REVISION, "Mcp-Method": method}
        for member in ("name", "uri", "taskId"):
            if params and member in params:
                found["Mcp-Name"] = str(params[member])
        return found

    async def open(self, version: str, at: int | None = None, **capabilities: Any) -> str:
        """Open a new session and return its id."""
        params = {
            "protocolVersion": version,
            "capabilities": capabilities,
            "clientInfo": {"name": "replicas", "version": "1"},
        }
        answer = await self._http.post(
            self.url(at), content=message("initialize", params, next(self._ids))
        )
        assert answer.status_code == 200, answer.content
        return str(answer.headers["mcp-session-id"])

    async def within(
        self,
        session: str,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        at: int | None = None,
        identity: int | None = None,
    ) -> httpx2.Response:
        """Send one request of a session."""
        body = message(method, params, identity or next(self._ids))
        return await self._http.post(
            self.url(at), content=body, headers={"Mcp-Session-Id": session}
        )

    async def send(
        self, body: bytes, headers: Mapping[str, str], *, at: int | None = None, url: str = ""
    ) -> httpx2.Response:
        """Send any POST, to the endpoint unless *url* says otherwise."""
        return await self._http.post(url or self.url(at), content=body, headers=dict(headers))

    async def get(self, headers: Mapping[str, str], *, at: int | None = None) -> httpx2.Response:
        """Send a GET that the endpoint refuses: a stream would be waited for to its end."""
        return await self._http.get(self.url(at), headers=dict(headers))

    async def post(self, session: str, body: Mapping[str, Any], *, at: int | None = None) -> int:
        """Post a notification or a response of a session; return the status of the answer."""
        answer = await self._http.post(
            self.url(at), content=json.dumps(body).encode(), headers={"Mcp-Session-Id": session}
        )
        return answer.status_code

    async def delete(self, session: str, at: int | None = None) -> int:
        """End a session."""
        answer = await self._http.delete(self.url(at), headers={"Mcp-Session-Id": session})
        return answer.status_code

    @asynccontextmanager
    async def stream(
        self,
        verb: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        at: int | None = None,
    ) -> AsyncIterator["ReplicaStream"]:
        """Yield an event stream; leaving the block hangs up."""
        async with self._http.stream(
            verb, self.url(at), content=body, headers=dict(headers or {})
        ) as answer:
            assert answer.status_code == 200, await answer.aread()
            yield ReplicaStream(answer)


class ReplicaStream:
    """The messages of an open event stream."""

    def __init__(self, answer: httpx2.Response) -> None:
        self._lines = answer.aiter_lines()
        self.last_id = ""

    async def next(self) -> Event:
        """Return the next message; raise if the stream ends or no message comes in time."""
        return await asyncio.wait_for(self._next(), WITHIN_S)

    async def until(self, method: str) -> Event:
        """Return the next message of that method; "" is a response."""
        while True:
            event = await self.next()
            if event.get("method", "") == method:
                return event

    async def _next(self) -> Event:
        async for line in self._lines:
            if line.startswith("id:"):
                self.last_id = line[3:].strip()
            if line.startswith("data:") and line[5:].strip():
                found: Event = json.loads(line[5:])
                return found
        raise AssertionError("the stream ended")
