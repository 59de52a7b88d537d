"""The upstreams page: health, changes and their acceptance, for administrators of the tenant."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from gatepost.config.settings import Config
from gatepost.config.upstreams import UpstreamSettings
from gatepost.upstreams.catalogue import Catalogue, Change, LeftOut
from gatepost.upstreams.management_audit import ManagementActor
from gatepost.upstreams.registration_changes import AgentChanges, ServerChanges
from gatepost.upstreams.upstream_server import UpstreamServer
from tests.dashboard.billing_server import CLI_SECRET, BillingServer
from tests.dashboard.conftest import DashboardServer, open_dashboard_server
from tests.support.internet import ScriptedServer, result_answer
from tests.support.issuers import AsgiServer
from tests.support.measuring import eventually

HOSTILE_TEXT = "<script>alert(1)</script>\u202e\u200b"


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardServer]:
    with open_dashboard_server(tmp_path_factory.mktemp("upstreams"), change=managed) as running:
        yield running


def managed(config: Config) -> Config:
    """Return the configuration with routes for administrators, and so with upstreams."""
    scopes = msgspec.structs.replace(config.scopes, admin="gatepost:admin")
    return msgspec.structs.replace(config, scopes=scopes)


def added(dashboard: DashboardServer, name: str, tenant: str = "acme") -> UpstreamServer:
    """Return a server that an administrator registered and that was fetched once."""
    administration = dashboard.services.upstreams.services.administration
    changes = ServerChanges(name=name, url="https://mcp.example.com/mcp", status="disabled")

    async def work() -> UpstreamServer:
        server = await administration.add(tenant, changes, ManagementActor(operator="test"))
        await dashboard.services.upstreams.services.store.catalogues.put(
            tenant,
            Catalogue(
                server_id=server.id,
                fetched_at=1_000_000.0,
                failing_since=1_000_100.0,
                failure="The MCP server does not answer.",
                left_out=(LeftOut(section="tools", key="odd", reason="its schema is unusable"),),
                changes=(
                    Change(
                        section="tools",
                        key="delete_all",
                        before={"name": "delete_all", "description": "Delete a draft."},
                        after={"name": "delete_all", "description": HOSTILE_TEXT},
                        digest="d" * 64,
                    ),
                ),
            ),
        )
        return server

    server: UpstreamServer = dashboard.run(work())
    return server


def test_the_upstreams_page_shows_failures_left_out_tools_and_changes(
    dashboard: DashboardServer,
) -> None:
    """Each has its reason, and markup of the upstream is shown as text."""
    added(dashboard, "crm")
    with dashboard.user_browser("alice") as alice:
        page = alice.get("/upstreams")

    assert page.status_code == 200
    assert "The MCP server does not answer." in page.text
    assert "its schema is unusable" in page.text
    assert "1 change waiting" in page.text
    assert "<script>alert(1)" not in page.text
    assert "\u202e" not in page.text


def test_the_upstreams_page_is_refused_to_approvers(dashboard: DashboardServer) -> None:
    """The page, its link and its forms are for administrators only."""
    server = added(dashboard, "closed")
    with dashboard.user_browser("dave") as dave:
        answers = [
            dave.get("/upstreams"),
            dave.post(f"/upstreams/{server.id}/accept", {"digest": "d" * 64}),
            dave.post(f"/upstreams/{server.id}/refresh"),
        ]
        home = dave.get("")

    assert [answer.status_code for answer in answers] == [403] * 3
    assert "not an administrator" in answers[0].text
    assert "/upstreams" not in home.text


def test_only_the_changes_that_the_user_saw_are_accepted(dashboard: DashboardServer) -> None:
    """A form about other changes is refused with 409."""
    server = added(dashboard, "moving")
    with dashboard.user_browser("alice") as alice:
        stale = alice.post(f"/upstreams/{server.id}/accept", {"seen": "0" * 64})
        unknown = alice.post(f"/upstreams/{server.id}/accept", {"digest": "e" * 64})
        page = alice.get("/upstreams").text

    assert (stale.status_code, unknown.status_code) == (409, 409)
    assert "delete_all" in page


def test_changes_of_a_simultaneous_refresh_are_not_accepted(
    dashboard: DashboardServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The buttons for one change and for all changes accept only what the page showed."""
    server = added(dashboard, "racing")
    upstreams = dashboard.services.upstreams.services
    store, catalogues = upstreams.store.catalogues, upstreams.administration._catalogues
    late = Change(section="tools", key="pay", before=None, after={"name": "pay"}, digest="e" * 64)
    accept = catalogues.accept

    async def meanwhile(server: UpstreamServer, digests: Sequence[str]) -> Catalogue | None:
        catalogue = await store.get("acme", server.id)
        assert catalogue is not None
        more = msgspec.structs.replace(catalogue, changes=(*catalogue.changes, late))
        await store.put("acme", more)
        return await accept(server, digests)

    monkeypatch.setattr(catalogues, "accept", meanwhile)
    with dashboard.user_browser("alice") as alice:
        page = alice.get("/upstreams").text
        location = page.index(f"/upstreams/{server.id}/accept")
        seen = re.search(r'name="seen" value="([0-9a-f]{64})"', page[location:])
        assert seen is not None
        answer = alice.post(f"/upstreams/{server.id}/accept", {"seen": seen[1]})

    stored = dashboard.run(store.get("acme", server.id))
    pins, _ = dashboard.run(store.pins("acme", server.id))
    assert answer.status_code == 303
    assert [change.key for change in stored.changes] == ["pay"]
    assert pins.get("tools", "pay") is None
    assert pins.get("tools", "delete_all") is not None


