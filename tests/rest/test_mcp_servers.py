"""`/v1/mcp-servers`: a tenant's administrators manage its upstreams, and see no secret."""

from collections.abc import Iterator
from typing import Any

import pytest

from gatepost.audit.record import search
from gatepost.storage.audit import AuditQuery
from tests.support.client import RestClient
from tests.support.issuers import Idp
from tests.support.server import Server, issuer_settings, running_server

ADMIN = "gatepost:admin"
SERVERS = "/v1/mcp-servers"
LEARN_SERVER = {
    "name": "microsoft_learn",
    "description": "Microsoft Learn documentation server",
    "url": "https://learn.microsoft.com/api/mcp",
    "transport_type": "http",
    "api_key": "optional-api-key",
    "headers": {"X-Custom-Header": "value-of-a-header"},
}
"""The example of the seed document."""


@pytest.fixture(scope="module")
def server(idp: Idp) -> Iterator[Server]:
    upstreams = [
        {"name": "for_acme", "tenants": ["acme"], "url": "https://mcp.example.com/mcp"},
        {"name": "for_all", "tenants": ["*"], "url": "https://all.example.com/mcp"},
    ]
    anybody = {"create_on_first_use": True}
    with running_server(
        idp,
        [issuer_settings(idp)],
        tenancy=anybody,
        upstreams=upstreams,
        scopes={"admin": ADMIN},
    ) as server:
        yield server


@pytest.fixture
def admin(server: Server) -> Iterator[RestClient]:
    """Yield an administrator of `acme`, whose servers are removed afterwards."""
    administrator = RestClient(server, server.token(scope=ADMIN))
    yield administrator
    for registered_server in administrator.ask("GET", SERVERS).json["data"]:
        if registered_server["source"] == "api":
            assert administrator.ask("DELETE", f"{SERVERS}/{registered_server['id']}").status == 204


@pytest.mark.requirement("E1", "E6", "E7")
def test_the_example_of_the_document_is_added_read_changed_and_removed(admin: RestClient) -> None:
    """Create, read, disable, delete, with the documented fields, and never a secret."""
    added = admin.ask("POST", SERVERS, LEARN_SERVER)
    assert added.status == 201, added
    path = f"{SERVERS}/{added.json['id']}"
    read = admin.ask("GET", path)
    listed = admin.ask("GET", SERVERS)

    assert read.json["api_key_set"] is True
    assert read.json["transport_type"] == "http"
    assert read.json["status"] == "active"
    assert read.json["cached_tools"] == []
    assert read.json["tools_cached_at"] is None
    assert read.json["header_names"] == ["x-custom-header"]
    assert read.json["created_at"].endswith("Z")
    for answer in (added, read, listed):
        assert b"optional-api-key" not in answer.raw.body
        assert b"value-of-a-header" not in answer.raw.body
    disabled = admin.ask("PATCH", path, {"status": "disabled"})
    assert (disabled.status, disabled.json["status"]) == (200, "disabled")
    assert admin.ask("DELETE", path).status == 204
    assert admin.ask("GET", path).error == (404, "not_found")


REFUSED_BODIES: dict[str, tuple[dict[str, Any], str]] = {
    "no name": ({"url": "https://a.example.com/mcp"}, "name"),
    "empty name": ({"name": " "}, "name"),
    "long name": ({"name": "n" * 256}, "name"),
    "name with a line break": ({"name": "a\nb"}, "name"),
    "name of another type": ({"name": 7}, "name"),
    "no url": ({"name": "a"}, "url"),
    "long url": ({"url": "https://a.example.com/" + "p" * 2_048}, "url"),
    "ftp": ({"url": "ftp://a.example.com/"}, "url"),
    "plain http": ({"url": "http://a.example.com/mcp"}, "url"),
    "user in the url": ({"url": "https://u:p@a.example.com/mcp"}, "url"),
    "url of another type": ({"url": None}, "url"),
    "long description": ({"description": "d" * 10_241}, "description"),
    "transport": ({"transport_type": "stdio"}, "transport_type"),
    "command": ({"command": "sh"}, "command"),
    "args": ({"args": ["-c", "id"]}, "args"),
    "env": ({"env": {"A": "b"}}, "env"),
    "short key": ({"api_key": "short"}, "api_key"),
    "key with a line break": ({"api_key": "long-enough\r\nX-Evil: 1"}, "api_key"),
    "101 headers": ({"headers": {f"X-{at}": "v" for at in range(101)}}, "headers"),
    "header twice": ({"headers": {"X-A": "v", "x-a": "w"}}, "headers"),
    "header with a line break": ({"headers": {"X-A": "v\r\nX-Evil: 1"}}, "headers"),
    "header name with a colon": ({"headers": {"X-A:": "v"}}, "headers"),
    "header value of another type": ({"headers": {"X-A": 1}}, "headers"),
    "status": ({"status": "paused"}, "status"),
    "unknown member": ({"api_keys": "k"}, "api_keys"),
    "credential": ({"credential": "crm"}, "credential"),
}
"""What is added to a good body (unless it is the point that something is missing)."""

