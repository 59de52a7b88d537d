"""Each tool is offered as the page that it comes from describes it."""

from importlib import import_module
from typing import Any, NamedTuple

import pytest

from gatepost.packs import BUILT_IN
from gatepost.tools.api import Tool
from tests.packs.office import Office

MUST = object()
"""In place of a default: the argument must be given."""


class Page(NamedTuple):
    """A tool as its page has it: type and default of each parameter, hints, scopes."""

    pack: str
    parameters: dict[str, tuple[str, Any]]
    hints: str
    scope: str


READS, WRITES = "TFTF", "FTTF"
"""readOnly, destructive, idempotent, openWorld."""

PAGES = {
    "fs_list": Page("filesystem", {"path": ("string", ".")}, READS, "files:read"),
    "fs_read_text": Page(
        "filesystem",
        {"path": ("string", MUST), "max_bytes": ("integer", 200000)},
        READS,
        "files:read",
    ),
    "fs_write_text": Page(
        "filesystem",
        {"path": ("string", MUST), "text": ("string", MUST), "mkdirs": ("boolean", True)},
        WRITES,
        "files:write",
    ),
    "fs_delete": Page(
        "filesystem",
        {"path": ("string", MUST), "recursive": ("boolean", False)},
        WRITES,
        "files:write",
    ),
    "workspace_read": Page(
        "workspace",
        {"path": ("string", MUST), "max_bytes": ("integer", 200000)},
        READS,
        "files:read",
    ),
    "workspace_write": Page(
        "workspace",
        {"path": ("string", MUST), "content": ("string", MUST), "mkdirs": ("boolean", True)},
        WRITES,
        "files:write",
    ),
    "workspace_list": Page(
        "workspace",
        {"path": ("string", "."), "recursive": ("boolean", False), "limit": ("integer", 1000)},
        READS,
        "files:read",
    ),
    "memory_read": Page("memory", {"name": ("string?", None)}, READS, "memory:read"),
    "memory_write": Page(
        "memory",
        {"name": ("string", MUST), "content": ("string", MUST), "append": ("boolean", False)},
        "FTFF",
        "memory:write",
    ),
}

ROWS = {
    name: {"filesystem": "X1", "workspace": "P3", "memory": "P4"}[page.pack]
    for name, page in PAGES.items()
}


def tool_of(name: str) -> Tool:
    tool: Tool = import_module(BUILT_IN[PAGES[name].pack]).pack.tools[name]
    return tool


def type_of(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        types = [one["type"] for one in schema["anyOf"]]
        assert types == ["string", "null"]
        return "string?"
    return str(schema["type"])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.requirement(ROWS[name])) for name in PAGES]
)
def test_a_tool_is_what_its_page_says(name: str) -> None:
    """Parameters with types and defaults, hints, scopes; every parameter is described."""
    page, tool = PAGES[name], tool_of(name)
    properties = tool.input_schema["properties"]
    hints = tool.annotations

    assert {
        argument: (type_of(schema), schema.get("default", None if "default" in schema else MUST))
        for argument, schema in properties.items()
    } == page.parameters
    assert set(tool.input_schema.get("required", ())) == {
        argument for argument, (_, default) in page.parameters.items() if default is MUST
    }
    assert all(schema["description"] for schema in properties.values())
    assert (
        "".join(
            "FT"[bool(hint)]
            for hint in (
                hints.read_only_hint,
                hints.destructive_hint,
                hints.idempotent_hint,
                hints.open_world_hint,
            )
        )
        == page.hints
    )
    assert None not in (hints.destructive_hint, hints.open_world_hint)
    assert tool.scopes == {page.scope}


@pytest.mark.requirement("P3", "P4", "X1")
@pytest.mark.parametrize("protocol", ["mcp", "rest"])
def test_all_of_them_are_listed(office: Office, protocol: Any) -> None:
    """To whoever may use them."""
    assert sorted(office.worker(protocol).listed()) == sorted(PAGES)
