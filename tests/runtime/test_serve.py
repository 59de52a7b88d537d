"""Running servers: ready means accepting, SIGTERM drains, workers share what they must."""

import contextlib
import http.client
import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.commands import Gatepost, completed, dev, run, running, token
from tests.support.measuring import eventually
from tests.support.processes import Process, python_environment


@contextlib.contextmanager
def tool_call(
    url: str, bearer: str, tool: str, arguments: dict[str, Any], *, progress: bool = False
) -> Iterator[http.client.HTTPResponse]:
    """Send one modern `tools/call` on its own connection; yield the answer once it begins."""
    meta: dict[str, Any] = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        **({"progressToken": 1} if progress else {}),
    }
    parameters = {"name": tool, "arguments": arguments, "_meta": meta}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": parameters}
    headers = {
        "Authorization": f"Bearer {bearer}",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
        "Mcp-Name": tool,
    }
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=20)
    with contextlib.closing(connection):
        connection.request("POST", parts.path, json.dumps(body), headers)
        yield connection.getresponse()


def call(url: str, bearer: str, tool: str, arguments: dict[str, Any]) -> tuple[int, Any]:
    """Return the status and document of one `tools/call`."""
    with tool_call(url, bearer, tool, arguments) as answer:
        return answer.status, json.loads(answer.read())


def get(url: str) -> tuple[int, bytes]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=20)
    with contextlib.closing(connection):
        connection.request("GET", parts.path or "/")
        answer = connection.getresponse()
        return answer.status, answer.read()


@pytest.fixture
def gatepost(tmp_path: Path) -> Iterator[Gatepost]:
    with dev(tmp_path) as gatepost:
        yield gatepost


def test_dev_prints_at_most_twelve_lines_and_two_working_examples(
    gatepost: Gatepost, tmp_path: Path
) -> None:
    """The first curl succeeds, the second is refused, and the last line says ready."""
    lines, logged = gatepost.stdout.splitlines(), gatepost.stderr.splitlines()
    curls = [line.strip() for line in lines if line.startswith("  curl")]
    works, refused = [run_in_shell(line, tmp_path) for line in curls]

    assert len(lines) + len(logged) <= 12, logged
    assert lines[-1] == f"Gatepost is ready at {gatepost.url}"
    assert json.loads(works)["result"]["content"][0]["text"] == "hello"
    assert "401 Unauthorized" in refused
    assert "resource_metadata=" in refused
    assert any("claude mcp add" in line and gatepost.url in line for line in lines)


def test_the_state_of_the_development_server_is_closed_to_other_users(
    gatepost: Gatepost, tmp_path: Path
) -> None:
    """The next start would otherwise close it, and warn that it was open."""
    files = list((tmp_path / "state").iterdir())

    assert "dev.toml" in {file.name for file in files}
    assert [file.name for file in files if file.stat().st_mode & 0o077] == []


def test_the_start_page_names_the_endpoint_and_the_dashboard(gatepost: Gatepost) -> None:
    """A person who opens the address learns where agents connect and people approve."""
    status, page = get(gatepost.url.removesuffix("/mcp"))

    assert status == 200
    assert f"<pre>{gatepost.url}</pre>".encode() in page
    assert b"<code>/dashboard</code>" in page


def run_in_shell(line: str, folder: Path) -> str:
    process = Process(["sh", "-c", line], env=python_environment(), cwd=folder)
    try:
        assert process.process.wait(30) == 0, process.output
        process.stop()
        return process.stdout
    finally:
        process.kill()


def test_a_development_token_has_the_requested_caller(gatepost: Gatepost, tmp_path: Path) -> None:
    """The tool sees the tenant, subject and scopes given to `gatepost token`."""
    bearer = token(tmp_path, "--tenant", "globex", "--subject", "bob", "--scopes", "files:write")
    status, answer = call(gatepost.url, bearer, "whoami", {})
    caller = json.loads(answer["result"]["content"][0]["text"])

    assert status == 200
    assert "\n" not in bearer
    assert (caller["tenant"], caller["subject"]) == ("globex", "bob")
    assert "files:write" in caller["scopes"]


