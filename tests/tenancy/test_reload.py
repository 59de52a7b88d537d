"""SIGHUP: what the file says now holds for the next request, verdicts made before included."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.client import WELL_KNOWN, failure, old_call, result
from tests.support.commands import REFUSED, ServerProcess, server_process
from tests.support.issuers import Idp
from tests.support.server import Settings, issuer_settings

TABLE = {"acme": "acme", "globex": "globex"}


def main(idp: Idp, **settings: object) -> Settings:
    return issuer_settings(idp, tenants=TABLE, **settings)


def second(idp: Idp, **settings: object) -> Settings:
    return issuer_settings(idp, "second", tenants={"two": "two"}, **settings)


@pytest.fixture
def site(idp: Idp, tmp_path: Path) -> Iterator[ServerProcess]:
    with server_process(idp, tmp_path, [main(idp), second(idp)]) as site:
        yield site


def listed(site: ServerProcess) -> list[str]:
    """The issuers in the metadata document."""
    document = json.loads(site.client.send("GET", f"{site.client.path}{WELL_KNOWN}").body)
    servers: list[str] = document["authorization_servers"]
    return servers


@pytest.mark.requirement("N18")
def test_an_issuer_comes_goes_and_comes_back(site: ServerProcess, idp: Idp) -> None:
    """Removed, disabled, added again: each holds at the next request, and others never notice."""
    token, other = site.token("second", org_id="two"), site.token()
    third = issuer_settings(idp, "third", tenants={"three": "three"})
    newcomer = site.token("third", org_id="three")
    # Twice, so that the verdict is a remembered one.
    assert [site.status(token), site.status(token), site.status(other)] == [200, 200, 200]
    assert site.status(newcomer) == 401

    site.reload(issuers=[main(idp)])
    assert [site.status(token), site.status(other)] == [401, 200]
    assert listed(site) == [idp.issuer("main")]

    site.reload(issuers=[main(idp), second(idp), third])
    assert [site.status(token), site.status(newcomer), site.status(other)] == [200, 200, 200]

    site.reload(issuers=[main(idp), second(idp, enabled=False), third])
    assert [site.status(token), site.status(newcomer), site.status(other)] == [401, 200, 200]
    assert listed(site) == [idp.issuer("main"), idp.issuer("third")]


@pytest.mark.requirement("N18")
def test_a_verdict_does_not_outlive_the_tenant_table(site: ServerProcess, idp: Idp) -> None:
    """The same token names another tenant, then none, as the table changes."""
    token = site.token()
    assert site.client.whoami(token)["tenant"] == "acme"

    site.reload(issuers=[issuer_settings(idp, tenants={"acme": "renamed"})])
    assert site.client.whoami(token)["tenant"] == "renamed"

    site.reload(issuers=[issuer_settings(idp, tenants={"globex": "globex"})])
    assert site.status(token) == 401


@pytest.mark.requirement("N18")
def test_a_verdict_does_not_outlive_roles_and_scope_rules(site: ServerProcess, idp: Idp) -> None:
    """Implied scopes, baseline and roles are judged by the rules in force."""
    token = site.token(roles=["boss"])
    rule = {"admin": {"claim": "roles", "value": "boss"}}
    assert site.client.whoami(token)["roles"] == []

    site.reload(issuers=[main(idp, roles=rule)], scopes={"implied": {"files:write": ["extra"]}})
    caller = site.client.whoami(token)
    assert (caller["roles"], caller["scopes"]) == (["admin"], ["extra", "files:write"])

    site.reload(scopes={"baseline": ["mcp:use"]})
    assert site.status(token) == 403


@pytest.mark.requirement("N18", "A-28")
def test_a_suspension_holds_at_once_also_in_open_sessions(site: ServerProcess) -> None:
    """In both eras, for one message and for a batch; the neighbour goes on, and it ends."""
    token, neighbour = site.token(), site.token(org_id="globex")
    session = site.client.open(token, "2025-03-26")
    call = old_call("whoami")
    assert site.client.within(token, session, call).status == 200

    site.reload(tenancy={"suspended": ["acme"]})
    answers = [
        site.client.call(token, "whoami"),
        site.client.within(token, session, call),
        site.client.within(token, session, b"[" + call + b"]"),
    ]
    assert [answer.status for answer in answers] == [200, 200, 200]
    assert [failure(answer)["code"] for answer in answers] == [-31001] * 3
    assert site.status(neighbour) == 200

    site.reload(tenancy={})
    assert site.client.within(token, session, call).status == 200


def test_tools_come_and_go(site: ServerProcess) -> None:
    """Files are read again; a tool that is gone is unknown."""
    token = site.token()
    assert "pid" in site.client.listed(token)

    extra = site.add_tool("extra")
    site.reload(tools={"packs": [], "load": [extra]})
    assert site.client.listed(token) == ["extra"]
    assert result(site.client.call(token, "extra"))
    assert failure(site.client.call(token, "pid"))["code"] == -32602

    (site.folder / "extra.py").write_text((site.folder / "pid.py").read_text())
    site.hang_up()
    assert site.client.listed(token) == ["pid"]


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
def test_a_broken_file_changes_nothing_and_says_so(
    site: ServerProcess, changes: Settings, names: str
) -> None:
    """Whole or not at all: what was in force stays, and the log names the mistake."""
    token = site.token()
    site.write({"challenge": {"error_without_credentials": False}} | changes)
    site.hang_up(REFUSED)

    assert site.status(token) == 200
    assert 'error="invalid_token"' in (site.client.call(None).field("www-authenticate") or "")
    assert names in site.process.output


def test_a_file_that_is_no_toml_changes_nothing(site: ServerProcess) -> None:
    """An editor caught half-way."""
    (site.folder / "gatepost.toml").write_text('resource = "http')
    site.hang_up(REFUSED)

    assert site.status(site.token()) == 200
