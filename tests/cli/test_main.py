"""The command line: help, exit codes, and that wrong use never ends in a traceback."""

import json
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from gatepost.cli.main import COMMANDS, main
from tests.support.commands import CommandProcess, completed
from tests.support.measuring import each
from tests.support.processes import python_environment

FIVE_MISTAKES = """
resource = "http://mcp.example.com/mcp"

[listen]
trusted_proxies = ["10.0.0.0/8"]
wrokers = 4

[limits]
max_body_bytes = "much"

[tools]
packs = ["dem0"]

[[issuers]]
issuer = "https://id.example.com"
tenant = { value = "acme" }
"""


def test_gatepost_help_is_printed(tmp_path: Path) -> None:
    """`gatepost --help` answers in a process of its own."""
    done = completed("--help", cwd=tmp_path)

    assert done.code == 0
    assert "Usage: gatepost" in done.out


@each("command", COMMANDS)
def test_help_is_printed_for_every_command(command: str) -> None:
    """`--help` answers for each command of the table."""
    done = CliRunner().invoke(main, [command, "--help"], prog_name="gatepost")

    assert done.exit_code == 0
    assert f"Usage: gatepost {command}" in done.output


WRONG_USE: list[tuple[list[str], int, str]] = [
    (["nonsense"], 2, "No such command 'nonsense'"),
    (["serve", "--wrokers", "2"], 2, "--workers"),
    (["serve", "--workers", "0"], 2, "0 is not in the range"),
    (["serve", "--workers", "many"], 2, "not a valid integer"),
    (["serve"], 1, "config.E003"),
    (["serve", "--config", "missing.toml"], 1, "does not exist"),
    (["check", "--config", "."], 1, "is a folder"),
    (["check", "--config", "broken.toml"], 1, "config.E003"),
    (["tools", "--config", "broken.toml"], 1, "config.E003"),
    (["token"], 2, "--tenant"),
    (["token", "--tenant", "acme"], 1, "no development server is running"),
    (["dev", "--port", "99999"], 2, "--port"),
    (["dev", "--tools", "missing.py"], 1, "config.E011"),
    (["dev", "--tools", "broken.toml"], 1, "config.E011"),
    (["dev", "--port", "0", "--state", "/proc/nowhere"], 1, "--state"),
    (["keyring"], 2, "Usage:"),
    (["keyring", "rotate"], 1, "gatepost keyring new"),
    (["keyring", "new", "no/such/folder/ring.json"], 1, "cannot be written"),
    (["doctor"], 2, "URL"),
]


@pytest.fixture(scope="module")
def command_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandProcess]:
    """Yield one process for wrong uses of the commands, in a folder with a broken file."""
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "broken.toml").write_text("a = = b")
    process = CommandProcess(folder)
    yield process
    process.kill()


@pytest.mark.parametrize(("arguments", "code", "says"), WRONG_USE, ids=lambda value: str(value))
def test_wrong_use_is_answered_with_a_sentence(
    command_process: CommandProcess, arguments: list[str], code: int, says: str
) -> None:
    """Exit code 2 means wrong use and 1 means problems found; no traceback is printed."""
    done = command_process.run(*arguments)

    assert says in done.out + done.err
    assert "Traceback" not in done.out + done.err
    assert done.code == code


def test_a_port_in_use_is_answered_with_a_sentence(tmp_path: Path) -> None:
    """The message names the address and the option."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = completed("dev", "--port", str(port), cwd=tmp_path)

    assert done.code == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in done.err
    assert "Traceback" not in done.out + done.err


def test_a_host_that_is_no_name_is_answered_with_a_sentence(tmp_path: Path) -> None:
    """A label of a host name has at most 63 characters."""
    host = "a" * 70
    settings = {"GATEPOST_LISTEN__HOST": host, "GATEPOST_MODE": "production"}
    config = """
