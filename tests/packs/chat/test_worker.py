"""The worker that sends messages connects only through the server's proxy."""

import asyncio
import gc
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gatepost.outbound.http_client import OutboundClient
from gatepost_authz.config import Network
from gatepost_authz.fetch import Fetcher
from gatepost_packs.chat import worker
from gatepost_packs.child.connections import MAX_REQUESTS, WorkerConnections
from gatepost_packs.child.process import START_SCRIPT, ask
from tests.support.internet import PUBLIC, Internet

pytestmark = pytest.mark.requirement("P6")

HOOK_URL = "jsons://hook.web.test/a"
FORBIDDEN_ACTIONS = '''
import _socket
import os
import runpy
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

TRIES: dict[str, Callable[[], object]] = {
    "a file of the system": lambda: Path("/etc/hostname").read_text(),
    "a file of the system by its number": lambda: os.open("/etc/hostname", os.O_RDONLY),
    "a file of Python's, for writing": lambda: Path(os.__file__).with_name("written").touch(),
    "a file by a way around": lambda: (
        Path(os.__file__).parent / "../../../../etc/hosts"
    ).read_text(),
    "a program": lambda: subprocess.run(["/bin/true"]),
    "a program by a shell": lambda: os.system("true"),
    "another process": os.fork,
    "a connection past the client": lambda: _socket.socket().connect(("127.0.0.1", 9)),
    "a connection to a socket's file": lambda: _socket.socket(socket.AF_UNIX).connect("/run/x"),
    "a datagram": lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9)),
    "a port of its own": lambda: socket.socket().bind(("127.0.0.1", 0)),
    "a question to a name server": lambda: _socket.getaddrinfo("localhost", 80),
    "another way to ask it": lambda: socket.gethostbyname("localhost"),
}


def answer(request: Any) -> dict[str, str]:
    """What kind of error each try ended with, by its name; nothing for one that worked."""
    worker = runpy.run_path(request["worker"])
    ours, _ = socket.socketpair()
    worker["use_connections"](worker["ConnectionClient"](ours.detach()), "")
    worker["forbid"]()
    outcomes = {}
    for name, work in TRIES.items():
        outcomes[name] = ""
        try:
            work()
        except PermissionError as refusal:
            outcomes[name] = str(refusal)
    return outcomes
'''
"""Try in a worker what no message needs, and answer the outcome of each attempt."""


@pytest.fixture
def network(shared_internet: Internet) -> Network:
    """Return the operator's network settings."""
    shared_internet.reset()
    return Network(ca_bundle=str(shared_internet.company.bundle), proxy=shared_internet.proxy.url)


@pytest.fixture
async def client(shared_internet: Internet, network: Network) -> AsyncIterator[OutboundClient]:
    client = OutboundClient(
        network, tls=Fetcher(development=True, network=network).tls, resolver=shared_internet.names
    )
    yield client
    await client.aclose()


def certificates(network: Network) -> str:
    return Path(network.ca_bundle).read_text(encoding="ascii")


async def send_result(
    client: OutboundClient, url: str, *, trusted: bool = True
) -> tuple[Any, list[str]]:
    """Return the worker's answer, and why it was refused connections."""
    network = client.network
    worker_connections = WorkerConnections(client.client_for("acme"), network)
    ca = certificates(network) if trusted else ""
    request = {"url": url, "title": "", "body": "hello", "ca": ca, "max_parts": 1, "handle": 3}
    async with worker_connections.open():
        answer = await ask(
            Path(worker.__file__), request, timeout_s=30, handles=((worker_connections.handle, 3),)
        )
    return answer, [failure.failure.kind for failure in worker_connections.failures]


async def test_a_message_uses_the_checked_connection_of_every_request(
    shared_internet: Internet, client: OutboundClient
) -> None:
    """One look-up, a tunnel to the checked address, and a trusted certificate."""
    shared_internet.names.known["hook.web.test"] = [[PUBLIC], ["127.0.0.1"]]

    answer, failures = await send_result(client, HOOK_URL)

    assert (answer, failures) == ({"service": "JSON", "parts": 1, "of": 1, "status": None}, [])
    assert [(seen.scheme, seen.host, seen.path) for seen in shared_internet.site.seen] == [
        ("https", "hook.web.test", "/a")
    ]
    assert shared_internet.names.asked == ["hook.web.test"]
    assert shared_internet.proxy.asked == [f"CONNECT {PUBLIC}:443"]
    assert b"Proxy-Authorization: Basic " in shared_internet.proxy.head


async def test_an_untrusted_certificate_ends_the_request(
    shared_internet: Internet, client: OutboundClient
) -> None:
    """No byte of the message is sent."""
    answer, _ = await send_result(client, HOOK_URL, trusted=False)

    assert (answer["parts"], shared_internet.site.seen) == (0, [])


