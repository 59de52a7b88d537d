"""`gatepost secrets` as an operator types it: what it does and refuses, and never shows."""

import os
import pty
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gatepost.dev.composition import dev_ring
from gatepost.secrets.keyring import KeyRing, create
from gatepost.secrets.names import MAX_BYTES
from tests.secrets import test_tool_calls
from tests.secrets.test_tool_calls import digest_of
from tests.support.client import ResourceClient, result
from tests.support.commands import CommandResult, DeploymentFolder, dev, token
from tests.support.measuring import each
from tests.support.processes import python_environment
from tests.support.server import SAMPLE_TOOLS, check_problems

PASSWORD = "hunter2-hunter2-hunter2"
TOOLS = str(Path(test_tool_calls.__file__))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("deployment")


@pytest.fixture(scope="module")
def deployment(folder: Path) -> Iterator[DeploymentFolder]:
    deployment = DeploymentFolder(
        folder, f"sqlite:///{folder}/gatepost.db", ("acme", "globex", "initech")
    )
    yield deployment
    deployment.close()


def run_separately(folder: Path, *arguments: str, typed: bytes = b"") -> CommandResult:
    """Run a command as a process of its own, as a shell does."""
    done = subprocess.run(
        [sys.executable, "-m", "gatepost", "secrets", *arguments],
        input=typed,
        cwd=folder,
        env=python_environment(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    return CommandResult(done.returncode, done.stdout.decode(), done.stderr.decode())


def test_a_secret_is_set_replaced_listed_and_deleted(deployment: DeploymentFolder) -> None:
    """No output has the value."""
    set_ = ("set", "API_KEY", "--tenant", "initech")
    outputs = [
        deployment.run("secrets", *set_, typed=f"{PASSWORD}\n"),
        deployment.run("secrets", "list", "--tenant", "initech"),
        deployment.run("secrets", *set_, typed=PASSWORD + "2"),
        deployment.run("secrets", "list", "--tenant", "globex"),
        deployment.run("secrets", "delete", "API_KEY", "--tenant", "initech"),
        deployment.run("secrets", "list", "--tenant", "initech"),
    ]

    assert outputs[0] == (
        0,
        "Secret API_KEY of tenant initech is set, bound to no host.\n",
        "",
    )
    heading, row = outputs[1].out.splitlines()
    assert heading.split() == ["NAME", "SET", "KEY", "HOSTS"]
    assert row.split()[0] == "API_KEY"
    assert outputs[2].code == 0
    assert outputs[3].out == "Tenant globex has no secrets.\n"
    assert outputs[4].out == "Secret API_KEY of tenant initech is deleted.\n"
    assert outputs[5].out == "Tenant initech has no secrets.\n"
    assert PASSWORD not in "".join(output.out + output.err for output in outputs)


def test_an_operator_binds_and_lists(deployment: DeploymentFolder) -> None:
    """Hosts are given with the value or later; the output names them and no value."""
    tenant = ("--tenant", "acme")
    done = [
        deployment.run(
            "secrets", "set", "A_KEY", *tenant, "--host", "GitLab.com", "--host", "a.example:8443",
            typed=PASSWORD,
        ),
        deployment.run("secrets", "set", "A_KEY", *tenant, typed=PASSWORD + "2"),
        deployment.run("secrets", "bind", "A_KEY", *tenant, "--host", "b.example"),
        deployment.run("secrets", "list", *tenant),
        deployment.run("secrets", "bind", "A_KEY", *tenant),
        deployment.run("secrets", "bind", "A_KAY", *tenant),
        deployment.run("secrets", "bind", "A_KEY", *tenant, "--host", "*.example"),
        deployment.run("secrets", "set", "A_KEY", *tenant, "--host", "b.example/x", typed=PASSWORD),
    ]  # fmt: skip

    both = "Secret A_KEY of tenant acme is set, bound to gitlab.com, a.example:8443.\n"
    assert [result.out for result in done[:2]] == [both, both]
    assert done[2].out == "Secret A_KEY of tenant acme is bound to b.example.\n"
    assert done[3].out.splitlines()[1].split()[-1] == "b.example"
    assert done[4].out == "Secret A_KEY of tenant acme is bound to no host.\n"
    assert "has no secret A_KAY. Did you mean A_KEY?" in done[5].err
    assert all("write each by its own name" in result.err for result in done[6:])
    assert [result.code for result in done] == [0, 0, 0, 0, 0, 1, 1, 1]
    assert PASSWORD not in "".join(result.out + result.err for result in done)


def test_a_user_name_may_be_short_if_it_is_marked_each_time(deployment: DeploymentFolder) -> None:
    """The mark belongs to one value: the next value is a secret unless it is marked again."""
    tenant = ("--tenant", "globex")
    done = [
        deployment.run("secrets", "set", "MAIL_USER", *tenant, "--username", typed="bob\n"),
        deployment.run("secrets", "list", *tenant),
        deployment.run("secrets", "bind", "MAIL_USER", *tenant, "--host", "mail.example"),
        deployment.run("secrets", "list", *tenant),
        deployment.run("secrets", "set", "MAIL_USER", *tenant, typed="eve\n"),
        deployment.run("secrets", "set", "MAIL_USER", *tenant, typed=PASSWORD),
        deployment.run("secrets", "list", *tenant),
        deployment.run("secrets", "delete", "MAIL_USER", *tenant),
    ]

    assert [result.code for result in done] == [0, 0, 0, 0, 1, 0, 0, 0]
    assert done[0].out.splitlines()[-1] == "It is a user name, so results can contain it."
    assert done[1].out.splitlines()[1].endswith("(user name)")
    assert done[3].out.splitlines()[1].endswith("mail.example (user name)")
    assert "--username" in done[4].err
    assert done[6].out.splitlines()[1].endswith("mail.example")


def terminal_output(terminal: int, ending: bytes | None) -> bytes:
    """Return what a program writes to its terminal until *ending*, or (None) until it ends."""
    seen = b""
    while ending is None or not seen.endswith(ending):
        assert select.select([terminal], [], [], 30)[0], seen
        try:
            piece = os.read(terminal, 4096)
        except OSError:  # the other side of the terminal is closed
            break
        if not piece:
            break
        seen += piece
    return seen


def at_a_terminal(folder: Path, *answers: str) -> tuple[int, str]:
    """Set a secret at a terminal by typing these lines; return the exit code and the output."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "gatepost", "secrets", "set", "API_KEY", "--tenant", "initech"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env=python_environment(),
        # Otherwise it would ask at the terminal of the person who runs the tests.
        start_new_session=True,
    )
    os.close(theirs)
    seen = b""
    try:
        for answer in answers:
            seen += terminal_output(ours, b": ")
            os.write(ours, answer.encode() + b"\n")
        seen += terminal_output(ours, None)
        return process.wait(30), seen.decode()
    finally:
        process.kill()
        process.wait(5)
        os.close(ours)


def test_at_a_terminal_the_value_is_asked_for_and_not_shown(deployment: DeploymentFolder) -> None:
    """The command asks twice, because the operator does not see the typed value."""
    code, seen = at_a_terminal(deployment.folder, PASSWORD, PASSWORD)

    assert code == 0, seen
    assert "Value of API_KEY:" in seen
    assert "is set, bound to no host." in seen
    assert PASSWORD not in seen


REFUSED_COMMANDS: dict[str, tuple[list[str], str, dict[str, Any], int, str]] = {
    # arguments, what is typed, other settings, exit code, what is said
    "a value as an argument": (
        ["set", "API_KEY", PASSWORD, "--tenant", "acme"], "", {}, 2, "Do not give the value",
    ),
    "a name in small letters": (
        ["set", "api_key", "--tenant", "acme"], PASSWORD, {}, 1, "begins with a capital letter",
    ),
    "the value as the name": (
        ["set", PASSWORD, "--tenant", "acme"], "API_KEY", {}, 1, "begins with a capital letter",
    ),
    "a short value": (
        ["set", "API_KEY", "--tenant", "acme"], "hunter2\n", {}, 1, "the value has 7 characters",
    ),
    "no value": (["set", "API_KEY", "--tenant", "acme"], "", {}, 1, "the value has 0 characters"),
    "no user name": (
        ["set", "API_KEY", "--tenant", "acme", "--username"], "", {}, 1, "the value is empty",
    ),
    "a short value, and what would help": (
        ["set", "API_KEY", "--tenant", "acme"], "bob\n", {}, 1, "--username",
    ),
    "a long value": (
        ["set", "API_KEY", "--tenant", "acme"], "x" * (MAX_BYTES + 1), {}, 1, "65537 bytes",
    ),
    "a longer value": (
        ["set", "API_KEY", "--tenant", "acme"], "x" * (2 * MAX_BYTES), {}, 1, "more than 65536",
    ),
    "no tenant": (["set", "API_KEY"], PASSWORD, {}, 2, "--tenant"),
    "an unknown tenant": (
        ["set", "API_KEY", "--tenant", "amce"], PASSWORD, {}, 1,
        "no tenant amce. Did you mean acme?",
    ),
    "a tenant that cannot be": (
        ["list", "--tenant", "../acme"], "", {}, 1, "A tenant id has 1 to 63 characters of a-z",
    ),
    "another name": (
        ["delete", "API_KEYS", "--tenant", "acme"], "", {}, 1, "has no secret API_KEYS.",
    ),
    "another name to delete": (
        ["delete", "api", "--tenant", "acme"], "", {}, 1, "begins with a capital letter",
    ),
    "no ring": (
        ["set", "API_KEY", "--tenant", "acme"], PASSWORD, {"keys": {"ring": ""}}, 1,
        "There is no key ring to encrypt secrets with",
    ),
    "a ring that is gone": (
        ["set", "API_KEY", "--tenant", "acme"], PASSWORD, {"keys": {"ring": "file:gone.json"}}, 1,
        "config.E007",
    ),
    "memory": (
        ["set", "API_KEY", "--tenant", "acme"], PASSWORD, {"storage": {"database": "memory:"}}, 1,
        "in the server's memory",
    ),
    "a database that does not answer": (
        ["list", "--tenant", "acme"], "",
        {"storage": {"database": f"postgresql://u:{PASSWORD}@127.0.0.1:1/x"}}, 1,
        "the database cannot be reached",
    ),
}  # fmt: skip


@each(
    ("arguments", "typed", "settings", "code", "says"),
    REFUSED_COMMANDS.values(),
    ids=REFUSED_COMMANDS,
)
def test_an_invalid_command_is_refused_without_the_value(
    deployment: DeploymentFolder,
    arguments: list[str],
    typed: str,
    settings: dict[str, Any],
    code: int,
    says: str,
) -> None:
    """The sentence never contains a value, whichever argument was wrong."""
    deployment.write(**settings)
    done = deployment.run("secrets", *arguments, typed=typed)
    deployment.write()

    assert done.code == code, done
    assert says in done.err
    assert PASSWORD not in done.out + done.err


def test_a_configuration_without_a_secret_store_is_reported() -> None:
    """If tools take secrets, `gatepost check` reports it before a call needs one."""
    for load, warned in (([TOOLS], True), ([SAMPLE_TOOLS], False)):
        reported_problems = check_problems([issuer_of("acme")], tools={"load": load})
        assert ("config.W005" in [problem.id for problem in reported_problems]) is warned


def issuer_of(tenant: str) -> dict[str, Any]:
    return {"issuer": "http://127.0.0.1:1/as", "tenant": {"value": tenant}}


def test_a_development_server_keeps_secrets_too(tmp_path: Path) -> None:
    """Its ring and settings are in its state folder, so that they can be set and outlive it."""
    config = ("--tenant", "acme", "--config", str(tmp_path / "state" / "dev.toml"))
    with dev(tmp_path, "--tools", TOOLS) as gatepost:
        done = run_separately(tmp_path, "set", "A_KEY", *config, typed=PASSWORD.encode())
        assert done.code == 0, done
        bearer = token(tmp_path, "--tenant", "acme")
        answer = ResourceClient(gatepost.url).call(bearer, "unlock", {"token": "secret:A_KEY"})
        assert result(answer)["structuredContent"] == {"proof": digest_of(PASSWORD)}
        assert PASSWORD not in gatepost.output
    ring = tmp_path / "state" / "keyring.json"
    assert ring.stat().st_mode & 0o077 == 0
    assert dev_ring(ring.parent).keys == KeyRing.load(f"file:{ring}").keys


def test_a_rotation_warns_before_secrets_lose_their_key(deployment: DeploymentFolder) -> None:
    """It names the command to run, the next key to go, and the dropped key."""
    ring = deployment.folder / "another.json"
    first = create(ring)
    filled, dropped = (
        deployment.run("keyring", "rotate", str(ring), "--keep", "1") for _ in range(2)
    )

    assert (filled.code, dropped.code) == (0, 0)
    assert "gatepost secrets rotate" in filled.out
    assert f"The next rotation drops key {first}" in filled.err
    assert f"Key {first} was dropped" in dropped.err