resource = "https://mcp.example.com/mcp"
listen.trusted_proxies = ["10.0.0.0/8"]
tools.packs = ["demo"]
issuers = [{ issuer = "https://id.example.com", tenant = { value = "acme" } }]
"""
    (tmp_path / "gatepost.toml").write_text(config)
    completed("keyring", "new", "keyring.json", cwd=tmp_path)
    done = completed(
        "serve", cwd=tmp_path, env={**settings, "GATEPOST_KEYS__RING": "file:keyring.json"}
    )

    assert done.code == 1
    assert f"cannot listen on {host} (listen.port): it is no host name" in done.err
    assert "Traceback" not in done.out + done.err


def test_dev_refuses_to_start_with_a_production_marker(tmp_path: Path) -> None:
    """One marker in the environment is enough; no file is left behind."""
    done = completed("dev", "--port", "0", cwd=tmp_path, env={"APP_ENV": "production"})

    assert done.code == 1
    assert "APP_ENV=production marks this as production" in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["check", "serve"])
def test_five_errors_are_five_problems(command: str, tmp_path: Path) -> None:
    """Each has an id and a hint; the exit code is 1, and the server does not start."""
    (tmp_path / "gatepost.toml").write_text(FIVE_MISTAKES)
    done = completed(command, cwd=tmp_path)
    ids = [line.split()[1:3] for line in done.err.splitlines() if line.startswith("error ")]

    assert done.code == 1
    assert sorted(ids) == [
        ["authz.E002", "[resource]:"],
        ["config.E001", "[listen.wrokers]:"],
        ["config.E002", "[limits.max_body_bytes]:"],
        ["config.E006", "[keys.ring]:"],
        ["config.E010", "[tools.packs[0]]:"],
    ]
    assert "did you mean `listen.workers`?" in done.err
    assert "did you mean 'demo'?" in done.err


def test_check_accepts_a_good_file(tmp_path: Path) -> None:
    """The exit code is 0, and one line says what would be served."""
    completed("keyring", "new", cwd=tmp_path)
    (tmp_path / "gatepost.toml").write_text(
        'resource = "https://mcp.example.com/mcp"\n'
        'listen.trusted_proxies = ["10.0.0.0/8"]\n'
        'keys.ring = "file:keyring.json"\n'
        'tools.packs = ["demo"]\n'
        'issuers = [{ issuer = "https://id.example.com", tenant = { value = "acme" },'
        ' roles = { approver = { claim = "roles", value = "approver" } } }]\n'
    )
    done = completed("check", cwd=tmp_path)

    assert (done.code, done.err) == (0, "")
    assert "machine: the subject is the client id [preset]" in done.out
    assert "tenant: always acme [issuers.tenant]" in done.out
    assert done.out.splitlines()[-1] == (
        "OK: https://mcp.example.com/mcp, 1 issuer, 5 tools, 2 resources, 1 prompt."
    )


def test_a_key_ring_is_made_and_rotated(tmp_path: Path) -> None:
    """Only the owner can read the file, and no command prints a secret."""
    output = completed("keyring", "new", cwd=tmp_path)
    rotated = completed("keyring", "rotate", cwd=tmp_path)
    again = completed("keyring", "new", cwd=tmp_path)
    ring = json.loads((tmp_path / "keyring.json").read_text())

    assert [done.code for done in (output, rotated, again)] == [0, 0, 1]
    assert len(ring["keys"]) == 2
    assert stat.S_IMODE((tmp_path / "keyring.json").stat().st_mode) == 0o600
    for done in (output, rotated, again):
        assert not any(key["secret"] in done.out + done.err for key in ring["keys"])


def test_tools_are_listed_for_people_and_programs(tmp_path: Path) -> None:
    """Both name the same tools, with scopes and schemas."""
    folder = tmp_path / "greet-visitor"
    folder.mkdir()
    (folder / "SKILL.md").write_text("---\nname: greet-visitor\ndescription: Greet.\n---\n")
    (tmp_path / "desk.py").write_text(
        "from gatepost import Pack\n"
        'pack = Pack("desk")\n'
        'pack.skill("greet-visitor", scopes={"desk:read"})\n'
    )
    environment = {
        "GATEPOST_TOOLS__LOAD": "./desk.py",
        "GATEPOST_RESOURCE": "http://127.0.0.1:8000/mcp",
        "GATEPOST_MODE": "development",
        "GATEPOST_TOOLS__PACKS": "demo",
        "GATEPOST_ISSUERS": '[{"issuer": "http://127.0.0.1:8000/dev-as",'
        ' "tenant": {"value": "acme"}}]',
    }
    table = completed("tools", cwd=tmp_path, env=environment)
    data = json.loads(completed("tools", "--json", cwd=tmp_path, env=environment).out)

    assert [(offer["kind"], offer["name"]) for offer in data] == [
        ("tool", "count_slowly"),
        ("tool", "delete_csv"),
        ("tool", "echo"),
        ("tool", "save_csv"),
        ("tool", "whoami"),
        ("resource", "invoice_format"),
        ("resource", "greet-visitor"),
        ("template", "workspace_file"),
        ("prompt", "check_invoice"),
        ("skill", "greet-visitor"),
    ]
    assert [line.split()[:2] for line in table.out.splitlines()[1:]] == [
        [offer.get("uri") or offer.get("uriTemplate") or offer["name"], offer["kind"]]
        for offer in data
    ]
    assert data[-2]["arguments"][0]["name"] == "path"
    assert data[-1]["scopes"] == ["desk:read"]
    save = next(tool for tool in data if tool["name"] == "save_csv")
    assert save["scopes"] == ["files:write"]
    assert save["inputSchema"]["required"]
    assert "files:write" in table.out


def test_the_serve_command_imports_no_signing_code(tmp_path: Path) -> None:
    """`gatepost serve` imports neither the development issuer nor a signing library."""
    script = (
        "import sys\n"
        "import gatepost.cli.serve, gatepost.cli.main\n"
        "print([name for name in sys.modules if name.startswith(('gatepost_keys', "
        "'gatepost.dev', 'joserfc', 'authlib.jose', 'authlib.integrations'))])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=python_environment(),
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.stdout.strip() == "[]"
