"""`gatepost tenant` and `gatepost revoke`, as an operator types them."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gatepost.audit.writer import AuditWriter
from gatepost.cli.revoke import kept_s
from gatepost.config.audit import AuditSettings
from gatepost.config.dashboard import DashboardSettings
from gatepost.config.settings import Config
from gatepost.mcp.sessions.session import LIFETIME_S
from gatepost.policy.approvals.grants import LONGEST_S
from gatepost.runtime.recent_callers import RecentCallers
from gatepost.secrets.keyring import KeyRing, create
from gatepost.storage.backends import open_records
from gatepost.storage.records import Records
from gatepost.storage.sql import sqlite_audit_writer
from gatepost.tools.calls.redaction import Redaction
from tests.conftest import task
from tests.support.commands import CommandProcess, CommandResult, tenant_folder, toml
from tests.support.endpoint import a_caller

pytestmark = pytest.mark.requirement("CO2")

SETTINGS: dict[str, Any] = {
    "resource": "http://127.0.0.1:8000/mcp",
    "mode": "development",
    "issuers": [{"issuer": "http://127.0.0.1:9/a", "tenants": {"acme": "acme", "b": "globex"}}],
    "tenancy": {"create_on_first_use": False, "suspended": ["initech"]},
    "storage": {"database": "sqlite:///gatepost.db"},
}

DAY_S = 86_400


class CommandFolder:
    """One process for many commands, each in a folder that holds a configuration."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = CommandProcess(folder, without_servers=True)

    def begin(self, **changes: Any) -> None:
        """Remove the data and write the configuration anew."""
        for name in ("gatepost.db", "gatepost.db-wal", "gatepost.db-shm"):
            (self.folder / name).unlink(missing_ok=True)
        shutil.rmtree(self.folder / "workspaces", ignore_errors=True)
        text = "\n".join(f"{name} = {toml(value)}" for name, value in (SETTINGS | changes).items())
        (self.folder / "gatepost.toml").write_text(text, encoding="utf-8")
        self.run("migrate")

    def run(self, *arguments: str) -> CommandResult:
        """Run a command."""
        return self.process.run(*arguments)

    def tenants(self) -> dict[str, Any]:
        """Return what `gatepost tenant list` says of each."""
        rows = json.loads(self.run("tenant", "list", "--json").out)
        return {row["tenant"]: row for row in rows}

    async def records(self) -> Records:
        """Open the database that the commands use."""
        return await open_records(f"sqlite:///{self.folder}/gatepost.db")


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandFolder]:
    shell = CommandFolder(tmp_path_factory.mktemp("shell"))
    yield shell
    shell.process.kill()


@pytest.fixture
def shell(process: CommandFolder) -> CommandFolder:
    process.begin()
    return process


def test_a_backup_that_fails_leaves_nothing_behind(shell: CommandFolder) -> None:
    """The disk may be full, and an incomplete copy would take room on it."""
    (shell.folder / "gatepost.db").write_bytes(b"this is no database" * 100)

    assert shell.run("backup", "copy.db").code == 1
    assert not [*shell.folder.glob("copy*")]


COMMANDS_OF_SERVERS = ("revoke --subject eve", "tenant suspend acme", "tenant list", "audit verify")


def test_no_command_uses_a_database_that_does_not_exist(shell: CommandFolder) -> None:
    """In another folder than the server's, a revocation would be stored where no server reads."""
    create(shell.folder / "keyring.json")
    elsewhere = shell.folder / "elsewhere"
    shell.begin(
        storage={"database": "sqlite:///elsewhere/gatepost.db"},
        keys={"ring": "file:keyring.json"},
    )
    shutil.rmtree(elsewhere)

    for command in COMMANDS_OF_SERVERS:
        result = shell.run(*command.split())

        assert result.code == 1, command
        assert f"There is no database {elsewhere}/gatepost.db" in result.err
        assert not elsewhere.exists()


