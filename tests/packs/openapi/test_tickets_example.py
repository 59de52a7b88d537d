"""The example of support tickets: two tools out of a description, against a real help desk."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.tickets.app import DESCRIPTION, TOKENS, TicketServer
from tests.architecture.source import ROOT
from tests.packs.conftest import PackCaller, PackServer, open_server
from tests.support.commands import shell_output
from tests.support.issuers import AsgiServer

pytestmark = pytest.mark.requirement("O14")

FOLDER = ROOT / "examples" / "tickets"
CONFIGURATION = (FOLDER / "gatepost.toml").read_text(encoding="utf-8")
TICKET = {
    "subject": "Cannot access the billing portal",
    "description": "Since the last update, users report a 403 error on /billing.",
    "priority": "high",
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Run the help desk and yield its URL."""
    server = AsgiServer(TicketServer().app()).start()
    yield server.url
    server.stop()


@pytest.fixture(scope="module")
def server(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackServer]:
    """Yield a server with the example's packs; the help desk has another port."""
    packs = tomllib.loads(CONFIGURATION)["packs"]
    tickets = packs["openapi"]["apis"]["tickets"]
    tickets |= {"base_url": url, "document": str(ROOT / tickets["document"])}
    network = {"allow_hosts": [url.removeprefix("http://")]}
    folder = tmp_path_factory.mktemp("tickets")
    with open_server(folder, [], packs=packs, network=network) as server:
        for token, tenant in TOKENS.items():
            server.put_secrets(tenant, TICKETS_TOKEN=token)
        yield server


@pytest.fixture(params=["mcp", "rest"])
def agent(server: PackServer, request: pytest.FixtureRequest) -> PackCaller:
    return server.agent(request.param, "acme")


def test_a_ticket_is_created_and_found(agent: PackCaller, server: PackServer) -> None:
    """The shapes are those of Octopus's page; another tenant does not find the ticket."""
    assert agent.listed() == ["zendesk_create_ticket", "zendesk_search_tickets"]

    created = agent.call("zendesk_create_ticket", **TICKET)
    answer = agent.call("zendesk_search_tickets", query="billing 403", status="open")
    solved = agent.call("zendesk_search_tickets", query="billing", status="solved")
    other = server.agent(agent.protocol, "globex").call("zendesk_search_tickets", query="")

    assert created.failure is None
    assert created.value["status"] == "open"
    assert created.value["ticket_url"] == (
        f"https://acme.example.com/tickets/{created.value['ticket_id']}"
    )
    assert answer.value["tickets"][0] == {**TICKET, **created.value}
    assert solved.value == {"count": 0, "tickets": []}
    assert other.value == {"count": 0, "tickets": []}


@pytest.mark.parametrize(
    ("tool", "arguments", "expected_text"),
    [
        ("zendesk_create_ticket", {"subject": "x"}, "`description` is required"),
        (
            "zendesk_create_ticket",
            TICKET | {"priority": "asap"},
            r'`priority` should be one of: "low", "normal", "high", "urgent"',
        ),
        ("zendesk_create_ticket", TICKET | {"subject": " "}, "422: A ticket needs a subject."),
        ("zendesk_search_tickets", {"query": "x", "status": "new"}, "should be one of"),
        ("zendesk_search_tickets", {"query": "x", "page": 2}, "`page` cannot be given"),
    ],
)
def test_an_error_names_the_invalid_argument(
    agent: PackCaller, tool: str, arguments: dict[str, Any], expected_text: str
) -> None:
    """The schema refuses a call before it is sent; the help desk's own errors are passed on."""
    reply = agent.call(tool, **arguments)

    assert reply.kind in (None, "validation")
    assert re.search(expected_text, str(reply.failure)), reply


def test_the_schemas_are_those_of_the_page(server: PackServer) -> None:
    """Every field is that of Octopus's page."""
    tools = server.loaded_packs.packs[0].tools
    create, search = tools["zendesk_create_ticket"], tools["zendesk_search_tickets"]
    schemas = DESCRIPTION["components"]["schemas"]

    assert create.input_schema == {
        **schemas["NewTicket"],
        "additionalProperties": False,
        "required": ["subject", "description"],
    }
    assert create.output_schema == schemas["Created"]
    assert create.description.startswith("Create a new Zendesk support ticket. Returns the ticket")
    assert search.input_schema["properties"] == {
        "query": {"type": "string", "description": "Zendesk search query string"},
        "status": {
            "type": "string",
            "enum": ["open", "pending", "solved", "closed"],
            "description": "Optional status filter",
        },
    }
    assert search.input_schema["required"] == ["query"]


def test_the_page_works_when_it_is_pasted(url: str, tmp_path: Path) -> None:
    """Key ring, secret and call; only the port of the help desk is another."""
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    here = url.removeprefix("http://")
    _, setting, calling = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    example = tmp_path / "examples" / "tickets"
    example.mkdir(parents=True)
    for name in ("openapi.json", "gatepost.toml"):
        text = (FOLDER / name).read_text(encoding="utf-8")
        (example / name).write_text(text.replace("127.0.0.1:8090", here))
    lines = (setting + calling).replace("127.0.0.1:8090", here)

    printed = shell_output(f"set -e\n{lines}", tmp_path, code=0)

    assert '"status":"open"' in printed
