"""docs/tools.md describes the tools there are, and its example works."""

import asyncio
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import pytest

from gatepost.testing import serving
from gatepost.tools.authoring.function import OfferOptions as CommonOptions
from gatepost.tools.authoring.pack import Pack, ToolOptions
from gatepost.tools.authoring.resource import ResourceOptions
from gatepost.tools.offers.offer import Tool
from gatepost_packs import BUILT_IN
from tests.architecture.source import ROOT, contents
from tests.support.client_requests import (
    accepted_form,
    call_with_responses,
    input_requests_of,
    next_round,
    result_text,
)
from tests.support.endpoint import EndpointClient, EndpointTaskClient, a_caller
from tests.support.endpoint_clients import open_subscription
from tests.support.measuring import each

PAGE = (Path(__file__).parents[2] / "docs/tools.md").read_text(encoding="utf-8")
HEADINGS = re.findall(r"^### `(\w+)`$", PAGE, re.MULTILINE)
OTHER_OFFERS = re.findall(r"^### (?:Resource|Prompt) `(.+)`$", PAGE, re.MULTILINE)
SECTIONS = dict(re.findall(r"^### `(\w+)`$(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))


def shipped() -> dict[str, Tool]:
    packs: list[Pack] = [import_module(row.source).pack for row in BUILT_IN.values()]
    return {name: tool for pack in packs for name, tool in pack.tools.items()}


def test_the_headings_equal_the_tools() -> None:
    """The page describes every tool and no removed one."""
    assert sorted(HEADINGS) == sorted(shipped())


def test_every_resource_and_prompt_has_a_heading() -> None:
    """The section has the URI or name and the scopes."""
    packs: list[Pack] = [import_module(row.source).pack for row in BUILT_IN.values()]
    offers = [offer for pack in packs for offer in pack.offers if not isinstance(offer, Tool)]
    sections = dict(
        re.findall(r"^### (?:Resource|Prompt) `([^`]+)`$(.*?)(?=^##|\Z)", PAGE, re.M | re.DOTALL)
    )

    assert sorted(OTHER_OFFERS) == sorted(offer.key for offer in offers)
    for offer in offers:
        assert all(f"`{scope}`" in sections[offer.key] for scope in offer.scopes)


@each("name", HEADINGS)
def test_each_tool_section_names_all_arguments_and_scopes(name: str) -> None:
    """They equal those of the tool."""
    tool, section = shipped()[name], SECTIONS[name]

    assert all(f"`{argument}`" in section for argument in tool.input_schema["properties"])
    assert all(f"`{scope}`" in section for scope in tool.scopes)
    assert ("read-only" in section) == bool(tool.annotations.read_only_hint)


def table(heading: str) -> set[str]:
    """Return the options in the table below a heading."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = "".join(re.findall(r"^\| (`.*?) \|", section, re.MULTILINE))
    return set(re.findall(r"`(\w+)`", rows))


@pytest.mark.parametrize(
    ("heading", "options"),
    [
        ("A tool of your own", {*get_type_hints(ToolOptions), "output_schema"}),
        ("Resources of your own", {*get_type_hints(ResourceOptions)}),
        ("Prompts of your own", {*get_type_hints(CommonOptions)}),
    ],
)
def test_every_option_of_the_decorators_is_in_a_table(heading: str, options: set[str]) -> None:
    """The page describes every option."""
    assert table(heading) == {*options, "name"}


@pytest.mark.parametrize("module", ["gatepost", "gatepost.sandbox", "gatepost.workspace"])
def test_every_public_name_is_described(module: str) -> None:
    """The page lists every name that a pack may import, and no other."""
    section = PAGE.split("\n## What a pack may import\n")[1].split("\n## ")[0]
    (rows,) = re.findall(rf"^\| from `{module}` .*\n\|.*\n((?:\|.*\n)+)", section, re.MULTILINE)
    named = {
        name for row in rows.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }

    assert named == set(import_module(module).__all__)


def test_the_page_lists_the_gatepost_authz_names_that_packs_import() -> None:
    """The built-in packs import no other name of `gatepost_authz`."""
    (sentence,) = re.findall(r"^From `gatepost_authz`, packs use (.*)$", PAGE, re.MULTILINE)
    imported = {
        name.rpartition(".")[2]
        for path in (ROOT / "server/gatepost_packs").rglob("*.py")
        for name, _ in contents(path).imports
        if name.startswith("gatepost_authz.")
    }

    assert len(imported) > 5
    assert imported - {*re.findall(r"`(\w+)`", sentence)} == set()


def example(number: int) -> Pack:
    """Return the pack of one of the page's examples, unchanged."""
    code = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[number]
    pack: Pack = names_of(code)["pack"]
    return pack


def names_of(code: str) -> dict[str, Any]:
    """Return the names that an example defines."""
    module = ModuleType("example")
    exec(compile(code, "docs/tools.md", "exec"), vars(module))  # noqa: S102  # our own page
    return vars(module)


async def test_the_example_of_a_tool_works() -> None:
    """The code runs as copied from the page."""
    client = EndpointClient(example(0).offers)
    client.caller = a_caller(scopes=frozenset({"invoices:read"}))

    result = (await client.call("find_invoice", {"number": "2024-001"})).json["result"]
    missing = (await client.call("find_invoice", {"number": "x"})).json["result"]

    assert result["structuredContent"] == {"number": "2024-001", "total": 1250.0}
    assert missing["isError"] is True


async def test_the_example_of_dependencies_works() -> None:
    """It uses the lifespan, the caller's name and a method of an object."""
    async with serving(example(1)) as server:
        client = server.client(scopes={"library:read"})
        written = await client.call("author", title="1984")
        hours = await client.call("opening_hours")

    assert written.text == "George Orwell wrote it, alice."
    assert hours.text == "Bern: 9 to 5."


async def test_the_example_of_existing_tools_works() -> None:
    """A FastAPI app, a FastMCP server and an API description become tools."""
    code = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[2]
    defined_names = names_of(code)
    async with serving(
        defined_names["status"], defined_names["greetings"], defined_names["abacus"]
    ) as server:
        client = server.client(scopes={"greetings:read", "abacus:use", "status:read"})
        greeted = await client.call("greet")
        call = asyncio.create_task(client.call("add", a=1, b=2))
        await (await server.approval(tool="add")).approve()
        added = await call
        names = {*await client.tools()}

    assert greeted.structured == {"greeting": "Hello acme"}
    assert added.structured == {"result": 3}
    assert names == {"add", "get_status", "greet"}


async def test_the_example_of_content_returns_text_image_and_file() -> None:
    """The blocks have this order."""
    client = EndpointClient(example(3).offers)
    drawn = (await client.call("chart", {"year": 2025})).json["result"]

    assert [block["type"] for block in drawn["content"]] == ["text", "image", "resource"]
    assert drawn["content"][2]["resource"]["mimeType"] == "text/csv"


async def test_the_example_of_a_resource_works() -> None:
    """The resource is listed, read and completed."""
    client = EndpointClient(example(4).offers)
    client.caller = a_caller(scopes=frozenset({"reports:read"}))
    listed = (await client.ask("resources/list")).json["result"]["resources"]
    read = (await client.ask("resources/read", {"uri": "report://2025/q1"})).json["result"]
    reference = {"type": "ref/resource", "uri": "report://{year}/{quarter}"}
    params = {
        "ref": reference,
        "argument": {"name": "quarter", "value": "q"},
        "context": {"arguments": {"year": "2025"}},
    }
    completed = (await client.ask("completion/complete", params)).json["result"]["completion"]

    assert [resource["uri"] for resource in listed] == ["report://2025/q1", "report://2025/q2"]
    assert read["contents"][0]["text"] == "vendor,amount\nacme,1250.0\n"
    assert completed["values"] == ["q1", "q2"]


async def test_the_example_of_a_prompt_works() -> None:
    """The text of the prompt contains the argument."""
    client = EndpointClient(example(5).offers)
    params = {"name": "compare_quarters", "arguments": {"first": "q1", "second": "q2"}}
    messages = (await client.ask("prompts/get", params)).json["result"]["messages"]

    assert "q1" in messages[-1]["content"]["text"]


async def test_the_elicitation_example_works() -> None:
    """The tool acts after the answer to its elicitation."""
    client = EndpointClient(example(6).offers)
    first = await call_with_responses(client, "delete_drafts")
    declined = await next_round(
        client, "delete_drafts", first, {"question-1": {"action": "decline"}}
    )
    done = await next_round(
        client, "delete_drafts", first, {"question-1": accepted_form(sure=True)}
    )
    # The elicitation has changed by then: there is nothing left that was agreed to.
    again = await next_round(
        client, "delete_drafts", first, {"question-1": accepted_form(sure=True)}
    )

    assert result_text(declined) == "Nothing was deleted."
    assert result_text(done) == "Deleted 2 drafts."
    assert input_requests_of(again)["question-1"]["params"]["message"] == "Delete 0 drafts?"


async def test_the_task_examples_work() -> None:
    """One is a task from its start, the other after the answer to its elicitation."""
    client = EndpointTaskClient(example(7).offers)
    counted = await client.until((await client.start("count_everything"))["taskId"])
    first = (await client.call_with("write_report")).json["result"]
    again = {
        "inputResponses": {"question-1": accepted_form(year=2025)},
        "requestState": first["requestState"],
    }
    task = (await client.call_with("write_report", **again)).json["result"]
    written = await client.until(task["taskId"])

    assert counted["result"]["content"][0]["text"] == "There are 42."
    assert first["resultType"] == "input_required"
    assert written["result"]["content"][0]["text"] == "The report of 2025 is written."


async def test_the_example_of_change_notifications_works() -> None:
    """A subscriber is notified of the changed note and of the changed list."""
    client = EndpointClient(example(8).offers)
    filters = {"resourceSubscriptions": ["notes://second"], "resourcesListChanged": True}
    async with open_subscription(client, filters) as stream:
        assert await stream.acknowledged() == filters
        await client.call("write_note", {"title": "second", "text": "Water the plants."})
        methods = [(await stream.next())["method"] for _ in range(2)]

    assert methods == ["notifications/resources/updated", "notifications/resources/list_changed"]


async def test_the_example_of_a_skill_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder has the skill's name; a caller who may step up sees the skill."""
    monkeypatch.chdir(ROOT / "tests/mcp")
    client = EndpointClient(example(9).offers)

    (entry,) = (await client.ask("skills/list")).json["result"]["skills"]

    assert entry["uri"] == "skill://front_desk/greet-visitor/SKILL.md"


def test_the_file_writing_example_names_existing_arguments() -> None:
    """The approval page uses them to show the change."""
    (tool,) = example(10).tools.values()

    assert tool.writes is not None
    assert {tool.writes.path, tool.writes.text} == {*tool.input_schema["properties"]}
