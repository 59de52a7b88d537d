"""The upstreams page: health, changes and their acceptance, for administrators of the tenant."""

import re
from collections.abc import Iterator

import pytest

from gatepost.upstreams.catalogue import Catalogue, Change, LeftOut
from gatepost.upstreams.management_audit import ManagementActor
from gatepost.upstreams.registration_changes import ServerChanges
from gatepost.upstreams.server import UpstreamServer
from tests.dashboard.conftest import DashboardServer, open_dashboard_server

HOSTILE = "<script>alert(1)</script>\u202e\u200b"


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardServer]:
    with open_dashboard_server(tmp_path_factory.mktemp("upstreams")) as running:
        yield running


def added(dashboard: DashboardServer, name: str, tenant: str = "acme") -> UpstreamServer:
    """A server that an administrator registered, and which was fetched once."""
    administration = dashboard.services.upstreams.administration
    changes = ServerChanges(name=name, url="https://mcp.example.com/mcp", status="disabled")

    async def work() -> UpstreamServer:
        server = await administration.add(tenant, changes, ManagementActor(operator="test"))
        await dashboard.services.upstreams.store.catalogues.put(
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
                        after={"name": "delete_all", "description": HOSTILE},
                        digest="d" * 64,
                    ),
                ),
            ),
        )
        return server

    found: UpstreamServer = dashboard.run(work())
    return found


def test_an_administrator_sees_what_fails_what_is_left_out_and_what_waits(
    dashboard: DashboardServer,
) -> None:
    """Each with its reason, and the upstream's own text can do nothing."""
    added(dashboard, "crm")
    with dashboard.guest("alice") as alice:
        page = alice.get("/upstreams")

    assert page.status_code == 200
    assert "The MCP server does not answer." in page.text
    assert "its schema is unusable" in page.text
    assert "1 change waiting" in page.text
    assert "<script>alert(1)" not in page.text
    assert "\u202e" not in page.text


def test_an_approver_who_is_no_administrator_sees_nothing(dashboard: DashboardServer) -> None:
    """Neither the page, nor the link to it, nor the forms."""
    server = added(dashboard, "closed")
    with dashboard.guest("dave") as dave:
        answers = [
            dave.get("/upstreams"),
            dave.post(f"/upstreams/{server.id}/accept", {"digest": "d" * 64}),
            dave.post(f"/upstreams/{server.id}/refresh"),
        ]
        home = dave.get("")

    assert [one.status_code for one in answers] == [403] * 3
    assert "not an administrator" in answers[0].text
    assert "/upstreams" not in home.text


def test_only_the_changes_that_the_visitor_saw_are_accepted(dashboard: DashboardServer) -> None:
    """If others wait by now, nothing is accepted and the page says so."""
    server = added(dashboard, "moving")
    with dashboard.guest("alice") as alice:
        stale = alice.post(f"/upstreams/{server.id}/accept", {"seen": "0" * 64})
        unknown = alice.post(f"/upstreams/{server.id}/accept", {"digest": "e" * 64})
        page = alice.get("/upstreams").text

    assert (stale.status_code, unknown.status_code) == (409, 409)
    assert "delete_all" in page


def test_accepting_a_change_is_put_on_record(dashboard: DashboardServer) -> None:
    """With the server, the definition and its digest."""
    server = added(dashboard, "accepting")
    with dashboard.guest("alice") as alice:
        answer = alice.post(f"/upstreams/{server.id}/accept", {"digest": "d" * 64})
        trail = alice.get("/audit").text

    assert (answer.status_code, answer.headers["location"][-10:]) == (303, "/upstreams")
    assert re.search(r"accepted", trail)


def test_a_server_of_another_tenant_is_not_found(dashboard: DashboardServer) -> None:
    """Its id changes nothing about that."""
    server = added(dashboard, "theirs", "globex")
    with dashboard.guest("alice") as alice:
        page = alice.get("/upstreams")
        answer = alice.post(f"/upstreams/{server.id}/accept", {"digest": "d" * 64})

    assert "theirs" not in page.text
    assert answer.status_code == 404