FORBIDDEN_HEADERS = (
    *("Authorization", "Host", "Cookie", "Content-Length", "Content-Type", "Connection"),
    *("Proxy-Authorization", "Mcp-Session-Id", "MCP-Protocol-Version", "traceparent"),
    *("Transfer-Encoding", "Accept", "Last-Event-ID", "X-Forwarded-For"),
)


@pytest.mark.requirement("E1")
@pytest.mark.parametrize("name", REFUSED_BODIES)
def test_a_body_with_a_wrong_field_is_refused_and_names_it(admin: RestClient, name: str) -> None:
    """The answer is 400, and nothing is stored."""
    fields, field = REFUSED_BODIES[name]
    body = fields if name in {"no name", "no url"} else {**LEARN_SERVER, **fields}
    answer = admin.ask("POST", SERVERS, body)

    assert answer.error == (400, "invalid_field")
    assert answer.json["field"] == field
    assert [server["source"] for server in admin.ask("GET", SERVERS).json["data"]] == [
        "configuration"
    ] * 2


@pytest.mark.parametrize("header", FORBIDDEN_HEADERS)
def test_headers_that_frame_a_message_cannot_be_set(admin: RestClient, header: str) -> None:
    """The API refuses them when a server is added and when it is changed."""
    added = admin.ask("POST", SERVERS, {**LEARN_SERVER, "headers": {}})
    for answer in (
        admin.ask("POST", SERVERS, {**LEARN_SERVER, "name": "b", "headers": {header: "value"}}),
        admin.ask("PATCH", f"{SERVERS}/{added.json['id']}", {"headers": {header: "value"}}),
    ):
        assert (answer.error, answer.json["field"]) == ((400, "invalid_field"), "headers")


def test_the_nearest_field_is_named(admin: RestClient) -> None:
    """A typing error is found at once."""
    answer = admin.ask("POST", SERVERS, {**LEARN_SERVER, "apikey": "k"})

    assert "Did you mean api_key?" in answer.json["message"]


def test_a_name_is_taken_once(admin: RestClient) -> None:
    """Names of the API and of the configuration are unique, also after a rename."""
    first = admin.ask("POST", SERVERS, LEARN_SERVER)
    second = admin.ask("POST", SERVERS, {**LEARN_SERVER, "name": "other"})
    path = f"{SERVERS}/{second.json['id']}"

    assert first.status == second.status == 201
    assert admin.ask("POST", SERVERS, LEARN_SERVER).error == (409, "conflict")
    assert admin.ask("POST", SERVERS, {**LEARN_SERVER, "name": "for_acme"}).error == (
        409,
        "conflict",
    )
    assert admin.ask("PATCH", path, {"name": LEARN_SERVER["name"]}).error == (409, "conflict")


@pytest.mark.requirement("E6")
def test_stored_secrets_do_not_follow_a_server_to_another_host(admin: RestClient) -> None:
    """An administrator who does not know the key cannot send it to another host."""
    added = admin.ask("POST", SERVERS, LEARN_SERVER)
    path = f"{SERVERS}/{added.json['id']}"
    elsewhere = {"url": "https://evil.example.com/mcp"}

    assert admin.ask("PATCH", path, elsewhere).error == (400, "invalid_field")
    assert admin.ask("PATCH", path, {**elsewhere, "api_key": None}).error[0] == 400
    moved = admin.ask("PATCH", path, {**elsewhere, "api_key": None, "headers": {}})
    assert (moved.status, moved.json["api_key_set"], moved.json["header_names"]) == (200, False, [])


@pytest.mark.requirement("E8")
def test_servers_of_the_configuration_are_shown_and_cannot_be_changed(admin: RestClient) -> None:
    """Only the operator changes them."""
    for server in admin.ask("GET", SERVERS).json["data"]:
        path = f"{SERVERS}/{server['id']}"
        assert server["source"] == "configuration"
        assert admin.ask("GET", path).json["id"] == server["id"]
        assert admin.ask("PATCH", path, {"status": "disabled"}).error == (409, "conflict")
        assert admin.ask("DELETE", path).error == (409, "conflict")


