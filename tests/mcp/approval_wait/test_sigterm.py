"""A server that is told to stop while calls wait for a person; its drain lasts ten minutes."""

import contextlib
import http.client
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gatepost.secrets.keyring import create
from tests.support.client import modern_request, session_call
from tests.support.commands import ServerProcess, completed, server_process
from tests.support.issuers import Idp
from tests.support.measuring import eventually
from tests.support.server import issuer_settings

WITHIN_S = 60
DRAIN_S = 600
META = "io.modelcontextprotocol/"
PAGES = {f"{META}clientCapabilities": {"elicitation": {"url": {}}}}
PLAIN_JSON = ("Accept", "application/json")
EVENTS = ("Accept", "application/json, text/event-stream")
# In the server alone, with keep-alive messages an hour apart: nothing but the stop ends a wait.
TOOL = '''
from gatepost import CallContext, Pack
from gatepost.mcp import client as mcp_client

mcp_client.KEEP_ALIVE_S = mcp_client.HOLD_S = 3600.0

pack = Pack("seldom")


@pack.tool(approval=True)
async def sign(ctx: CallContext, label: str) -> str:
    """Sign something, once a person has approved it."""
    return f"signed {label}"
'''


@contextlib.contextmanager
def served(idp: Idp, folder: Path) -> Iterator[ServerProcess]:
    """Run a server with a dashboard, whose state outlives it."""
    (folder / "seldom.py").write_text(TOOL, encoding="utf-8")
    (folder / "secret").write_text("a-secret-of-the-dashboard", encoding="utf-8")
    page = {"client_id": "gatepost-dashboard", "client_secret": f"file:{folder / 'secret'}"}
    roles = {"approver": {"claim": "roles", "value": "approver"}}
    settings: dict[str, Any] = {
        "tenancy": {"create_on_first_use": True},
        "tools": {"load": ["./seldom.py"]},
        "keys": {"ring": "file:keyring.json"},
        "storage": {"database": "sqlite:///gatepost.db"},
        # A person who thinks it over, so that no time limit answers in place of the stop.
        "approvals": {"timeout_s": DRAIN_S},
    }
    issuers = [issuer_settings(idp, dashboard=page, roles=roles)]
    drain = {"GATEPOST_LISTEN__DRAIN_S": str(DRAIN_S)}
    with server_process(idp, folder, issuers, env=drain, **settings) as server:
        yield server


class SigtermCaller:
    """A connection of its own for one call."""

    def __init__(self, server: ServerProcess, token: str) -> None:
        self._path = server.client.path
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._connection = http.client.HTTPConnection(
            "127.0.0.1", server.client.port, timeout=WITHIN_S
        )

    def __enter__(self) -> "SigtermCaller":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def say(self, fields: list[tuple[str, str]], body: bytes) -> None:
        """Send one request without waiting for its answer."""
        self._connection.request("POST", self._path, body, self._headers | dict(fields))

    def result(self) -> Any:
        """Return the result of the request, from the answer or the last event of its stream."""
        answer = self._connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        if (answer.getheader("content-type") or "").startswith("text/event-stream"):
            events = [line for line in body.splitlines() if line.startswith(b"data: {")]
            assert events, body
            body = events[-1].removeprefix(b"data: ")
        return json.loads(body)["result"]


def call(label: str, **more: Any) -> tuple[list[tuple[str, str]], bytes]:
    """Return a call of 2026-07-28."""
    return modern_request("tools/call", {"name": "sign", "arguments": {"label": label}, **more})


def gatepost(folder: Path, *words: str) -> str:
    code, output, complaints = completed("approvals", *words, "--tenant", "acme", cwd=folder)
    assert code == 0, complaints
    return output


def waiting_rows(folder: Path) -> list[str]:
    """Return the waiting requests, as the command line lists them."""
    return [row for row in gatepost(folder, "list").splitlines() if "sign" in row]


@pytest.mark.requirement("A7", "N23")
def test_a7_sigterm_answers_every_waiting_call(idp: Idp, tmp_path: Path) -> None:
    """Each answer is complete; an approval given while no server runs is found by the next call."""
    create(tmp_path / "keyring.json")
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(served(idp, tmp_path))
        token = server.token()
        held_call, round_two, silent, old = callers = [
            stack.enter_context(SigtermCaller(server, token)) for _ in range(4)
        ]
        held_call.say(*call("held"))
        fields, body = call("silent")
        silent.say([*fields, PLAIN_JSON], body)
        session = [("Mcp-Session-Id", server.client.open(token)), EVENTS]
        old.say(session, session_call("sign", {"label": "old"}))
        round_two.say(*call("round", _meta=PAGES))
        result = round_two.result()
        (key,) = result["inputRequests"]
        responses = {key: {"action": "accept"}}
        more = {"inputResponses": responses, "requestState": result["requestState"], "_meta": PAGES}
        round_two.say(*call("round", **more))
        eventually(lambda: len(waiting_rows(tmp_path)) == len(callers), within=WITHIN_S)
        server.process.process.send_signal(signal.SIGTERM)
        answers = [caller.result() for caller in callers]

        assert server.process.process.wait(WITHIN_S) == 0
        assert [answer["isError"] for answer in answers] == [True] * len(callers)
        for answer in answers:
            assert "waits for a person's approval" in answer["content"][0]["text"]
        assert "without completing" not in server.process.output

    for row in waiting_rows(tmp_path):
        digest = gatepost(tmp_path, "show", row.split()[0]).partition("--digest ")[2].split()[0]
        gatepost(tmp_path, "approve", row.split()[0], "--digest", digest)
    with served(idp, tmp_path) as server, SigtermCaller(server, server.token()) as again:
        again.say(*call("held"))

        assert again.result()["content"][0]["text"] == "signed held"
