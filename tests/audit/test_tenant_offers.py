"""What is on record of calls of tools that a tenant's upstream defines."""

from collections.abc import Iterator
from typing import Any

import pytest

from gatepost import CallContext
from gatepost.tools.offers.offer import Annotations, Effects, Outcome
from gatepost.tools.offers.tenant_offers import Agent
from tests.audit.test_calls import AuditedServer
from tests.support.issuers import Idp
from tests.support.server import issuer_settings, running_server
from tests.support.tools import MemorySource, ToolUpstream

NAME = "mcp_crm__find"
PASSWORD = "correct-horse-battery-staple"
source, crm = MemorySource(), ToolUpstream()
SECRET = {
    "type": "object",
    "properties": {"password": {"type": "string", "x-gatepost-secret": True}},
}
READ_ONLY_HINT = Annotations(read_only_hint=True)


async def login(ctx: CallContext, arguments: Any) -> Outcome:
    return Outcome(({"type": "text", "text": f"logged in with {arguments['password']}"},))


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory, idp: Idp) -> Iterator[AuditedServer]:
    url = f"sqlite:///{tmp_path_factory.mktemp('audit')}/records.db"
    settings: dict[str, Any] = {
        "storage": {"database": url},
        "tenancy": {"create_on_first_use": True},
        "audit": {"calls": "changes"},
    }
    with running_server(
        idp, [issuer_settings(idp)], source_of=lambda services, config: source, **settings
    ) as server:
        yield AuditedServer(server, url)


@pytest.mark.requirement("AU1")
def test_a_record_names_upstream_tool_and_definition(audited: AuditedServer) -> None:
    """A changed definition has another digest."""
    for description in ("One.", "Two."):
        source.put("acme", crm.tool("find", description))
        audited.gatepost.client.call(audited.gatepost.token(), NAME)
    first, second = audited.records("acme")

    for record, description in ((first, "One."), (second, "Two.")):
        assert record.tool == NAME
        assert record.details == {
            "upstream": "crm",
            "upstream_tool": "find",
            "definition": crm.origin("find", description).digest,
        }


def test_the_read_only_hint_of_an_upstream_does_not_prevent_a_record(
    audited: AuditedServer,
) -> None:
    """Only the effects that the operator states decide what is read-only."""
    claims = crm.tool("find", annotations=READ_ONLY_HINT)
    reads = crm.tool("look", annotations=READ_ONLY_HINT, effects=Effects(read_only=True))
    source.put("claims", claims, reads)
    token = audited.gatepost.token(org_id="claims")
    audited.gatepost.client.call(token, "mcp_crm__look")
    audited.gatepost.client.call(token, NAME)

    assert [record.tool for record in audited.records("claims")] == [NAME]


def test_the_uri_of_a_resource_is_not_a_permanent_detail(audited: AuditedServer) -> None:
    """A URI may name a person; the upstream and the definition stay."""

    @crm.pack.resource("crm://people/{name}")
    async def person(ctx: CallContext, name: str) -> str:
        """Return a caller of that tenant."""
        raise RuntimeError(name)  # what fails is on record, whatever it does

    source.put("reader", *crm.others())
    token = audited.gatepost.token(org_id="reader")
    audited.gatepost.client.ask(token, "resources/read", {"uri": "crm://people/eve"})
    [record] = audited.records("reader")

    assert record.details.keys() == {"upstream", "definition"}


@pytest.mark.requirement("E9")
def test_a_call_through_call_tool_is_recorded_for_the_called_tool(audited: AuditedServer) -> None:
    """Its record has the arguments; the record of `call_tool` has none, to omit secrets."""
    agents = {"agent": Agent(frozenset({crm.capability}), mode="search")}
    source.put("searching", crm.tool("login", schema=SECRET, invoke=login), agents=agents)
    token = audited.gatepost.token(org_id="searching", client_id="agent")
    arguments = {"password": PASSWORD}
    answer = audited.gatepost.client.call(
        token, "call_tool", {"name": "mcp_crm__login", "arguments": arguments}
    )
    inner, outer = audited.records("searching")

    assert answer.status == 200
    assert PASSWORD.encode() not in answer.body
    assert (inner.tool, inner.depth, outer.tool, outer.depth) == (
        "mcp_crm__login",
        1,
        "call_tool",
        0,
    )
    assert inner.details["upstream"] == "crm"
    assert "password" in inner.private["arguments"]
    assert "arguments" not in outer.private
    assert PASSWORD not in f"{inner} {outer} {audited.gatepost.log()}"
