"""SIGHUP: what the file says now holds for the next request, verdicts made before included."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.client import WELL_KNOWN, failure, result, session_call
from tests.support.commands import REFUSED_EVENT, ServerProcess, server_process
from tests.support.internet import ScriptedServer
from tests.support.internet import result_answer as upstream_result
from tests.support.issuers import AsgiServer, Idp
from tests.support.measuring import eventually
from tests.support.server import Settings, issuer_settings

TABLE = {"acme": "acme", "globex": "globex"}


def main_issuer(idp: Idp, **settings: object) -> Settings:
    return issuer_settings(idp, tenants=TABLE, **settings)


def second_issuer(idp: Idp, **settings: object) -> Settings:
    return issuer_settings(idp, "second", tenants={"two": "two"}, **settings)


@pytest.fixture
def server(idp: Idp, tmp_path: Path) -> Iterator[ServerProcess]:
    with server_process(idp, tmp_path, [main_issuer(idp), second_issuer(idp)]) as server:
        yield server


def listed_issuers(server: ServerProcess) -> list[str]:
    """Return the issuers in the metadata document."""
    document = json.loads(server.client.send("GET", f"{server.client.path}{WELL_KNOWN}").body)
    servers: list[str] = document["authorization_servers"]
    return servers


@pytest.mark.requirement("N18")
def test_an_issuer_can_be_removed_disabled_and_added_by_reload(
    server: ServerProcess, idp: Idp
) -> None:
    """Removed, disabled, added again: each holds at the next request, and others never notice."""
    token, other = server.token("second", org_id="two"), server.token()
    third = issuer_settings(idp, "third", tenants={"three": "three"})
    newcomer = server.token("third", org_id="three")
    # Twice, so that the verdict is a remembered one.
    assert [server.status(token), server.status(token), server.status(other)] == [200, 200, 200]
    assert server.status(newcomer) == 401

    server.reload(issuers=[main_issuer(idp)])
    assert [server.status(token), server.status(other)] == [401, 200]
    assert listed_issuers(server) == [idp.issuer("main")]

    server.reload(issuers=[main_issuer(idp), second_issuer(idp), third])
    assert [server.status(token), server.status(newcomer), server.status(other)] == [200, 200, 200]

    server.reload(issuers=[main_issuer(idp), second_issuer(idp, enabled=False), third])
    assert [server.status(token), server.status(newcomer), server.status(other)] == [401, 200, 200]
    assert listed_issuers(server) == [idp.issuer("main"), idp.issuer("third")]


@pytest.mark.requirement("N18")
def test_a_verdict_does_not_outlive_the_tenant_table(server: ServerProcess, idp: Idp) -> None:
    """As the table changes, the same token names another tenant and then none."""
    token = server.token()
    assert server.client.whoami(token)["tenant"] == "acme"

    server.reload(issuers=[issuer_settings(idp, tenants={"acme": "renamed"})])
    assert server.client.whoami(token)["tenant"] == "renamed"

    server.reload(issuers=[issuer_settings(idp, tenants={"globex": "globex"})])
    assert server.status(token) == 401


@pytest.mark.requirement("N18")
def test_a_verdict_does_not_outlive_roles_and_scope_rules(server: ServerProcess, idp: Idp) -> None:
    """Implied scopes, baseline and roles are judged by the rules in force."""
    token = server.token(roles=["boss"])
    rule = {"admin": {"claim": "roles", "value": "boss"}}
    assert server.client.whoami(token)["roles"] == []

    server.reload(
        issuers=[main_issuer(idp, roles=rule)], scopes={"implied": {"files:write": ["extra"]}}
    )
    caller = server.client.whoami(token)
    assert (caller["roles"], caller["scopes"]) == (["admin"], ["extra", "files:write"])

    server.reload(scopes={"baseline": ["mcp:use"]})
    assert server.status(token) == 403


@pytest.mark.requirement("N18", "A-28")
def test_a_suspension_holds_at_once_also_in_open_sessions(server: ServerProcess) -> None:
    """It covers messages and batches in both eras, and ends with the next reload."""
    token, neighbour = server.token(), server.token(org_id="globex")
    session = server.client.open(token, "2025-03-26")
    call = session_call("whoami")
    assert server.client.within(token, session, call).status == 200

    server.reload(tenancy={"suspended": ["acme"]})
    answers = [
        server.client.call(token, "whoami"),
        server.client.within(token, session, call),
        server.client.within(token, session, b"[" + call + b"]"),
    ]
    assert [answer.status for answer in answers] == [200, 200, 200]
    assert [failure(answer)["code"] for answer in answers] == [-31001] * 3
    assert server.status(neighbour) == 200

    server.reload(tenancy={})
    assert server.client.within(token, session, call).status == 200


def test_a_reload_adds_and_removes_tools(server: ServerProcess) -> None:
    """Files are read again; a tool that is gone is unknown."""
    token = server.token()
    assert "pid" in server.client.listed(token)

    extra = server.add_tool("extra")
    server.reload(tools={"packs": [], "load": [extra]})
    assert server.client.listed(token) == ["extra"]
    assert result(server.client.call(token, "extra"))
    assert failure(server.client.call(token, "pid"))["code"] == -32602

    (server.folder / "extra.py").write_text((server.folder / "pid.py").read_text())
    server.hang_up()
    assert server.client.listed(token) == ["pid"]


@pytest.mark.requirement("N18")
@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"isuers": []}, "issuers"),
        ({"issuers": []}, "authz.E010"),
        ({"tools": {"load": ["./missing.py"]}}, "config.E011"),
        ({"tenancy": {"suspended": ["Not An Id"]}}, "config.E018"),
    ],
)
def test_a_reload_of_an_invalid_configuration_changes_nothing(
    server: ServerProcess, changes: Settings, names: str
) -> None:
    """The old configuration stays in force, and the log names the mistake."""
    token = server.token()
    server.write({"challenge": {"error_without_credentials": False}} | changes)
    server.hang_up(REFUSED_EVENT)

    assert server.status(token) == 200
    assert 'error="invalid_token"' in (server.client.call(None).field("www-authenticate") or "")
    assert names in server.process.output


def test_a_reload_of_invalid_toml_changes_nothing(server: ServerProcess) -> None:
    """Such is a file that an editor has only half written."""
    (server.folder / "gatepost.toml").write_text('resource = "http')
    server.hang_up(REFUSED_EVENT)

    assert server.status(server.token()) == 200


def test_a_reload_adds_and_removes_upstreams(server: ServerProcess) -> None:
    """A file that names the first one serves it; without it, its tools are unknown again."""
    upstream = ScriptedServer()
    tool = {"name": "act", "inputSchema": {"type": "object"}}
    upstream.answers["tools/list"] = upstream_result({"tools": [tool]})
    upstream.answers["tools/call"] = upstream_result(
        {"content": [{"type": "text", "text": "done"}]}
    )
    running = AsgiServer(upstream).start()
    token, name = server.token(scope="mcp:crm"), "mcp_crm__act"
    host = running.url.split("/")[2]
    table = {"name": "crm", "tenants": ["acme"], "url": f"{running.url}/mcp"}
    try:
        assert name not in server.client.listed(token)
        server.reload(
            upstreams=[table],
            network={"allow_hosts": [host]},
            approvals={"destructive": "run"},
        )
        eventually(lambda: name in server.client.listed(token), within=20)
        assert server.client.call(token, name).status == 200
        assert len(upstream.of("tools/call")) == 1
        server.reload(upstreams=[])
        assert name not in server.client.listed(token)
        server.client.call(token, name)
        assert len(upstream.of("tools/call")) == 1
        server.reload(upstreams=[table])
        eventually(lambda: name in server.client.listed(token), within=20)
    finally:
        running.stop()
