"""`gatepost upstream`: add, list, test, change and remove MCP servers, and import them."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fastmcp import FastMCP

from gatepost.cli.main import main
from tests.support.issuers import AsgiServer
from tests.support.processes import free_port

KEY = "the-key-of-the-crm"
ACME = ("--tenant", "acme")


class CommandLine:
    """Runs commands in a folder with a configuration."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *arguments: str, input: str = "") -> Result:
        configured = ("--config", str(self.folder / "gatepost.toml"))
        return CliRunner().invoke(main, ["upstream", *arguments, *configured], input=input)

    def listed(self) -> dict[str, Any]:
        """Return the servers of `acme` by name."""
        result = self("list", *ACME, "--json")
        assert result.exit_code == 0, result.output
        return {server["name"]: server for server in json.loads(result.output)}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Serve FastMCP with one tool and without its sessions' lifespan; yield the port."""
    crm = FastMCP("crm")

    @crm.tool
    def find_customer(name: str) -> str:
        """Find a customer by name."""
        return f"{name} is customer 17."

    number = free_port()
    app = crm.http_app(stateless_http=True)
    server = AsgiServer(app, port=number, lifespan="on").start()
    yield number
    server.stop()


@pytest.fixture
def upstream(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    monkeypatch.chdir(tmp_path)
    ring = CliRunner().invoke(main, ["keyring", "new", "keyring.json"])
    assert ring.exit_code == 0, ring.output
    (tmp_path / "gatepost.toml").write_text(f"""
resource = "http://127.0.0.1:8000/mcp"
mode = "development"
keys.ring = "file:keyring.json"
network.allow_hosts = ["127.0.0.1:{port}"]

[[upstreams]]
name = "configured"
tenants = ["acme"]
url = "https://configured.example.com/mcp"
""")
    return CommandLine(tmp_path)


def test_a_server_is_added_tested_fetched_and_removed(upstream: CommandLine, port: int) -> None:
    """The commands lead from an empty registry to the server's tools."""
    url = f"http://127.0.0.1:{port}/mcp"
    assert upstream("add", "crm", *ACME, "--url", url).exit_code == 0
    tested = upstream("test", "crm", *ACME)
    assert tested.exit_code == 0, tested.output
    assert "lists 1 tool\n" in tested.output
    assert tested.output.endswith("crm can be used.\n")
    assert upstream("refresh", "crm", *ACME).output == "crm has 1 tool.\n"
    assert upstream.listed()["crm"]["tools"] == 1
    assert upstream("diff", "crm", *ACME).output == "No changes of crm wait.\n"
    assert upstream("disable", "crm", *ACME).exit_code == 0
    assert upstream.listed()["crm"]["status"] == "disabled"
    assert upstream("enable", "crm", *ACME).exit_code == 0
    assert upstream("remove", "crm", *ACME).exit_code == 0
    assert set(upstream.listed()) == {"configured"}


def test_a_key_is_read_from_standard_input_and_never_shown(
    upstream: CommandLine, port: int
) -> None:
    """Neither the list nor the database contains it."""
    url = f"http://127.0.0.1:{port}/mcp"
    added = upstream("add", "crm", *ACME, "--url", url, "--api-key", input=f"{KEY}\n")
    assert added.exit_code == 0, added.output
    result = upstream("list", *ACME, "--json")

    assert KEY not in added.output + result.output
    for path in upstream.folder.glob("gatepost.db*"):
        assert KEY.encode() not in path.read_bytes()


def test_a_failed_test_of_a_server_is_reported_in_a_sentence(upstream: CommandLine) -> None:
    """The exit code is 1, and no traceback is printed."""
    upstream("add", "gone", *ACME, "--url", "https://gone.invalid/mcp")
    tested = upstream("test", "gone", *ACME)

    assert tested.exit_code == 1
    assert "gone" in tested.output
    assert "Traceback" not in tested.output


WRONG_COMMANDS: dict[str, tuple[tuple[str, ...], int, str]] = {
    "unknown name": (("test", "crn", *ACME), 1, "There is no MCP server 'crn'"),
    "unknown tenant": (("list", "--tenant", "A B"), 1, "no tenant"),
    "plain http": (
        ("add", "a", *ACME, "--url", "http://a.example.com/mcp"),
        1,
        "unencrypted",
    ),
    "neither url nor file": (("add", "a", *ACME), 2, "Give either --url or --from"),
    "no name": (("add", *ACME, "--url", "https://a.example.com/"), 2, "Missing argument 'NAME'"),
    "of the configuration": (("remove", "configured", *ACME), 1, "comes from the configuration"),
    "name of the configuration": (
        ("add", "configured", *ACME, "--url", "https://a.example.com/mcp"),
        1,
        "already",
    ),
    "nothing to accept": (("accept", "configured", *ACME), 2, "Give either --digest or --all"),
    "nothing waits": (
        ("accept", "configured", *ACME, "--all"),
        1,
        "None of these changes is waiting",
    ),
}


@pytest.mark.parametrize("name", WRONG_COMMANDS)
def test_wrong_use_of_the_upstream_command_is_answered_with_a_reason(
    upstream: CommandLine, name: str
) -> None:
    """The exit codes are those of the other commands."""
    arguments, code, reason = WRONG_COMMANDS[name]
    result = upstream(*arguments)

    assert result.exit_code == code, result.output
    assert reason in result.output


def test_a_file_of_another_program_is_imported(upstream: CommandLine) -> None:
    """Servers with a URL are added with their keys; for programs a table is printed."""
    document = {
        "mcpServers": {
            "linear": {
                "url": "https://mcp.linear.app/mcp",
                "headers": {"Authorization": f"Bearer {KEY}"},
            },
            "memory": {"command": "npx", "args": ["-y", "server-memory@1.0.0"]},
        }
    }
    path = upstream.folder / "mcp.json"
    path.write_text(json.dumps(document))
    result = upstream("add", *ACME, "--from", str(path))

    assert result.exit_code == 0, result.output
    assert KEY not in result.output
    assert set(upstream.listed()) == {"configured", "linear"}
    table = result.output[result.output.index("[[upstreams]]") :]
    assert tomllib.loads(table)["upstreams"][0]["command"] == "npx"
    again = upstream("add", *ACME, "nothing", "--from", str(path))
    assert (again.exit_code, "has no server" in again.output) == (1, True)


def test_the_public_keys_are_printed(upstream: CommandLine) -> None:
    """The set has no private members."""
    printed = upstream("jwks")
    (key,) = json.loads(printed.output)["keys"]

    assert (key["kty"], key["crv"], key["alg"]) == ("OKP", "Ed25519", "EdDSA")
    assert "d" not in key


def test_the_tools_command_refers_to_gatepost_upstream_list(upstream: CommandLine) -> None:
    """The hint goes to standard error, so that the table and the JSON stay unchanged."""
    path = upstream.folder / "gatepost.toml"
    issuer = 'issuer = "https://id.example.com"\ntenant = { claim = "org_id" }\n'
    path.write_text(f"{path.read_text()}\n[[issuers]]\n{issuer}")
    config = ("--config", str(path))
    result = CliRunner().invoke(main, ["tools", *config])
    as_json = CliRunner().invoke(main, ["tools", "--json", *config])

    assert (result.exit_code, as_json.exit_code) == (0, 0), result.output
    assert "see `gatepost upstream list`" in result.stderr
    assert "upstream" not in result.stdout
    json.loads(as_json.stdout)
