"""Hostile upstreams, each at a path of its own, and a gate in front with two tenants."""

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.client import RawAnswer, RestAnswer, RestClient, request
from tests.support.internet import ScriptedServer, result_answer
from tests.support.issuers import AsgiServer, Idp, Receive, Scope, Send
from tests.support.server import Server, issuer_settings, running_server

ADMIN = "gatepost:admin"
SERVERS, AGENTS = "/v1/mcp-servers", "/v1/agents"
META = "io.modelcontextprotocol/"
FORMS = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}
WITHIN_S = 30
Answers = Mapping[str, Any]
NOTHING_MORE: Answers = {}
LAG_S = 2.0
"""How long the gate's event loop may stand still; other work shares the machine."""


def tool(name: str = "act", **more: Any) -> dict[str, Any]:
    """Return a tool as an upstream lists it."""
    return {"name": name, "description": "Act.", "inputSchema": {"type": "object"}} | more


def text_result(text: str) -> dict[str, Any]:
    """Return the result of a tool that answers with a text."""
    return {"content": [{"type": "text", "text": text}]}


class HostileUpstream:
    """An ASGI app with a scripted server at `/{name}/mcp`."""

    def __init__(self) -> None:
        self.upstreams: dict[str, ScriptedServer] = {}
        self.unknown_paths: list[str] = []
        """The requested paths that have no server."""

    def upstream(self, name: str) -> ScriptedServer:
        """Return a new well-behaved server with the tool `act`."""
        made = self.upstreams[name] = ScriptedServer()
        made.answers["tools/list"] = result_answer({"tools": [tool()]})
        made.answers["tools/call"] = result_answer(text_result(f"done by {name}"))
        return made

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        upstream = self.upstreams.get(scope["path"].split("/")[1])
        if upstream is None:
            self.unknown_paths.append(scope["path"])
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await upstream(scope, receive, send)


class UpstreamUser(RestClient):
    """A user of one tenant, over REST and MCP."""

    def names(self) -> list[str]:
        """Return the tools of all pages over MCP: over REST there may be too many."""
        found: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            page = self.rpc("tools/list", cursor)["result"]
            found += [one["name"] for one in page["tools"]]
            if not page.get("nextCursor"):
                return found
            cursor = {"cursor": page["nextCursor"]}

    def rpc(self, method: str, params: Mapping[str, Any], declared: Any = FORMS) -> Any:
        """Return the JSON-RPC answer to a request of the modern era."""
        meta = {META + "clientCapabilities": declared}
        raw = self.server.client.ask(self.token, method, {**params, "_meta": meta})
        assert raw.status in {200, 400}, raw
        return answer_in(raw)

    def run(self, name: str, arguments: Any = None, **more: Any) -> Any:
        """Send a `tools/call` and return the answer."""
        return self.rpc("tools/call", {"name": name, "arguments": arguments or {}, **more})

    def register(self, name: str, url: str, **fields: Any) -> str:
        """Register a server and fetch what it offers; return its id."""
        made = self.ask("POST", SERVERS, {"name": name, "url": url, **fields})
        assert made.status == 201, made
        identity: str = made.json["id"]
        return identity

    def refresh(self, identity: str) -> RestAnswer:
        return self.ask("POST", f"{SERVERS}/{identity}/refresh")


def answer_in(raw: RawAnswer) -> Any:
    """Return the last message of an answer, as JSON or as a stream."""
    text = raw.body.decode()
    if raw.field("content-type") == "application/json":
        return json.loads(text)
    return json.loads([line[6:] for line in text.splitlines() if line.startswith("data: {")][-1])