def test_tenants_are_listed_with_their_state(shell: CommandFolder) -> None:
    """The list has configured and suspended tenants, with the operator and the reason."""
    assert shell.run("tenant", "suspend", "globex", "--reason", "un\x1b[1mpaid").code == 0
    rows = shell.tenants()

    assert {name: row["state"] for name, row in rows.items()} == {
        "acme": "open",
        "globex": "suspended",
        "initech": "suspended",
    }
    assert rows["globex"]["reason"] == "un\x1b[1mpaid"
    assert rows["globex"]["suspended_by"]
    assert rows["initech"]["suspended_by"] == "tenancy.suspended"
    output = shell.run("tenant", "list").out
    assert r"un\x1b[1mpaid" in output
    assert "\x1b" not in output


async def test_a_tenant_with_only_stored_data_is_listed(shell: CommandFolder) -> None:
    """No setting names the tenant; only its stored data shows that it exists."""
    records = await shell.records()
    await records.for_tenant("newcomer").tasks.create(task())
    await records.aclose()

    assert shell.tenants()["newcomer"]["known_by"] == "use"
    assert shell.run("tenant", "suspend", "newcomer").code == 0


def test_a_second_suspension_keeps_the_first(shell: CommandFolder) -> None:
    """A second `resume` finds no suspension."""
    assert shell.run("tenant", "suspend", "acme", "--reason", "first").code == 0
    again = shell.run("tenant", "suspend", "acme", "--reason", "second")

    assert (again.code, again.out) == (0, "Tenant acme is already suspended.\n")
    assert shell.tenants()["acme"]["reason"] == "first"
    assert shell.run("tenant", "resume", "acme").code == 0
    assert shell.tenants()["acme"]["state"] == "open"
    assert shell.run("tenant", "resume", "acme").code == 1


REFUSED_COMMANDS = {
    "a misspelt tenant": (["tenant", "suspend", "acmee"], 1, "Did you mean acme?"),
    "no tenant's id": (["tenant", "suspend", "Acme"], 1, "A tenant id has"),
    "revoke a misspelt tenant": (["revoke", "--tenant", "glob"], 1, "Did you mean globex?"),
    "erase a misspelt tenant": (["tenant", "erase", "acmee", "--yes"], 1, "Did you mean acme?"),
    "the configuration's own": (["tenant", "resume", "initech"], 1, "tenancy.suspended"),
    "nobody": (["revoke"], 2, "Give --tenant, --subject or --client"),
    "an issuer alone": (
        ["revoke", "--issuer", "https://a"],
        2,
        "Give --tenant, --subject or --client",
    ),
    "two things": (
        ["revoke", "--subject", "bob", "--list"],
        2,
        "Give --tenant, --subject or --client",
    ),
    "an odd span": (["revoke", "--subject", "bob", "--for", "soon"], 2, "no span of time"),
    "an unknown id": (["revoke", "--undo", "ffff"], 1, "There is no revocation ffff"),
    "a suspension's id": (["revoke", "--undo", "suspended"], 1, "There is no revocation"),
}


@pytest.mark.parametrize("case", REFUSED_COMMANDS)
def test_an_invalid_command_changes_nothing_and_says_why(shell: CommandFolder, case: str) -> None:
    """The exit code tells a wrong argument from a failed command."""
    arguments, code, sentence = REFUSED_COMMANDS[case]
    result = shell.run(*arguments)

    assert result.code == code
    assert sentence in result.err
    assert shell.run("revoke", "--list").out == "There are no revocations.\n"
    assert shell.tenants()["acme"]["state"] == "open"


COMMANDS = {
    "suspend": (["tenant", "suspend", "acmee"], 0),
    "revoke": (["revoke", "--tenant", "acmee"], 0),
    "erase": (["tenant", "erase", "acmee", "--yes"], 1),
    "forget": (["tenant", "erase", "acmee", "--issuer", "a", "--subject", "b", "--yes"], 1),
}
OPEN_ISSUERS = [{"issuer": "http://127.0.0.1:9/a", "tenant": {"claim": "org_id"}}]
TABLES = SETTINGS["issuers"]