def test_accepting_a_change_is_recorded(dashboard: DashboardServer) -> None:
    """The audit page shows the record."""
    server = added(dashboard, "accepting")
    with dashboard.user_browser("alice") as alice:
        answer = alice.post(f"/upstreams/{server.id}/accept", {"digest": "d" * 64})
        trail = alice.get("/audit").text

    assert (answer.status_code, answer.headers["location"][-10:]) == (303, "/upstreams")
    assert re.search(r"accepted", trail)


def test_a_server_of_another_tenant_is_not_found(dashboard: DashboardServer) -> None:
    """A user who knows its id gets 404."""
    server = added(dashboard, "theirs", "globex")
    with dashboard.user_browser("alice") as alice:
        page = alice.get("/upstreams")
        answer = alice.post(f"/upstreams/{server.id}/accept", {"digest": "d" * 64})

    assert "theirs" not in page.text
    assert answer.status_code == 404


def test_an_administrator_disables_and_enables_a_server(dashboard: DashboardServer) -> None:
    """Each change is in the audit log, and an unknown server is 404."""
    server = added(dashboard, "switched")
    with dashboard.user_browser("alice") as alice:
        before = alice.get("/upstreams").text
        enabled = alice.post(f"/upstreams/{server.id}/status", {"status": "active"})
        page = alice.get("/upstreams").text
        disabled = alice.post(f"/upstreams/{server.id}/status", {"status": "disabled"})
        invalid = alice.post(f"/upstreams/{server.id}/status", {"status": "gone"})
        missing = alice.post("/upstreams/none/status", {"status": "disabled"})
        trail = alice.get("/audit").text

    assert 'aria-label="Enable switched"' in before
    assert 'aria-label="Disable switched"' in page
    statuses = [response.status_code for response in (enabled, disabled, invalid, missing)]
    assert statuses == [303, 303, 400, 404]
    assert re.search(r"enabled", trail)
    assert re.search(r"disabled", trail)


def test_the_page_shows_failing_calls_and_agents(dashboard: DashboardServer) -> None:
    """It has the error, the state of the circuit and the capabilities of agents."""
    upstreams = dashboard.services.upstreams.services
    server = added(dashboard, "dead")
    breaker = upstreams.calls.health.breaker_for("acme", server.id)
    for _ in range(5):
        breaker.failed(
            "unreachable", "dead refused the connection.", upstreams.calls.health.clock()
        )
    changes = AgentChanges(
        name="Support", client_id="support-bot", capabilities=({"ref": f"mcp:{server.id}"},)
    )
    actor = ManagementActor(operator="test")
    dashboard.run(upstreams.agents.add("acme", changes, actor))
    with dashboard.user_browser("alice") as alice:
        page = alice.get("/upstreams").text

    assert "5 calls of this process, 5 failed" in page
    assert "dead refused the connection." in page
    assert "<strong>open</strong>" in page
    assert "Support" in page
    assert "support-bot" in page


def test_without_upstreams_there_is_no_page_and_no_link(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """An administrator gets no link to it either."""
    with (
        open_dashboard_server(tmp_path_factory.mktemp("none")) as running,
        running.user_browser("alice") as alice,
    ):
        page, home = alice.get("/upstreams"), alice.get("")

    assert page.status_code == 404
    assert "/upstreams" not in home.text


def test_upstream_tools_are_on_the_pages_of_tools_and_requests(tmp_path: Path) -> None:
    """They have their server and their own name; markup in the description is text."""
    scripted = ScriptedServer()
    definition = {"name": "pay", "description": HOSTILE_TEXT, "inputSchema": {"type": "object"}}
    scripted.answers["tools/list"] = result_answer({"tools": [definition]})
    upstream = AsgiServer(scripted).start()
    table = UpstreamSettings(name="crm", tenants=("acme",), url=f"{upstream.url}/mcp")

    def change(config: Config) -> Config:
        network = msgspec.structs.replace(config.network, allow_hosts=(upstream.url.split("/")[2],))
        return msgspec.structs.replace(config, network=network, upstreams=(table,))

    opened = open_dashboard_server(
        tmp_path, change=change, cli_secret=CLI_SECRET, scopes=("mcp:crm",)
    )
    try:
        with opened as running, running.user_browser("dave") as dave:
            eventually(lambda: "mcp_crm__pay" in dave.get("/tools").text, within=20)
            tools = dave.get("/tools").text
            billing = BillingServer(running)
            scopes = {"scopes": "mcp:crm"}
            assert billing.call("mcp_crm__pay", {"n": 1}, "alice", **scopes).status_code == 503
            (waiting,) = running.run(running.services.approvals.waiting("acme"))
            request = dave.get(f"/approvals/{waiting.id}")
    finally:
        upstream.stop()

    assert "mcp:crm" in tools
    assert re.search(r"from <[^>]*>crm|from crm", tools), tools[tools.index("mcp_crm__pay") :][:600]
    assert request.status_code == 200
    assert "MCP server" in request.text
    for page in (tools, request.text):
        assert "<script>alert(1)" not in page
        assert "\u202e" not in page
    assert scripted.of("tools/call") == []