@pytest.mark.parametrize(
    ("url", "addresses", "failure"),
    [
        (HOOK_URL, [PUBLIC, "10.0.0.7"], "denied"),
        (HOOK_URL, ["169.254.169.254"], "denied"),
        ("json://hook.web.test/a", [PUBLIC], "denied"),
        ("jsons://hook.web.test:8443/a", [PUBLIC], None),
        ("mailtos://hook.web.test:26/?from=a@web.test", [PUBLIC], "denied"),
        ("jsons://nowhere.test/a", [], "upstream_unavailable"),
    ],
)
async def test_no_message_is_sent_to_a_refused_address(
    shared_internet: Internet,
    client: OutboundClient,
    url: str,
    addresses: list[str],
    failure: str | None,
) -> None:
    """It refuses private addresses, one among public ones, plain HTTP and other services' ports."""
    if addresses:
        shared_internet.names.known["hook.web.test"] = [addresses]

    answer, failures = await send_result(client, url)

    assert failures == ([failure] if failure else [])
    assert answer["parts"] == (0 if failure else 1)
    assert not failure or shared_internet.proxy.asked == []


REQUESTING_WORKER = """
import socket


def answer(request):
    server, answers = socket.socket(fileno=request["handle"]), []
    for text in request["requests"]:
        try:
            server.sendall(text.encode())
            answers.append(server.recv(1).decode())
        except OSError:
            answers.append("closed")
    return answers
"""
"""Send these texts as requests for connections, and answer what came for each."""

REFUSED_REQUEST = '{"scheme":"https","host":"127.0.0.1","port":1}'


@pytest.mark.parametrize(
    "malformed",
    [
        "{no",
        "[]",
        REFUSED_REQUEST * 2,
        '{"scheme":"gopher","host":"hook.web.test","port":443}',
        '{"scheme":"https","host":"hook.web.test","port":99999999999}',
        '{"scheme":"https","host":"hook.web.test/%s","port":443}' % ("a" * 100),
        '{"scheme":"https","host":"hook.web.test","port":"443"}',
    ],
)
async def test_a_malformed_request_ends_the_connections_of_its_worker_only(
    client: OutboundClient, tmp_path: Path, malformed: str
) -> None:
    """A library in the worker may be broken. The error reaches no log, and no other call."""
    program, errors = tmp_path / "requesting_worker.py", list[dict[str, Any]]()
    program.write_text(REQUESTING_WORKER, encoding="utf-8")
    asyncio.get_running_loop().set_exception_handler(lambda _, error: errors.append(error))

    async def answers(*requests: str) -> Any:
        connections = WorkerConnections(client.client_for("acme"), client.network)
        request = {"handle": 3, "requests": requests}
        async with connections.open():
            return await ask(program, request, timeout_s=30, handles=((connections.handle, 3),))

    assert (await answers(REFUSED_REQUEST, malformed, REFUSED_REQUEST))[:2] == ["-", ""]
    assert await answers(REFUSED_REQUEST) == ["-"]
    gc.collect()
    assert errors == []


async def test_a_worker_gets_a_limited_number_of_connections(
    client: OutboundClient, tmp_path: Path
) -> None:
    """It would take the server's time from all other calls."""
    program = tmp_path / "requesting_worker.py"
    program.write_text(REQUESTING_WORKER, encoding="utf-8")
    connections = WorkerConnections(client.client_for("acme"), client.network)
    request = {"handle": 3, "requests": [REFUSED_REQUEST] * (MAX_REQUESTS + 2)}
    async with connections.open():
        answers = await ask(
            program, request, timeout_s=30, handles=((connections.handle, 3),), max_values=2_000
        )

    assert answers[:MAX_REQUESTS] == ["-"] * MAX_REQUESTS
    assert set(answers[MAX_REQUESTS:]) <= {"", "closed"}


def test_a_worker_refuses_every_other_action(tmp_path: Path) -> None:
    """The interpreter itself enforces it, also without confinement by the kernel."""
    actions = tmp_path / "forbidden_actions.py"
    actions.write_text(FORBIDDEN_ACTIONS, encoding="utf-8")
    request = {"path": sys.path, "request": {"worker": worker.__file__}}
    command = [sys.executable, "-I", START_SCRIPT, str(actions), "30"]

    ended = subprocess.run(
        command, input=json.dumps(request).encode(), capture_output=True, timeout=30, check=True
    )

    outcomes = json.loads(ended.stdout)
    assert len(outcomes) == 13
    assert all(
        outcome.endswith("not allowed here") or "to messages" in outcome
        for outcome in outcomes.values()
    )