@pytest.mark.parametrize("case", COMMANDS)
@pytest.mark.parametrize(
    ("issuers", "expected_text"),
    [
        (TABLES, "No issuer's `tenants` table and no"),
        (OPEN_ISSUERS, "No setting and no stored data"),
    ],
    ids=["tables", "claims"],
)
def test_an_unknown_tenant_is_reported_first(
    shell: CommandFolder, case: str, issuers: list[Any], expected_text: str
) -> None:
    """A misspelt id must not look like a suspension; erasing it has no effect."""
    shell.begin(
        issuers=issuers, tenancy={"create_on_first_use": True, "tenants": ["acme", "globex"]}
    )
    arguments, code = COMMANDS[case]
    result = shell.run(*arguments)

    assert result.code == code
    assert expected_text in result.err.splitlines()[0]
    assert "Did you mean acme?" in result.err.splitlines()[0]
    assert ("acmee" in shell.tenants()) is (code == 0)


def test_a_known_tenant_causes_no_warning(shell: CommandFolder) -> None:
    """It is known by a setting or by stored data."""
    shell.begin(tenancy={"create_on_first_use": True})
    for arguments in (["tenant", "suspend", "acme"], ["revoke", "--tenant", "globex"]):
        result = shell.run(*arguments)
        assert (result.code, "names a tenant" in result.err) == (0, False), result


@pytest.mark.parametrize("creates", [True, False])
def test_the_files_of_an_unknown_tenant_can_be_erased(shell: CommandFolder, creates: bool) -> None:
    """Neither the configuration nor the database knows the tenant."""
    shell.begin(tenancy={"create_on_first_use": creates})
    folder = tenant_folder(shell.folder / "workspaces", "former")
    folder.mkdir(parents=True)
    (folder / "note").write_text("x")
    result = shell.run("tenant", "erase", "former", "--yes")

    assert (result.code, folder.exists()) == (0, False), result


def test_revocations_are_listed_until_they_are_undone(shell: CommandFolder) -> None:
    """Whose tokens, up to when, whether newer ones are good, by whom and why."""
    orders = [
        (["--subject", "bob", "--reason", "left"], "tokens of subject bob", "accepted"),
        (["--client", "agent", "--for", "2h"], "tokens of client agent", "refused until"),
        (
            ["--tenant", "acme", "--subject", "x", "--for", "forever"],
            "tenant acme, subject x",
            "permanently",
        ),
    ]
    for arguments, _, _ in orders:
        assert shell.run("revoke", *arguments).code == 0
    header, *lines = shell.run("revoke", "--list").out.splitlines()

    assert header.split() == ["ID", "TOKENS", "ISSUED", "UP", "TO", "NEW", "TOKENS", "BY", "REASON"]
    for line, (_, whose, new) in zip(lines, orders, strict=True):
        assert whose in line
        assert new in line
        assert shell.run("revoke", "--undo", line.split()[0]).code == 0
    assert lines[0].endswith("left")
    assert shell.run("revoke", "--list").out == "There are no revocations.\n"


def test_commands_refuse_a_server_that_stores_in_memory(shell: CommandFolder) -> None:
    """A command cannot change the memory of a server."""
    shell.begin(storage={"database": "memory:"})
    for command in (["tenant", "list"], ["revoke", "--subject", "bob"]):
        result = shell.run(*command)
        assert result.code == 1
        assert "Set it to a SQLite file or PostgreSQL" in result.err


async def test_details_that_cannot_be_erased_are_reported(shell: CommandFolder) -> None:
    """Without the key ring the details of audit records stay, and the command fails."""
    records = await shell.records()
    audit_writer = AuditWriter(records, KeyRing.ephemeral(), Redaction(), AuditSettings())
    await audit_writer.events.note("acme", "signin", outcome="signed_in")
    await audit_writer.aclose()
    await records.aclose()
    person = ("--issuer", "http://127.0.0.1:9/a", "--subject", "dave")
    result = shell.run("tenant", "erase", "acme", *person, "--yes")

    assert (result.code, "except the details of audit records" in result.err) == (1, True)


