"""What examples/ shows works as it is written there."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples import function, pack
from gatepost.check.pack_loading import load
from gatepost.check.problems import problems
from gatepost.config.reading import read
from gatepost.config.settings import ToolsSettings
from gatepost.dev.composition import dev_config
from gatepost.dev.given_settings import given_settings
from gatepost.policy.approvals.tool_policies import plan_of
from gatepost.upstreams.configured import ConfiguredUpstreams
from gatepost.workspace import Workspaces
from tests.architecture.source import ROOT
from tests.support.client_requests import (
    accepted_form,
    call_with_responses,
    input_requests_of,
    next_round,
    result_text,
)
from tests.support.endpoint import EndpointClient, a_caller

PAGE = (ROOT / "examples/README.md").read_text(encoding="utf-8")


def test_the_page_names_every_example() -> None:
    """It names each file and folder, and no removed one."""
    existing = {
        path.name + "/" * path.is_dir()
        for path in (ROOT / "examples").iterdir()
        if path.name != "README.md" and not path.name.startswith(("_", "."))
    }

    assert set(re.findall(r"^\| \[(\S+?)\]", PAGE, re.MULTILINE)) == existing


async def test_the_example_of_a_function_is_a_tool() -> None:
    """A wrong argument is answered with the allowed values."""
    client = EndpointClient(function.pack.offers)
    arguments = {"amount": 100, "source": "EUR", "target": "CHF"}
    right = (await client.call("convert", arguments)).json["result"]
    wrong = (await client.call("convert", arguments | {"target": "DM"})).json["result"]

    assert right["content"][0]["text"] == "93.91"
    assert wrong["isError"] is True
    assert all(currency in said_by(wrong) for currency in function.PER_EURO)


def said_by(result: dict[str, object]) -> str:
    return json.dumps(result["content"])


@pytest.fixture
def client(tmp_path: Path) -> EndpointClient:
    client = EndpointClient(pack.pack.offers, workspaces=Workspaces(tmp_path))
    client.caller = a_caller(scopes=frozenset({"expenses:read", "expenses:write"}))
    return client


async def test_the_example_pack_stores_and_finds_entries(client: EndpointClient) -> None:
    """An empty store is answered with a hint; stored entries are also a resource."""
    before = (await client.call("largest_expense")).json["result"]
    for vendor, amount in (("Acme", 12.5), ("Globex", 99.0)):
        expense = {"vendor": vendor, "amount": amount, "category": "meals"}
        await client.call("add_expense", expense)
    largest = (await client.call("largest_expense")).json["result"]
    read = (await client.ask("resources/read", {"uri": "expenses://all"})).json["result"]
    prompt = {"name": "review_expenses", "arguments": {"month": "May"}}
    messages = (await client.ask("prompts/get", prompt)).json["result"]["messages"]

    assert before["isError"] is True
    assert "add_expense" in said_by(before)
    assert largest["structuredContent"]["vendor"] == "Globex"
    assert [expense["vendor"] for expense in json.loads(read["contents"][0]["text"])] == [
        "Acme",
        "Globex",
    ]
    assert "May" in messages[0]["content"]["text"]


async def test_the_example_pack_elicits_before_it_deletes(client: EndpointClient) -> None:
    """Declining keeps all entries; accepting deletes them."""
    await client.call("add_expense", {"vendor": "Acme", "amount": 1, "category": "travel"})
    request = await call_with_responses(client, "clear_expenses")
    declined = await next_round(
        client, "clear_expenses", request, {"question-1": {"action": "decline"}}
    )
    done = await next_round(
        client, "clear_expenses", request, {"question-1": accepted_form(sure=True)}
    )

    assert input_requests_of(request)["question-1"]["params"]["message"] == "Delete 1 receipts?"
    assert result_text(declined) == "Nothing was deleted."
    assert result_text(done) == "Deleted 1 receipts."


@pytest.mark.requirement("E12")
def test_the_configuration_of_microsoft_learn_has_its_server_and_its_agent() -> None:
    """The seed document describes both; only the key ring is missing."""
    reading = read(ROOT / "examples/microsoft_learn.toml", {})
    config = reading.config
    assert config is not None
    reported_problems = problems(config, load(config.tools, config.packs, config.network))
    upstreams = ConfiguredUpstreams(config)
    (server,) = upstreams.servers("acme")
    (agent,) = upstreams.agents("acme")

    assert {problem.id for problem in reported_problems if problem.level == "error"} == {
        "config.E007"
    }
    assert (server.name, server.url) == ("microsoft_learn", "https://learn.microsoft.com/api/mcp")
    assert (agent.name, agent.capabilities) == ("Microsoft Learn Assistant", (f"mcp:{server.id}",))
    assert upstreams.servers("globex") == upstreams.agents("globex") == ()


CRM = ROOT / "examples/crm"


def test_the_customer_register_is_short_and_its_tests_pass() -> None:
    """It has eight tools in less than 120 lines."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    ran = subprocess.run(command, cwd=CRM, capture_output=True, text=True, timeout=110)
    (crm,) = load(ToolsSettings(load=(str(CRM / "crm.py"),))).packs

    assert "8 passed" in ran.stdout, ran.stdout + ran.stderr
    assert len(crm.tools) == 8
    assert (len(crm.templates), len(crm.prompts)) == (1, 1)
    assert len((CRM / "crm.py").read_text(encoding="utf-8").splitlines()) < 120


def test_the_customer_register_starts_with_its_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`gatepost dev --config` reads it, and the rule for refunds applies."""
    monkeypatch.chdir(ROOT)
    settings = given_settings(CRM / "gatepost.toml", {}, "http://127.0.0.1:8000/mcp")
    config = dev_config(8000, tools=(), state=tmp_path, user_config=settings.config)
    loaded_packs = load(config.tools, config.packs, config.network)

    assert settings.problems == ()
    # The server makes the secret of its own dashboard when it starts.
    reported_problems = [
        problem for problem in problems(config, loaded_packs) if problem.level == "error"
    ]
    assert {problem.setting for problem in reported_problems} <= {
        "issuers[0].dashboard.client_secret"
    }
    assert plan_of(config.approvals, loaded_packs.offers)["refund"].frequency() == "sometimes"
