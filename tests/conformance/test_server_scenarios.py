"""The official conformance suite through a gate, in front of a server that passes all of it."""

import binascii
import json
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.architecture.source import ROOT
from tests.conformance.test_official_suite import PROGRAM, SCENARIO_SELECTIONS, Check, run_suite
from tests.support import commands
from tests.support.client import RestClient
from tests.support.issuers import AsgiServer, Idp
from tests.support.processes import Process, free_port, python_environment
from tests.support.programs import Program, environment, loaded
from tests.support.proxies import TokenProxy, with_token
from tests.support.server import issuer_settings, running_server

NAME = "suite"
PREFIX = f"mcp_{NAME}__"
NAMED_METHODS = {"tools/call", "prompts/get"}
"""The methods whose `name` the gate has changed."""
ENCODING = "=?base64?", "?="


class SuiteNames:
    """
    Stands before a gate and adds its prefix to the names of tools and prompts in requests.

    The prefix is removed from answers. The suite knows its tools by fixed names, and the gate adds
    the upstream's name to each. Nothing else of a request or an answer is changed.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = await body_of(receive)
        renamed, method = request_renamed(body)
        headers = [
            (
                name,
                header_renamed(value) if name == b"mcp-name" and method in NAMED_METHODS else value,
            )
            for name, value in scope["headers"]
        ]
        pending = [renamed]

        async def received() -> Message:
            if pending:
                return {"type": "http.request", "body": pending.pop(), "more_body": False}
            return await receive()

        await self._app({**scope, "headers": headers}, received, AnswerRenamer(send))


class AnswerRenamer:
    """Removes the prefix from an answer, also where it is split between two chunks."""

    def __init__(self, send: Send) -> None:
        self._send, self._held = send, b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [header for header in message["headers"] if header[0] != b"content-length"]
            await self._send({**message, "headers": headers})
            return
        data = (self._held + message.get("body", b"")).replace(PREFIX.encode(), b"")
        self._held = b""
        if message.get("more_body"):
            data, self._held = split_before(data, PREFIX.encode())
        await self._send({**message, "body": data})


def split_before(data: bytes, word: bytes) -> tuple[bytes, bytes]:
    """Split off the end of *data* that may be the beginning of *word*."""
    for length in range(min(len(word) - 1, len(data)), 0, -1):
        if word.startswith(data[-length:]):
            return data[:-length], data[-length:]
    return data, b""


def request_renamed(body: bytes) -> tuple[bytes, str]:
    """Return a request with the gate's names, and its method; leave anything else as it is."""
    try:
        message: Any = json.loads(body)
        method, params = message["method"], message["params"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return body, ""
    if not isinstance(params, dict):
        return body, str(method)
    named = params if method in NAMED_METHODS else params.get("ref")
    if not isinstance(named, dict) or not isinstance(named.get("name"), str):
        return body, str(method)
    named["name"] = PREFIX + named["name"]
    return json.dumps(message).encode(), str(method)


def header_renamed(value: bytes) -> bytes:
    """Return an `Mcp-Name` with the gate's name, in the encoding that it had."""
    text = value.decode("latin-1")
    if not (text.startswith(ENCODING[0]) and text.endswith(ENCODING[1])):
        return PREFIX.encode() + value
    try:
        plain = b64decode(text.removeprefix(ENCODING[0]).removesuffix(ENCODING[1]), validate=True)
    except binascii.Error:
        return value
    return f"{ENCODING[0]}{b64encode(PREFIX.encode() + plain).decode()}{ENCODING[1]}".encode()


async def body_of(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


@contextmanager
def with_suite_names(endpoint: str, token: str) -> Iterator[str]:
    """Run both proxies in front of a gate; yields the endpoint for the suite, on `localhost`."""
    port = free_port()
    own, parts = f"http://localhost:{port}", urlsplit(endpoint)
    upstream = f"{parts.scheme}://{parts.netloc}"
    app = SuiteNames(TokenProxy(own=own, upstream=upstream, token=token))
    with AsgiServer(app, port=port, lifespan="on"):
        yield f"{own}{parts.path}"


LISTED_S = 20
LASTING_S = 3_600
"""How long the caller's token is good: longer than all selections take."""
SCOPE = f"mcp:{NAME}"
POLLING_REASON = (
    "the fixture closes its own stream before the answer; a stream ends at the gate, which resumes "
    "the fixture's stream itself and gives its caller the whole answer at once"
)
KEYS = (
    "it wants the fixture's own keys; keys mean nothing to clients, and the gate numbers the "
    "questions of upstreams, so that no key of a stranger meets one of its own"
)
ERA = (
    "the fixture's tool asks on the stream of a session and cannot ask in 2026-07-28; the "
    "gate speaks the newest revision with a server that has several"
)
UNDONE_REASON = (
    "the fixture adds a tool, announces it and removes it again; the gate announces changes of its "
    "own list, and that is the same afterwards"
)
LOST_SCENARIOS = {
    "own": {
        ("2025-11-25", "server-sse-polling"): POLLING_REASON,
        ("extensions", "server-sse-polling"): POLLING_REASON,
        ("2026-07-28", "input-required-result-basic-elicitation"): KEYS,
    },
    "sdk": {
        ("2025-06-18", "tools-call-elicitation"): ERA,
        ("2025-06-18", "tools-call-sampling"): ERA,
        ("2025-11-25", "tools-call-elicitation"): ERA,
        ("2025-11-25", "tools-call-sampling"): ERA,
        ("2025-11-25", "elicitation-sep1034-defaults"): ERA,
        ("2025-11-25", "elicitation-sep1330-enums"): ERA,
        ("2026-07-28", "input-required-result-basic-elicitation"): KEYS,
        ("2026-07-28", "server-stateless"): UNDONE_REASON,
    },
}
"""By fixture, selection and scenario: why it is lost behind a gate, although the server passes."""


class ConformanceUrls(NamedTuple):
    """Where the suite asks: the fixture server itself, and the gate in front of it."""

    fixture: str
    direct: str
    gate: str


class Fixture(NamedTuple):
    """A running fixture server."""

    name: str
    url: str
    token: str
    """Empty: it asks for none."""


@contextmanager
def own_fixture(folder: Path) -> Iterator[Fixture]:
    """Serve `tests/conformance/serve`, which also has tasks and skills."""
    command = [str(ROOT / "tests/conformance/serve"), str(free_port()), str(folder / "state")]
    process = Process(command, env=python_environment({"PYTHONPATH": ":".join(sys.path)}))
    try:
        url = process.wait_for(commands.READY_LINE)["url"]
        yield Fixture("own", url, commands.token(folder, "--tenant", "acme"))
    finally:
        process.kill()


@contextmanager
def sdk_fixture(folder: Path) -> Iterator[Fixture]:
    """Serve the everything server of the official Python SDK."""
    port = free_port()
    script = str(Path(__file__).with_name("sdk_fixture") / "server.py")
    process = Process([sys.executable, script, "--port", str(port)], env=python_environment())
    try:
        process.wait_for("Uvicorn running")
        yield Fixture("sdk", f"http://localhost:{port}/mcp", "")
    finally:
        process.kill()


FIXTURES = {"own": own_fixture, "sdk": sdk_fixture}


@contextmanager
def direct_endpoint(fixture: Fixture) -> Iterator[str]:
    """Yield the endpoint of a fixture server as the suite asks it, without a token."""
    if not fixture.token:
        yield fixture.url
        return
    with with_token(fixture.url, fixture.token) as endpoint:
        yield endpoint


@pytest.fixture(scope="module", params=FIXTURES)
def endpoints(
    request: pytest.FixtureRequest, idp: Idp, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ConformanceUrls]:
    """Serve a fixture server, and a gate with it as its upstream."""
    folder = tmp_path_factory.mktemp("fixture")
    with FIXTURES[request.param](folder) as fixture:
        upstream: dict[str, Any] = {
            "name": NAME,
            "tenants": ["*"],
            "url": fixture.url,
            "allow": ["elicitation", "sampling", "roots", "logging"],
            "trusted": True,
        }
        if fixture.token:
            key = folder / "key"
            key.write_text(fixture.token, encoding="utf-8")
            key.chmod(0o600)
            upstream["api_key"] = f"file:{key}"
        with (
            direct_endpoint(fixture) as endpoint,
            running_server(
                idp,
                [issuer_settings(idp)],
                tenancy={"create_on_first_use": True},
                network={"allow_hosts": [fixture.url.split("/")[2]]},
                tools={"packs": [], "load": []},
                upstreams=[upstream],
            ) as gate,
        ):
            caller = gate.token(org_id="acme", scope=SCOPE, exp=int(time.time()) + LASTING_S)
            wait_until_listed(RestClient(gate, caller))
            with with_suite_names(gate.client.resource, caller) as through:
                yield ConformanceUrls(fixture.name, endpoint, through)


def wait_until_listed(rest_client: RestClient) -> None:
    """Return once the gate offers the fixture's tools."""
    until = time.monotonic() + LISTED_S
    while f"{PREFIX}test_simple_text" not in (names := rest_client.names()):
        assert time.monotonic() < until, names


def is_passed(checks: list[Check]) -> bool:
    """Return whether a scenario has a check that succeeds and none that fails."""
    statuses = {check.status for check in checks}
    return "SUCCESS" in statuses and "FAILURE" not in statuses


@pytest.fixture(scope="module")
def suite() -> Iterator[Program]:
    with loaded(PROGRAM, environment()) as program:
        yield program


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIO_SELECTIONS)
def test_no_scenario_fails_behind_the_gate(
    suite: Program, endpoints: ConformanceUrls, tmp_path: Path, name: str
) -> None:
    """Each scenario that passes without the gate passes with it, except `LOST_SCENARIOS`."""
    selection, count = SCENARIO_SELECTIONS[name]

    scenarios_found = {}
    for channel_name, url in (("direct", endpoints.direct), ("gate", endpoints.gate)):
        (tmp_path / channel_name).mkdir()
        scenarios_found[channel_name] = run_suite(suite, url, tmp_path / channel_name, *selection)

    assert len(scenarios_found["direct"]) == len(scenarios_found["gate"]) == count
    lost = {
        scenario: [
            check for check in scenarios_found["gate"][scenario] if check.status != "SUCCESS"
        ]
        for scenario, checks in scenarios_found["direct"].items()
        if is_passed(checks) and not is_passed(scenarios_found["gate"][scenario])
    }
    lost_here = {
        scenario for selected, scenario in LOST_SCENARIOS[endpoints.fixture] if selected == name
    }
    assert set(lost) == lost_here, lost
