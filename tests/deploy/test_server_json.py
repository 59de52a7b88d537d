"""`server.json`, by which the MCP registry lists this server."""

import json
import re
import tomllib

from gatepost.cli.stdio import stdio
from tests.architecture.source import ROOT

SCHEMA = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
"""The registry's newest dated schema; what is checked below are its rules for what we use."""
SERVER = json.loads((ROOT / "server.json").read_text(encoding="utf-8"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_server_json_follows_the_schema_of_the_registry() -> None:
    """The registry refuses unknown members and long values."""
    (package,) = SERVER["packages"]

    assert SERVER["$schema"] == SCHEMA
    assert SERVER.keys() == {"$schema", "name", "title", "description", "version", "packages"}
    assert re.fullmatch(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+", SERVER["name"])
    assert 3 <= len(SERVER["name"]) <= 200
    assert 1 <= len(SERVER["description"]) <= 100
    assert 1 <= len(SERVER["title"]) <= 100
    assert (package["registryType"], package["runtimeHint"]) == ("pypi", "uvx")
    assert package["transport"] == {"type": "stdio"}
    for argument in package["packageArguments"]:
        assert argument["type"] in {"positional", "named"}
        assert {"value", "valueHint", "name"} & argument.keys()
        assert argument.get("format", "string") in {"string", "number", "boolean", "filepath"}


def test_server_json_names_this_release_and_an_existing_command() -> None:
    """The README, the package's description, proves the owner by `mcp-name`."""
    (package,) = SERVER["packages"]
    readme = (ROOT / PROJECT["readme"]).read_text(encoding="utf-8")
    command, option = package["packageArguments"]

    assert SERVER["version"] == package["version"] == PROJECT["version"]
    assert package["identifier"] == PROJECT["name"]
    assert re.findall(r"mcp-name: (\S+)", readme) == [SERVER["name"]]
    assert command["value"] == stdio.name
    assert option["name"] in [name for param in stdio.params for name in param.opts]
