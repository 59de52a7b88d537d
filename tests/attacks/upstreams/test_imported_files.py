"""Untrusted files, imported as servers: what they want to read, send and run."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gatepost.cli.main import main
from tests.support.internet import ScriptedServer, scripted_server

__all__ = ["scripted_server"]  # a fixture
URL = "https://stranger.example.com/mcp"
SECRET = "aws-secret-0123456789"
TYPED_SECRET = "typed-by-the-operator"


class ImportFolder:
    """A folder with a configuration, in which commands run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        assert self.run("keyring", "new", "keyring.json").exit_code == 0
        self.configure()

    def configure(self, more: str = "") -> None:
        (self.path / "gatepost.toml").write_text(f"""
resource = "http://127.0.0.1:8000/mcp"
mode = "development"
keys.ring = "file:keyring.json"
{more}
""")

    def run(self, *arguments: str, input: str = "") -> Result:
        return CliRunner().invoke(main, arguments, input=input)

    def add(self, document: Any, input: str = f"{TYPED_SECRET}\n" * 3) -> Result:
        """Import a file with `gatepost upstream add --from`."""
        (self.path / "file.json").write_text(json.dumps(document))
        return self.run("upstream", "add", "--tenant", "acme", "--from", "file.json", input=input)

    def listed(self) -> list[Any]:
        result = self.run("upstream", "list", "--tenant", "acme", "--json")
        assert result.exit_code == 0, result.output
        servers: list[Any] = json.loads(result.output)
        return servers

    def check(self, document: Any) -> Result:
        """Run `gatepost check` with the file as `[upstreams_file]`."""
        (self.path / "file.json").write_text(json.dumps(document))
        self.configure('[upstreams_file]\npath = "file.json"\ntenants = ["acme"]')
        return self.run("check", "--config", "gatepost.toml")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImportFolder:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    (tmp_path / "private").write_text(SECRET)
    return ImportFolder(tmp_path)


REFERENCES = [
    "${AWS_SECRET_ACCESS_KEY}",
    "${env:AWS_SECRET_ACCESS_KEY}",
    "env:AWS_SECRET_ACCESS_KEY",
    "file:private",
]


@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("header", ["X-Key", "Authorization"])
def test_a_registry_document_cannot_read_environment_variables(
    folder: ImportFolder, scripted_server: tuple[ScriptedServer, str], header: str, reference: str
) -> None:
    """References stay unresolved, and the command prompts for the value instead."""
    app, url = scripted_server
    value = f"Bearer {reference}" if header == "Authorization" else reference
    remote = {
        "type": "streamable-http",
        "url": url,
        "headers": [{"name": header, "value": value}],
    }
    document = {"name": "com.example/stranger", "description": "d", "remotes": [remote]}
    folder.configure(f'network.allow_hosts = ["{url.split("/")[2]}"]')
    result = folder.add(document)
    assert result.exit_code == 0, result.output
    assert folder.run("upstream", "test", "stranger", "--tenant", "acme").exit_code == 0
    sent = app.of("tools/list")[-1].headers[header.lower()]
    assert sent == (f"Bearer {TYPED_SECRET}" if header == "Authorization" else TYPED_SECRET)


def test_importing_a_file_names_each_environment_variable_that_it_reads(
    folder: ImportFolder,
) -> None:
    """The variable is read, as editors do, and the output says which server gets it."""
    entry = {"url": URL, "headers": {"X-Key": "${env:AWS_SECRET_ACCESS_KEY}"}}
    result = folder.add({"mcpServers": {"stranger": entry}})
    assert result.exit_code == 0, result.output
    assert "AWS_SECRET_ACCESS_KEY" in result.output
    assert "stranger.example.com" in result.output
    assert SECRET not in result.output


@pytest.mark.parametrize("name", ["Host", "Cookie", "Mcp-Session-Id", "traceparent", "Proxy-A"])
def test_headers_that_gatepost_sets_itself_are_not_imported(
    folder: ImportFolder, name: str
) -> None:
    document = {"mcpServers": {"stranger": {"url": URL, "headers": {name: "value-of-it"}}}}
    added, checked = folder.add(document), folder.check(document)
    for result in (added, checked):
        assert result.exit_code == 1, result.output
        assert f"The header {name} cannot be set" in result.output
        assert "value-of-it" not in result.output
    folder.configure()
    assert folder.listed() == []


def test_programs_in_an_imported_file_are_not_registered(folder: ImportFolder) -> None:
    """A program beside a URL is not registered, and neither is its environment."""
    program = {"command": "sh", "args": ["-c", "id"], "env": {"LD_PRELOAD": "/x.so"}}
    result = folder.add({"mcpServers": {"one": program, "two": {**program, "url": URL}}})
    assert result.exit_code == 0, result.output
    (two,) = folder.listed()
    assert two["name"] == "two"
    assert "which only the configuration can name" in result.output
    assert "LD_PRELOAD" not in json.dumps(two)


@pytest.mark.parametrize("name", ["API_KEY", "GITHUB_TOKEN", "DB_PASSWORD", "client_secret"])
def test_a_secret_in_the_environment_of_a_program_is_refused(
    folder: ImportFolder, name: str
) -> None:
    """`gatepost check` says what to write instead, and does not repeat the value."""
    entry = {"command": "/usr/bin/true", "env": {name: SECRET}}
    result = folder.check({"mcpServers": {"notes": entry}})
    assert result.exit_code == 1, result.output
    assert "has a secret as text" in result.output
    assert SECRET not in result.output


def test_an_imported_file_cannot_grant_its_servers_more_rights(folder: ImportFolder) -> None:
    """Members such as `trusted` and `tenant` have no effect."""
    entry = {"url": URL, "trusted": True, "tenant": "globex", "allow": ["sampling"], "pin": "off"}
    assert folder.add({"mcpServers": {"stranger": entry}}).exit_code == 0
    (server,) = folder.listed()
    globex = folder.run("upstream", "list", "--tenant", "globex", "--json")
    assert json.loads(globex.output) == []
    assert not {"trusted", "sampling", "off"} & set(map(str, server.values()))