@pytest.mark.requirement("E1")
def test_servers_of_two_tenants_are_isolated(server: Server, admin: RestClient) -> None:
    """They may have the same name; another tenant's id is unknown to every method."""
    other = RestClient(server, server.token(scope=ADMIN, org_id="globex"))
    mine = admin.ask("POST", SERVERS, LEARN_SERVER).json
    theirs = other.ask("POST", SERVERS, {**LEARN_SERVER, "api_key": "another-key-of-globex"}).json
    path = f"{SERVERS}/{mine['id']}"

    assert mine["id"] != theirs["id"]
    assert theirs["id"] not in {server["id"] for server in admin.ask("GET", SERVERS).json["data"]}
    assert {server["name"] for server in other.ask("GET", SERVERS).json["data"]} == {
        "for_all",
        "microsoft_learn",
    }
    for answer in (
        other.ask("GET", path),
        other.ask("PATCH", path, {"status": "disabled"}),
        other.ask("DELETE", path),
        other.ask("POST", f"{path}/refresh"),
    ):
        assert answer.error == (404, "not_found")
    assert admin.ask("GET", path).json["status"] == "active"
    assert other.ask("DELETE", f"{SERVERS}/{theirs['id']}").status == 204


def test_a_token_without_the_scope_is_challenged(server: Server) -> None:
    """Every method answers 403 with the needed scope."""
    caller = RestClient(server, server.token(scope="files:read"))
    for method, path in (("GET", SERVERS), ("POST", SERVERS), ("GET", "/v1/agents")):
        answer = caller.ask(method, path, LEARN_SERVER if method == "POST" else None)
        assert answer.status == 403
        assert f'scope="{ADMIN}"' in answer.raw.field("www-authenticate")


@pytest.mark.requirement("E2")
def test_a_refresh_of_a_server_that_does_not_answer_is_502(admin: RestClient) -> None:
    """The sentence names the server and quotes nothing of it."""
    added = admin.ask("POST", SERVERS, {"name": "gone", "url": "https://gone.invalid/mcp"})
    answer = admin.ask("POST", f"{SERVERS}/{added.json['id']}/refresh")

    assert answer.error == (502, "upstream_unreachable")
    assert "gone" in answer.json["message"]


def test_changes_are_recorded_without_secrets(server: Server, admin: RestClient) -> None:
    """Records have the actor, the action and the server; records and log have no secret."""
    added = admin.ask("POST", SERVERS, LEARN_SERVER).json
    admin.ask("PATCH", f"{SERVERS}/{added['id']}", {"status": "disabled"})
    admin.ask("DELETE", f"{SERVERS}/{added['id']}")
    query = search(server.services.audit_writer.store, "acme", AuditQuery(kind="upstream"))
    records = server.run(query)
    mine = [record for record in records if record.details.get("id") == added["id"]]
    written = server.log() + repr(records)

    assert [record.outcome for record in mine] == ["removed", "disabled", "added"]
    assert all(record.details["server"] == "microsoft_learn" and record.caller for record in mine)
    assert "optional-api-key" not in written
    assert "value-of-a-header" not in written


@pytest.mark.requirement("E9")
def test_an_agent_gets_the_capabilities_that_exist(server: Server, admin: RestClient) -> None:
    """They must be servers or packs of its own tenant."""
    learn = admin.ask("POST", SERVERS, {"name": "learn", "url": "https://a.example.com/mcp"}).json
    listed = admin.ask("GET", "/v1/capabilities").json["data"]
    reference = f"mcp:{learn['id']}"

    shown_agent = next(agent for agent in listed if agent["id"] == reference)
    assert (shown_agent["icon"], shown_agent["category"]) == ("plug", "MCP Servers")
    assert "pack:demo" in {agent["id"] for agent in listed}
    agent = admin.ask("POST", "/v1/agents", {"name": "assistant", "client_id": "assistant-1"})
    assert agent.status == 201
    path = f"/v1/agents/{agent.json['id']}"
    changed = admin.ask("PATCH", path, {"capabilities": [{"ref": reference}]})
    assert changed.json["capabilities"] == [{"ref": reference}]
    for wrong in ("mcp:01933b5a-0000-7000-8000-000000000501", "pack:nothing", "nothing"):
        refused = admin.ask("PATCH", path, {"capabilities": [{"ref": wrong}]})
        assert (refused.error, refused.json["field"]) == ((400, "invalid_field"), "capabilities")
    taken = admin.ask("POST", "/v1/agents", {"name": "second", "client_id": "assistant-1"})
    assert taken.error == (409, "conflict")
    other = RestClient(server, server.token(scope=ADMIN, org_id="globex"))
    assert other.ask("GET", path).error == (404, "not_found")
    assert (
        other.ask("POST", "/v1/agents", {"name": "x", "capabilities": [{"ref": reference}]}).error[
            0
        ]
        == 400
    )
    assert admin.ask("DELETE", path).status == 204
    assert admin.ask("GET", path).error == (404, "not_found")
