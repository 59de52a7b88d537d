"""Servers are read as Claude Desktop, Cursor, VS Code and registries write them."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from gatepost.config.upstreams import UpstreamsFile
from gatepost.upstreams.import_formats import (
    ImportProblem,
    as_toml,
    read_document,
    servers_of,
    servers_of_registry,
    settings_of_file,
)

CLAUDE_DESKTOP = """{
  "mcpServers": {
    "memory": {
      "command": "npx",
      "args": ["-y", "@modelcontextprotocol/server-memory"],
      "env": {"MEMORY_FILE": "/data/memory.json", "API_KEY": "the-key-itself"}
    }
  }
}"""
CURSOR = """{
  "mcpServers": {
    "linear": {
      "url": "https://mcp.linear.app/mcp",
      "headers": {"Authorization": "Bearer ${env:LINEAR_TOKEN}", "X-Team": "${TEAM}"}
    }
  }
}"""
VS_CODE = """{
  // What the editor asks for.
  "inputs": [{"type": "promptString", "id": "github-token", "password": true}],
  "servers": {
    "github": {
      "type": "http",
      "url": "https://api.githubcopilot.com/mcp/", /* the remote one */
      "headers": {"Authorization": "Bearer ${input:github-token}"},
    },
    "local": {"type": "stdio", "command": "uvx", "args": ["some-server==1.2.3"]},
  },
}"""
REGISTRY = {
    "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
    "name": "com.example/weather",
    "description": "Weather",
    "version": "1.0.2",
    "packages": [
        {
            "registryType": "npm",
            "identifier": "@example/weather-mcp",
            "version": "1.0.2",
            "transport": {"type": "stdio"},
            "packageArguments": [{"type": "named", "name": "--units", "value": "metric"}],
            "environmentVariables": [{"name": "WEATHER_API_KEY", "isSecret": True}],
        }
    ],
    "remotes": [
        {"type": "sse", "url": "https://mcp.example.com/sse"},
        {
            "type": "streamable-http",
            "url": "https://mcp.example.com/mcp",
            "headers": [
                {"name": "Authorization", "isSecret": True},
                {"name": "X-Region", "value": "${env:REGION}"},
            ],
        },
    ],
}


def imported(tmp_path: Path, text: str) -> Any:
    path = tmp_path / "mcp.json"
    path.write_text(text, encoding="utf-8")
    return read_document(path)


def test_a_claude_desktop_file_is_imported(tmp_path: Path) -> None:
    """A program; a value that is a secret by its name gets a name of its own."""
    (memory,) = servers_of(imported(tmp_path, CLAUDE_DESKTOP))

    assert memory.settings.command == "npx"
    assert memory.settings.args == ("-y", "@modelcontextprotocol/server-memory")
    assert memory.settings.env == {
        "MEMORY_FILE": "/data/memory.json",
        "API_KEY": "secret:MEMORY_API_KEY",
    }
    assert memory.values == {"MEMORY_API_KEY": "the-key-itself"}
    assert "the-key-itself" not in repr(memory)


def test_a_cursor_file_is_imported(tmp_path: Path) -> None:
    """A URL; a bearer token is the API key, and variables are references."""
    (linear,) = servers_of(imported(tmp_path, CURSOR))

    assert linear.settings.url == "https://mcp.linear.app/mcp"
    assert linear.settings.api_key == "env:LINEAR_TOKEN"
    assert linear.settings.headers == {"X-Team": "env:TEAM"}


def test_a_vs_code_file_with_comments_is_imported(tmp_path: Path) -> None:
    """A value that the editor prompts for becomes a secret of the tenant."""
    github, local = servers_of(imported(tmp_path, VS_CODE))

    assert github.settings.api_key == "secret:GITHUB_TOKEN"
    assert github.notes == ("set the secret: gatepost secrets set GITHUB_TOKEN --tenant TENANT",)
    assert (local.settings.command, local.settings.args) == ("uvx", ("some-server==1.2.3",))


def test_a_registry_document_is_imported() -> None:
    """Remotes before packages; a package keeps its version."""
    remote, package = servers_of_registry(REGISTRY)

    assert remote.settings.url == "https://mcp.example.com/mcp"
    assert remote.settings.api_key == "secret:AUTHORIZATION"
    assert remote.settings.headers == {"X-Region": "secret:X_REGION"}
    assert package.settings.command == "npx"
    assert package.settings.args == ("-y", "@example/weather-mcp@1.0.2", "--units", "metric")
    assert package.settings.env == {"WEATHER_API_KEY": "secret:WEATHER_API_KEY"}


def test_a_table_is_toml_that_means_the_same(tmp_path: Path) -> None:
    """The operator can paste it."""
    (memory,) = servers_of(imported(tmp_path, CLAUDE_DESKTOP))
    (table,) = tomllib.loads(as_toml(memory.settings, tenants=("acme",)))["upstreams"]

    assert table == {
        "name": "memory",
        "tenants": ["acme"],
        "command": "npx",
        "args": ["-y", "@modelcontextprotocol/server-memory"],
        "env": {"MEMORY_FILE": "/data/memory.json", "API_KEY": "secret:MEMORY_API_KEY"},
    }


UNUSABLE_FILES: dict[str, tuple[str, str]] = {
    "no JSON": ("mcpServers:", "is not a JSON object that can be read: not JSON"),
    "a list": ("[]", "is not a JSON object"),
    "a server named twice": (
        '{"servers": {"a": {"command": "x"}, "a": {"command": "y"}}}',
        "duplicate member",
    ),
    "not UTF-8": ('{"servers": {}}\udcff', "is not UTF-8"),
    "no servers": ("{}", "neither `mcpServers` nor `servers`"),
    "neither": ('{"servers": {"a": {}}}', "neither `url` nor `command`"),
    "args": ('{"servers": {"a": {"command": "x", "args": "y"}}}', "not a list of texts"),
    "env": ('{"servers": {"a": {"command": "x", "env": {"A": 1}}}}', "not an object of texts"),
    "basic": (
        '{"servers": {"a": {"url": "https://x/", "headers": {"Authorization": "Basic eA=="}}}}',
        "no bearer token",
    ),
    "host": (
        '{"servers": {"a": {"url": "https://x/", "headers": {"Host": "y"}}}}',
        "The header Host cannot be set",
    ),
    "mixed": (
        '{"servers": {"a": {"url": "https://x/", "headers": {"X-A": "v-${input:b}"}}}}',
        "mixes text and a placeholder",
    ),
    "placeholder in the url": (
        '{"servers": {"a": {"url": "https://${input:host}/"}}}',
        "contains a placeholder",
    ),
    "a secret as text": (CLAUDE_DESKTOP, "has a secret as text"),
}


@pytest.mark.parametrize("name", UNUSABLE_FILES)
def test_a_file_that_cannot_be_used_says_why(tmp_path: Path, name: str) -> None:
    """The problem is one of `[upstreams_file]`, and its message holds no value."""
    text, reason = UNUSABLE_FILES[name]
    path = tmp_path / "mcp.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ImportProblem) as problem:
        settings_of_file(UpstreamsFile(path=str(path), tenants=("acme",)))

    assert reason in str(problem.value)
    assert "the-key-itself" not in str(problem.value)


def test_a_file_of_the_configuration_has_its_tenants(tmp_path: Path) -> None:
    """All its servers belong to these tenants."""
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"a": {"url": "https://a.example.com/mcp"}}}))
    (server,) = settings_of_file(UpstreamsFile(path=str(path), tenants=("acme",)))

    assert (server.name, server.tenants) == ("a", ("acme",))