async def test_details_that_a_server_has_not_linked_yet_are_erased(
    shell: CommandFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This also works while the audit log is disabled."""
    monkeypatch.setattr(sqlite_audit_writer, "IDLE_S", 60.0)
    monkeypatch.setattr(sqlite_audit_writer, "MERGED_S", 60.0)
    (shell.folder / "keyring.json").unlink(missing_ok=True)
    assert shell.run("keyring", "new", "keyring.json").code == 0
    shell.begin(keys={"ring": "file:keyring.json"}, audit={"enabled": False})
    keyring = KeyRing.load(f"file:{shell.folder}/keyring.json")
    records = await shell.records()
    audit_writer = AuditWriter(records, keyring, Redaction(), AuditSettings())
    await audit_writer.events.note("acme", "tenant", outcome="resumed", private={"reason": "paid"})
    result = shell.run("tenant", "erase", "acme", "--yes")
    await audit_writer.aclose()
    await records.aclose()

    assert (result.code, "erased the details of 1 audit records" in result.out) == (0, True)


async def test_a_revocation_of_a_user_name_warns_and_names_the_subject(
    shell: CommandFolder,
) -> None:
    """The tokens of a person whose subject is another id would stay valid."""
    assert shell.run("revoke", "--list").code == 0
    records = await shell.records()
    callers = RecentCallers(records, is_refused=lambda _: False, is_out=lambda _: False)
    for subject, name in (("7f3a", "Alice Archer"), ("8b1c", "Bob Bright")):
        callers.note(a_caller(subject=subject, claims={"name": name}))
    await callers.write()
    await records.aclose()

    by_name = shell.run("revoke", "--subject", "alice")
    elsewhere = shell.run("revoke", "--subject", "7f3a", "--tenant", "globex")
    by_id = shell.run("revoke", "--subject", "8b1c")
    again = shell.run("revoke", "--subject", "alice", "--for", "2h")

    assert [command.code for command in (by_name, elsewhere, by_id, again)] == [0] * 4
    assert "Warning: No recent caller has the subject alice." in by_name.err
    assert "Did you mean 7f3a (Alice Archer)?" in by_name.err
    assert "No recent caller has the subject 7f3a." in elsewhere.err
    assert "Warning" not in by_id.err
    # A revoked caller is no longer remembered, so a second command knows less.
    assert "Warning" not in again.err


def test_suspensions_and_revocations_are_recorded(shell: CommandFolder) -> None:
    """
    Orders are recorded in the tenant's audit log; orders for all tenants in a log of their own.
    """
    (shell.folder / "keyring.json").unlink(missing_ok=True)
    assert shell.run("keyring", "new", "keyring.json").code == 0
    shell.begin(keys={"ring": "file:keyring.json"})
    assert shell.run("tenant", "suspend", "acme", "--reason", "unpaid").code == 0
    assert shell.run("tenant", "resume", "acme").code == 0
    assert shell.run("revoke", "--subject", "bob", "--reason", "left").code == 0
    exports = {name: shell.run("audit", "export", "--tenant", name).out for name in ("acme", "-")}

    kinds = [json.loads(line).get("record", {}) for line in exports["acme"].splitlines()]
    assert [(record["kind"], record["outcome"]) for record in kinds if record] == [
        ("tenant", "suspended"),
        ("tenant", "resumed"),
    ]
    assert "unpaid" in exports["acme"]
    assert '"kind":"revocation"' in exports["-"]
    assert all(word in exports["-"] for word in ("bob", "left"))
    verified = shell.run("audit", "verify")
    assert verified.code == 0
    assert verified.out.startswith("-: 1 record is valid, 1 to 1; ")


def test_a_revocation_outlives_every_token_it_names() -> None:
    """A server that was down until all of it was over may have missed the order itself."""
    resource = "https://mcp.example/mcp"
    pages = DashboardSettings(session_s=90 * DAY_S)

    assert kept_s(Config(resource=resource, issuers=[])) >= max(LONGEST_S, LIFETIME_S)
    assert kept_s(Config(resource=resource, issuers=[], dashboard=pages)) == 90 * DAY_S
