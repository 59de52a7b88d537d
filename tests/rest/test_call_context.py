"""Headers of a call: the tenant that it claims, and the caller's correlation id."""

import json
from collections.abc import Iterator

import pytest

from tests.rest.conftest import RUNS, TOOLS
from tests.support.client import RestClient
from tests.support.issuers import Idp
from tests.support.measuring import capture_logs, each, eventually
from tests.support.server import Server, issuer_settings, running_server

CORRELATION = "X-Octopus-Correlation-Id"


@pytest.mark.requirement("O13")
@pytest.mark.parametrize(
    "fields",
    [
        [("X-Octopus-Tenant-Id", "globex")],
        [("X-Octopus-Tenant-Id", "ACME")],
        [("X-Octopus-Tenant-Id", "")],
        [("X-Octopus-Tenant-Id", "acme, globex")],
        [("X-Octopus-Tenant-Id", "acme"), ("X-Octopus-Tenant-Id", "acme")],
        [("X-Octopus-Tenant-Id", "globex"), ("X-Octopus-Tenant-Id", "acme")],
        [("x-octopus-tenant-id", "globex\x09")],
    ],
)
def test_o13_a_differing_tenant_header_is_refused_and_logged(
    rest_client: RestClient, fields: list[tuple[str, str]]
) -> None:
    """The header never chooses a tenant; an equal one is accepted."""
    before = len(RUNS)
    with capture_logs() as logged:
        answers = [
            rest_client.tools(*fields),
            rest_client.call("create_ticket", {"subject": "a"}, *fields),
        ]

    assert [answer.error for answer in answers] == [(403, "denied")] * 2
    assert len(RUNS) == before
    warnings = [event for event in logged if event["event"] == "tenant_header_differs"]
    assert [warning["tenant"] for warning in warnings] == ["acme", "acme"]
    assert [warning["request_id"] for warning in warnings] == [
        a.raw.field("x-request-id") for a in answers
    ]


@pytest.mark.requirement("O13", "A6")
def test_o13_the_tenant_is_the_tokens(rest_client: RestClient) -> None:
    """The token decides with an equal header, without one, and beside other platforms' headers."""
    rest_client.call("create_ticket", {"subject": "a"}, ("X-Octopus-Tenant-Id", "acme"))
    rest_client.call(
        "create_ticket", {"subject": "a"}, ("X-Tenant-Id", "globex"), ("X-Org", "globex")
    )
    RestClient(rest_client.server, rest_client.server.token(org_id="globex")).call(
        "create_ticket", {"subject": "a"}
    )

    assert [run.caller.tenant_id for run in RUNS[-3:]] == ["acme", "acme", "globex"]


@pytest.fixture(scope="module")
def mapped(idp: Idp) -> Iterator[Server]:
    """Yield a server whose configuration names tenants differently than their tokens do."""
    table = {"org_7": "acme", "Globex Ltd": "globex", "Ünion": "union"}
    rows = [issuer_settings(idp, tenants=table)]
    with running_server(idp, rows, tools={"load": [TOOLS], "packs": ["demo"]}) as server:
        yield server


@pytest.mark.requirement("O13")
@each(
    ("named", "sent", "status"),
    [
        ("org_7", "org_7", 200),
        ("org_7", "acme", 200),
        ("Globex Ltd", "Globex Ltd", 200),
        ("Globex Ltd", "globex", 200),
        ("Ünion", "Ünion", 200),
        ("org_7", "ORG_7", 403),
        ("org_7", "Globex Ltd", 403),
        ("org_7", "globex", 403),
        ("Globex Ltd", "org_7", 403),
        ("Globex Ltd", "acme", 403),
    ],
)
def test_o13_the_header_names_the_claims_value_or_the_mapped_tenant(
    mapped: Server, named: str, sent: str, status: int
) -> None:
    """Octopus knows its tenants by its own names; neither spelling chooses one."""
    agent = RestClient(mapped, mapped.token(org_id=named))
    before = len(RUNS)
    field = ("X-Octopus-Tenant-Id", sent.encode().decode("latin-1"))
    answer = agent.call("create_ticket", {"subject": "a"}, field)

    assert answer.status == agent.tools(field).status == status
    if status == 200:
        tenant = {"org_7": "acme", "Globex Ltd": "globex", "Ünion": "union"}[named]
        assert [run.caller.tenant_id for run in RUNS[before:]] == [tenant]
    else:
        assert answer.error == (403, "denied")
        assert len(RUNS) == before


@pytest.mark.requirement("O13")
def test_o13_the_header_may_have_a_claim_value_outside_the_tenant_grammar(
    rest_client: RestClient,
) -> None:
    """Without a table such a value is hashed, which no platform can know."""
    agent = RestClient(rest_client.server, rest_client.server.token(org_id="Acme Corp"))
    agreed = agent.call("create_ticket", {"subject": "a"}, ("X-Octopus-Tenant-Id", "Acme Corp"))
    other = agent.call("create_ticket", {"subject": "a"}, ("X-Octopus-Tenant-Id", "acme"))

    assert (agreed.status, other.status) == (200, 403)


@pytest.mark.requirement("O13")
def test_o13_the_correlation_id_reaches_log_and_tool(rest_client: RestClient) -> None:
    """An operator can then follow one episode through every system."""
    rest_client.call("create_ticket", {"subject": "a"}, (CORRELATION, "episode-xyz789"))

    assert RUNS[-1].correlation == "episode-xyz789"
    eventually(
        lambda: any(
            json.loads(line).get("correlation") == "episode-xyz789"
            for line in rest_client.server.log().splitlines()
            if '"request"' in line
        ),
        within=20,
    )


@pytest.mark.requirement("O12")
def test_o12_a_read_under_a_correlation_id_is_not_replayed(rest_client: RestClient) -> None:
    """An agent that reads again in an episode wants the current value."""
    seen = [
        rest_client.call("whoami", {}, (CORRELATION, "episode-3"))
        for rest_client in (
            rest_client,
            RestClient(rest_client.server, rest_client.server.token(scope="other")),
        )
    ]

    assert [answer.json["scopes"] for answer in seen] == [["files:write"], ["other"]]