def test_the_development_server_tells_that_it_is_one(gatepost: Gatepost) -> None:
    """Probes, start page and state file: a person and a monitor can both see what runs."""
    assert json.loads(get(f"{gatepost.origin}/readyz")[1])["insecure_dev_auth"] is True
    assert json.loads(get(f"{gatepost.origin}/health")[1])["status"] == "ok"
    status, page = get(f"{gatepost.origin}/")
    assert status == 200
    assert gatepost.url.encode() in page
    assert b"<script" not in page


def test_unknown_paths_need_a_token(gatepost: Gatepost, tmp_path: Path) -> None:
    """A client without a token does not learn which paths exist; with one a wrong path is 404."""
    assert get(f"{gatepost.origin}/nothing/here")[0] == 401
    status, answer = call(
        f"{gatepost.origin}/nothing", token(tmp_path, "--tenant", "acme"), "echo", {}
    )
    assert (status, answer["error"]) == (404, "not_found")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_calls_finish(tmp_path: Path, number: int) -> None:
    """New connections are refused, the call ends with its result, the exit code is 0."""
    with dev(tmp_path) as gatepost:
        bearer = token(tmp_path, "--tenant", "acme")
        arguments = {"steps": 8, "delay_s": 0.1}
        with tool_call(gatepost.url, bearer, "count_slowly", arguments, progress=True) as answer:
            # The first report of progress is there, so the tool runs.
            first = answer.readline()
            assert gatepost.stop(with_signal=number) == 0
            events = first + answer.read()

        assert answer.status == 200
        assert b"notifications/progress" in events
        assert b'"isError":false' in events
        port = int(urlsplit(gatepost.url).port or 0)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)


CONFIG = """
resource = "http://127.0.0.1:{port}/mcp"
mode = "development"
listen.port = {port}
listen.workers = {workers}
tools.packs = ["demo"]
storage = {{ database = "sqlite:///gatepost.db", shared = "{shared}" }}
issuers = [{{ issuer = "http://127.0.0.1:1/dev-as", tenant = {{ value = "{tenant}" }} }}]
"""