class UpstreamDeployment:
    """The gate, the upstreams, and the people of `acme` and `globex`."""

    def __init__(self, gate: Server, upstream_app: HostileUpstream, origin: str) -> None:
        self.gate, self.upstream_app, self.origin = gate, upstream_app, origin

    def url(self, name: str) -> str:
        return f"{self.origin}/{name}/mcp"

    def of(self, tenant: str, *names: str, **claims: Any) -> UpstreamUser:
        """Return an administrator of a tenant who may use these upstreams."""
        scopes = " ".join([ADMIN, *(f"mcp:{name}" for name in ("good", *names))])
        return UpstreamUser(
            self.gate, self.gate.token(**{"org_id": tenant, "scope": scopes} | claims)
        )

    def registered(
        self,
        name: str,
        tenant: str = "acme",
        *,
        answers: Answers = NOTHING_MORE,
        sessions: Iterable[str] | None = None,
        **fields: Any,
    ) -> tuple[ScriptedServer, UpstreamUser, str]:
        """
        Return a new upstream of a tenant, its user, and its id.

        The gate may ask it at once: *answers* by method, and *sessions* as `has_sessions` takes
        them, are there before.
        """
        upstream = self.upstream_app.upstream(name)
        if sessions is not None:
            upstream.has_sessions(*sessions)
        upstream.answers |= answers
        person = self.of(tenant, name)
        return upstream, person, person.register(name, self.url(name), **fields)

    def others_go_on(self) -> None:
        """Assert that calls of another upstream and another tenant are answered at once."""
        for tenant in ("acme", "globex"):
            person, began = self.of(tenant), time.monotonic()
            answer = person.call("mcp_good__act")
            assert (answer.status, "done by good" in str(answer.json)) == (200, True), answer
            assert time.monotonic() - began < WITHIN_S / 3

    def until(self, condition: Callable[[], object]) -> None:
        """Wait until something holds that the gate does in the background."""
        end = time.monotonic() + WITHIN_S
        while not condition():
            assert time.monotonic() < end, "it did not happen in time"
            self.pause()

    def pause(self) -> None:
        """Let the gate's loop turn for a moment."""
        self.gate.run(asyncio.sleep(0.02))

    def offered(self, person: UpstreamUser, name: str) -> None:
        """Wait until a tool is listed."""
        self.until(lambda: name in person.names())

    @contextmanager
    def never_stands_still(self) -> Iterator[None]:
        """Assert that the gate's event loop runs all the time inside the block."""
        loop, lags, running = self.gate.loop, [0.0], [True]

        def beat(due: float) -> None:
            now = loop.time()
            lags.append(now - due)
            if running[0]:
                loop.call_later(0.02, beat, now + 0.02)

        loop.call_soon_threadsafe(beat, loop.time())
        try:
            yield
        finally:
            running[0] = False
        assert max(lags) < LAG_S, f"the loop stood still for {max(lags):.1f} s"


def begun_call(user: UpstreamUser, name: str, arguments: bytes = b"{}") -> socket.socket:
    """Send a call and return its connection, from which no answer is read."""
    client = user.server.client
    head = [("Host", client.authority), ("Authorization", f"Bearer {user.token}")]
    head += [("Content-Type", "application/json"), ("Content-Length", str(len(arguments)))]
    connection = socket.create_connection(("127.0.0.1", client.port), timeout=WITHIN_S)
    connection.sendall(request("POST", f"/tool/{name}/call", head, arguments))
    return connection


def outcome_of(answer: RestAnswer) -> tuple[int, str]:
    """Return the status and the error code of a REST answer, `ok` without an error."""
    return answer.status, answer.json.get("error", "ok") if isinstance(answer.json, dict) else "ok"


@contextmanager
def deployment_of(
    idp: Idp,
    good: Mapping[str, Any] = NOTHING_MORE,
    hosts: Sequence[str] = (),
    more: Sequence[Mapping[str, Any]] = (),
    **settings: Any,
) -> Iterator[UpstreamDeployment]:
    """
    Serve a deployment with one good upstream that the configuration gives both tenants.

    *good* are further settings of it, *hosts* are others that the gate may reach, and *more* are
    further upstreams.
    """
    upstream_app = HostileUpstream()
    upstream_app.upstream("good")
    with AsgiServer(upstream_app) as server:
        tables = [
            {"name": "good", "tenants": ["*"], "url": f"{server.url}/good/mcp", **good},
            *more,
        ]
        with running_server(
            idp,
            [issuer_settings(idp)],
            tenancy={"create_on_first_use": True},
            network={"allow_hosts": [server.place, *hosts]},
            scopes={"admin": ADMIN},
            **{"upstreams": tables} | settings,
        ) as gate:
            scene = UpstreamDeployment(gate, upstream_app, server.url)
            for tenant in ("acme", "globex"):
                scene.offered(scene.of(tenant), "mcp_good__act")
            yield scene


@pytest.fixture(scope="module")
def deployment(idp: Idp) -> Iterator[UpstreamDeployment]:
    with deployment_of(idp) as made:
        yield made
