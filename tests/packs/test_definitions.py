"""Each tool is offered as the page that it comes from describes it."""

from importlib import import_module
from typing import Any

import pytest

from gatepost.tools.api import Tool
from gatepost_packs import BUILT_IN
from tests.packs.documented_tools import MUST, PAGES
from tests.packs.harness import PackServer
from tests.support.cases import each


def tool_of(name: str) -> Tool:
    tool: Tool = import_module(BUILT_IN[PAGES[name].pack].place).pack.tools[name]
    return tool


def type_of(schema: dict[str, Any]) -> str:
    """`string`, `array`…; `any` without a type; with `?` where it may be null."""
    if "anyOf" in schema:
        types = [one.get("type", "any") for one in schema["anyOf"]]
        return "|".join(one for one in types if one != "null") + "?" * ("null" in types)
    return str(schema.get("type", "any"))


@each(
    "name", [pytest.param(name, marks=pytest.mark.requirement(PAGES[name].row)) for name in PAGES]
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
    assert tool.scopes == ({page.scope} if page.scope else set())


@pytest.mark.requirement("P3", "P4", "X1")
@pytest.mark.parametrize("protocol", ["mcp", "rest"])
def test_all_of_them_are_listed(server: PackServer, protocol: Any) -> None:
    """To whoever may use them."""
    served = {name for name, page in PAGES.items() if page.pack in server.packs}

    assert set(server.agent(protocol).listed()) == served
