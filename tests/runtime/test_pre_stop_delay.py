"""A stop that balancers hear of before it closes anything."""

import http.client
import json
import signal
import socket
import threading
import time
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest

from gatepost.runtime.signals import ONE_SIGNAL_S
from gatepost.secrets.keyring import create
from tests.support.client import read_answer, result
from tests.support.commands import Gatepost, ServerProcess, server_process
from tests.support.issuers import Idp
from tests.support.measuring import eventually
from tests.support.server import issuer_settings

WITHIN_S = 30
NEVER_S = 600
TOOLS = '''
import asyncio
from pathlib import Path
from gatepost import CallContext, Pack

pack = Pack("held")


@pack.tool()
async def held(ctx: CallContext) -> str:
    """Wait until a file says go on."""
    Path("began").touch()
    while not Path("go-on").exists():
        await asyncio.sleep(0.02)
    return "done"
'''


def start(
    folder: Path, idp: Idp, leave_s: float, shared: str = ""
) -> AbstractContextManager[ServerProcess]:
    """Start a server with that pre-stop delay; with a *shared* store it has two processes."""
    (folder / "held.py").write_text(TOOLS)
    listen = {"drain_s": WITHIN_S, "leave_s": leave_s, "workers": 2 if shared else 1}
    return server_process(
        idp,
        folder,
        [issuer_settings(idp, tenants={"acme": "acme"})],
        env={f"GATEPOST_LISTEN__{name.upper()}": str(value) for name, value in listen.items()},
        tools={"packs": ["demo"], "load": ["./held.py"]},
        keys={"ring": ring(folder)},
        storage={"database": "sqlite:///gatepost.db", "shared": shared},
    )


def ring(folder: Path) -> str:
    create(folder / "ring.json")
    return f"file:{folder / 'ring.json'}"


def readiness(server: ServerProcess) -> tuple[int, str]:
    """Return the status and answer of `/readyz` on a connection of its own."""
    with closing(
        http.client.HTTPConnection("127.0.0.1", server.client.port, timeout=60)
    ) as connection:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())["status"]


def send_signal(process: Gatepost, number: int = signal.SIGTERM) -> None:
    process.process.send_signal(number)


def accepts(server: ServerProcess) -> bool:
    try:
        socket.create_connection(("127.0.0.1", server.client.port), timeout=5).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("workers", [1, 2])
def test_readyz_reports_a_stop_before_the_server_stops(
    tmp_path: Path, idp: Idp, valkey: str, workers: int
) -> None:
    """`/readyz` is 503 while calls and new connections go on; a second signal ends the wait."""
    with start(tmp_path, idp, NEVER_S, valkey if workers > 1 else "") as server:
        token = server.token()
        eventually(lambda: readiness(server) == (200, "ok"), within=WITHIN_S)
        send_signal(server.process)
        for _ in range(10 * workers):  # whichever worker takes it
            eventually(lambda: readiness(server) == (503, "stopping"), within=WITHIN_S)
        assert server.status(token) == 200, "it serves what still comes"

        later = time.monotonic() + ONE_SIGNAL_S
        eventually(lambda: time.monotonic() > later, within=WITHIN_S)
        send_signal(server.process)
        assert server.process.process.wait(WITHIN_S) == 0


def test_the_pre_stop_delay_ends_by_itself(tmp_path: Path, idp: Idp) -> None:
    """The socket closes after `leave_s`."""
    with start(tmp_path, idp, 0.5) as server:
        send_signal(server.process)
        eventually(lambda: not accepts(server), within=WITHIN_S)


def test_idle_connections_end_last(tmp_path: Path, idp: Idp) -> None:
    """Requests on a balancer's kept connections are answered while a call runs."""
    with start(tmp_path, idp, 0) as server:
        token, heard = server.token(), []
        running = threading.Thread(
            target=lambda: heard.append(server.client.call(token, "held")), daemon=True
        )
        eventually(lambda: readiness(server)[0] == 200, within=WITHIN_S)
        with socket.create_connection(
            ("127.0.0.1", server.client.port), timeout=WITHIN_S
        ) as connection:
            request = f"GET /readyz HTTP/1.1\r\nHost: {server.client.authority}\r\n\r\n".encode()
            connection.sendall(request)
            assert read_answer(connection).status == 200
            running.start()
            eventually((tmp_path / "began").exists, within=WITHIN_S)
            send_signal(server.process)
            eventually(lambda: not accepts(server), within=WITHIN_S)

            connection.sendall(request)
            answer = read_answer(connection)
            assert (answer.status, answer.field("connection")) == (503, "close")
            assert connection.recv(1) == b""
        (tmp_path / "go-on").touch()
        running.join(WITHIN_S)
        assert result(heard[0])["content"][0]["text"] == "done"


def test_simultaneous_signals_count_as_one(tmp_path: Path, idp: Idp, valkey: str) -> None:
    """A terminal sends its signal to all processes of a group, and the first passes it on."""
    with start(tmp_path, idp, 0, valkey) as server:
        token, heard = server.token(), []
        running = threading.Thread(
            target=lambda: heard.append(server.client.call(token, "held")), daemon=True
        )
        running.start()
        eventually((tmp_path / "began").exists, within=WITHIN_S)
        for _ in range(3):
            send_signal(server.process, signal.SIGINT)
        eventually(lambda: not accepts(server), within=WITHIN_S)
        (tmp_path / "go-on").touch()
        running.join(WITHIN_S)
        assert result(heard[0])["content"][0]["text"] == "done"
