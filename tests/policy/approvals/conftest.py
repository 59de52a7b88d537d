"""Two replicas whose payments need a person, an operator, and a receiver of webhooks."""

import base64
import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from gatepost.cli.main import main
from gatepost.policy.approvals import service
from tests.support import replica_tools
from tests.support.client import ResourceClient
from tests.support.issuers import Idp
from tests.support.proxies import in_a_thread
from tests.support.replicas import (
    ReplicaProcesses,
)

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
            tools=Path(replica_tools.__file__),
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
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wake-up may be lost in every test; none has to wait a second for that."""
    monkeypatch.setattr(service, "POLL_S", 0.02)


@pytest.fixture(autouse=True, scope="module")
def in_working_directory(working_directory: Path) -> None:
    """Servers keep their state where they are started."""