def write_config(folder: Path, workers: int, shared: str, more: str = "") -> None:
    """Write a configuration with a free port, and *more* settings."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    text = CONFIG.format(port=port, workers=workers, tenant="acme", shared=shared)
    (folder / "gatepost.toml").write_text(text + more)


@contextlib.contextmanager
def serving(folder: Path, *, workers: int, shared: str = "") -> Iterator[Gatepost]:
    """Run `gatepost serve` during a block."""
    write_config(folder, workers, shared)
    with running("serve", cwd=folder) as gatepost:
        yield gatepost


@pytest.mark.parametrize("workers", [1, 3])
def test_serve_prints_one_ready_line(tmp_path: Path, workers: int, valkey: str) -> None:
    """The number of processes does not matter, nor does an issuer that is down."""
    with serving(tmp_path, workers=workers, shared=valkey) as gatepost:
        for _ in range(10):
            assert get(f"{gatepost.origin}/health")[0] == 200
        assert get(gatepost.url)[0] == 401

    assert gatepost.stdout.count("Gatepost is ready at") == 1


def test_a_reload_takes_up_a_good_file_and_refuses_a_bad_one(tmp_path: Path) -> None:
    """After SIGHUP the metadata has the new issuer; an invalid file changes nothing."""
    with serving(tmp_path, workers=1) as gatepost:
        path = tmp_path / "gatepost.toml"
        document = f"{gatepost.url}/.well-known/oauth-protected-resource"
        text = path.read_text()
        path.write_text("nonsense = 1")
        gatepost.process.send_signal(signal.SIGHUP)
        gatepost.wait_for("reload_refused")
        before = json.loads(get(document)[1])
        path.write_text(text.replace("127.0.0.1:1/", "127.0.0.1:2/"))
        gatepost.process.send_signal(signal.SIGHUP)
        gatepost.wait_for("configuration_reloaded")
        after = json.loads(get(document)[1])

    assert before["authorization_servers"] == ["http://127.0.0.1:1/dev-as"]
    assert after["authorization_servers"] == ["http://127.0.0.1:2/dev-as"]


def test_a_reload_names_the_settings_that_need_a_restart(tmp_path: Path) -> None:
    """An operator learns that a changed setting has no effect yet."""
    with serving(tmp_path, workers=1) as gatepost:
        path = tmp_path / "gatepost.toml"
        text = path.read_text()
        more = "log.level = 'debug'\nlisten.drain_s = 5\nlisten.trusted_proxies = ['10.0.0.0/8']\n"
        path.write_text(more + text)
        gatepost.process.send_signal(signal.SIGHUP)
        gatepost.wait_for("restart_needed.*listen.drain_s, log.level\\b")
        path.write_text(text)
        gatepost.process.send_signal(signal.SIGHUP)
        eventually(lambda: gatepost.output.count("configuration_reloaded") == 2, within=15)

    assert gatepost.output.count("restart_needed") == 1


def test_a_refused_reload_logs_each_problem(tmp_path: Path) -> None:
    """A reader of the log finds the id, the setting and the hint, also when lines are shipped."""
    with serving(tmp_path, workers=1) as gatepost:
        (tmp_path / "gatepost.toml").write_text("resorce = 1")
        gatepost.process.send_signal(signal.SIGHUP)
        gatepost.wait_for("reload_refused")
    events = [json.loads(line) for line in gatepost.stderr.splitlines() if line.startswith("{")]
    problems = {event["id"]: event for event in events if event["event"] == "configuration_problem"}

    assert problems["config.E001"]["level"] == "error"
    assert problems["config.E001"]["setting"] == "resorce"
    assert problems["config.E001"]["hint"] == "did you mean `resource`?"


def test_two_servers_cannot_share_a_port(gatepost: Gatepost, tmp_path: Path) -> None:
    """The second one ends with an error, and the first one continues."""
    port = str(urlsplit(gatepost.url).port)
    second = run("dev", "--port", port, "--state", str(tmp_path / "other"))
    try:
        assert second.process.wait(20) == 1
        second.stop()
        assert "cannot listen" in second.stderr
    finally:
        second.kill()
    assert get(f"{gatepost.origin}/health")[0] == 200


FAILING_PACK = """
from gatepost import Pack

pack = Pack("failing")


@pack.lifespan
async def open_ledger():
    raise RuntimeError("the ledger is locked")
    yield
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failing_lifespan_is_reported_by_each_number_of_workers(
    tmp_path: Path, workers: int, valkey: str
) -> None:
    """An operator learns which pack keeps the server from starting."""
    (tmp_path / "failing.py").write_text(FAILING_PACK)
    write_config(tmp_path, workers, valkey, 'tools.load = ["./failing.py"]\n')

    done = completed("serve", cwd=tmp_path)

    assert done.code == 1
    assert "the ledger is locked" in done.out + done.err
    assert "Traceback" not in done.out + done.err


CONNECTING_PACK = """
import errno
import socket
import tomllib
from pathlib import Path

from gatepost import Pack

pack = Pack("connecting")


@pack.lifespan
async def connect():
    port = tomllib.loads(Path("gatepost.toml").read_text())["listen"]["port"]
    with socket.socket() as client:
        raise RuntimeError(errno.errorcode.get(client.connect_ex(("127.0.0.1", port)), "connected"))
    yield
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_server_refuses_connections_until_it_can_serve(
    tmp_path: Path, workers: int, valkey: str
) -> None:
    """A proxy tries another replica then; a start that fails would lose an accepted request."""
    (tmp_path / "connecting.py").write_text(CONNECTING_PACK)
    write_config(tmp_path, workers, valkey, 'tools.load = ["./connecting.py"]\n')

    done = completed("serve", cwd=tmp_path)

    assert done.code == 1
    assert "ECONNREFUSED" in done.out + done.err
