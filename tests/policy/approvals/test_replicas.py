"""Payments at two replicas on PostgreSQL and Valkey, decided on the command line."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from gatepost.cli.main import main
from tests.policy.conftest import ApprovalServers
from tests.support.issuers import Idp
from tests.support.measuring import eventually
from tests.support.stores import Postgres, Valkey


@pytest.fixture(scope="module")
def servers(
    idp: Idp,
    tmp_path_factory: pytest.TempPathFactory,
    postgres_server: Postgres,
    postgres_template: str,
    valkey_server: Valkey,
) -> Iterator[ApprovalServers]:
    folder: Path = tmp_path_factory.mktemp("servers")
    with postgres_server.database(like=postgres_template) as database:
        servers = ApprovalServers(
            idp, folder, {"database": database, "shared": valkey_server.url()}
        )
        with servers.running():
            yield servers


@pytest.fixture(autouse=True)
def in_server_folder(servers: ApprovalServers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to the servers' folder, so that commands find what the configuration names."""
    monkeypatch.chdir(servers.folder)


@pytest.mark.requirement("A7")
def test_a_payment_waits_for_a_person_and_is_made_once(servers: ApprovalServers) -> None:
    """Asked for at one replica, decided at the command line, made at the other."""
    token = servers.token()

    status, body = servers.rest(0, token, to="ann", amount=5)
    assert (status, body["error"]) == (503, "approval_pending")
    assert body["retry_after"] > 0
    assert "waits for a person's approval until" in body["message"]
    assert servers.rest(1, token, to="ann", amount=5)[0] == 503

    request = servers.waiting()
    output = servers.operator("show", request)
    assert re.search(r"tool +transfer\ncaller +alice\nclient +client-1\n", output)
    assert '"to": "ann"' in output
    [digest] = re.findall(r"--digest (\w+)", output)
    assert "can run" in servers.operator("approve", request, "--digest", digest)

    status, body = servers.rest(1, token, to="ann", amount=5)
    assert (status, body["result"]) == (200, "paid ann 5")
    assert servers.rest(0, token, to="ann", amount=5)[0] == 503
    assert servers.paid("ann") == 1
    servers.operator("reject", servers.waiting())


def test_a_long_list_continues_with_a_cursor(
    servers: ApprovalServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last line has the option to add; an invented cursor is refused."""
    monkeypatch.setattr("gatepost.policy.approvals.request_lists.PAGE", 1)
    token = servers.token()
    for to in ("ann", "ben"):
        assert servers.rest(0, token, to=to, amount=7)[0] == 503
    _, first, _, more = servers.operator("list").splitlines()
    option, cursor = more.split(": add ")[1].split()
    _, second = servers.operator("list", option, cursor).splitlines()
    assert "--after takes" in servers.attempt(2, "list", "--after", "nothing")
    requests = [line.split()[0] for line in (first, second)]
    assert len(set(requests)) == 2
    for request in requests:
        servers.operator("reject", request)


@pytest.mark.requirement("A7")
@pytest.mark.requirement("A8")
def test_a_rejection_reaches_the_agent_with_its_reason(servers: ApprovalServers) -> None:
    """Both protocols show it as a failure to act on; asking again does not help."""
    token = servers.token()
    servers.rest(0, token, to="bob")

    servers.operator("reject", servers.waiting(), "--reason", "Bob left.")

    for at in (0, 1):
        status, body = servers.rest(at, token, to="bob")
        assert (status, body["error"]) == (403, "denied")
        assert "Their reason: Bob left." in body["message"]
        result = servers.mcp(at, token, to="bob")["result"]
        assert result["isError"]
        assert "Their reason: Bob left." in result["content"][0]["text"]
    assert servers.paid("bob") == 0
    assert "rejected" in servers.operator("list", "--past")


@pytest.mark.slow
@pytest.mark.requirement("A7")
def test_an_approval_survives_killed_servers(servers: ApprovalServers) -> None:
    """Both servers are killed after the decision, and a new one makes the payment."""
    token = servers.token()
    servers.rest(0, token, to="cyd")
    output = servers.operator("show", servers.waiting())
    [digest] = re.findall(r"--digest (\w+)", output)
    servers.operator("approve", servers.waiting(), "--digest", digest)

    servers.kill(0)
    servers.restart(1)

    assert servers.rest(1, token, to="cyd")[0] == 200
    assert servers.paid("cyd") == 1
    servers.restart(0)


def test_an_approval_needs_the_digest_of_the_shown_call(servers: ApprovalServers) -> None:
    """A missing or different digest is refused."""
    token = servers.token()
    servers.rest(0, token, to="dee")
    request = servers.waiting()

    assert "Nothing was approved" in servers.operator("approve", request)
    refused = servers.attempt(1, "approve", request, "--digest", "0" * 16)
    assert "not what you saw" in refused
    assert "no such request" in servers.attempt(1, "approve", "unknown", "--digest", "0" * 16)
    assert servers.rest(0, token, to="dee")[0] == 503
    servers.operator("reject", request)


def test_text_of_a_caller_cannot_control_the_terminal(servers: ApprovalServers) -> None:
    """The command line escapes the control characters of arguments and names."""
    servers.rest(0, servers.token(name="\N{RIGHT-TO-LEFT OVERRIDE}mallory"), to="\x1b[2J\u202eeve")
    request = servers.waiting()

    for output in (servers.operator("show", request), servers.operator("list")):
        assert all(character.isprintable() or character == "\n" for character in output)
    servers.operator("reject", request)


def test_a_webhook_gets_requests_and_decisions(servers: ApprovalServers) -> None:
    """Messages are signed and in order at every replica; they name no arguments and no people."""
    token = servers.token()
    servers.rest(1, token, to="fay-4711")
    request = servers.waiting()
    servers.operator("reject", request, "--reason", "never-4711")

    expected = [("approval.requested", "waiting"), ("approval.decided", "rejected")]
    # A message may come twice, by the same id.
    eventually(lambda: [*dict.fromkeys(servers.listener.events(request))] == expected, within=60)

    assert servers.listener.refused == 1
    text = b"".join(message.body for message in servers.listener.got)
    assert not any(private in text for private in (b"fay", b"never"))
    assert b"alice" not in text
    messages = {(message.headers["webhook-id"], message.body) for message in servers.listener.got}
    assert len(messages) == len({kind for kind, _ in messages})


def test_a_declared_tool_says_that_it_needs_a_person(servers: ApprovalServers) -> None:
    """`gatepost tools` has it, for people and for programs."""

    done = CliRunner().invoke(main, ["tools", "--json", "--config", "gatepost.toml"])

    assert '"approval": "always"' in done.output
    assert '"approval": "never"' in done.output


@pytest.mark.requirement("A7")
def test_decisions_are_recorded_for_the_audit(servers: ApprovalServers) -> None:
    """The export has the request, the decision and its reason."""
    token = servers.token()
    servers.rest(0, token, to="gus")
    request = servers.waiting()
    servers.operator("reject", request, "--reason", "Closed on Sundays.")

    exported = CliRunner().invoke(
        main, ["audit", "export", "--tenant", "acme", "--config", "gatepost.toml"]
    )

    lines = [line for line in exported.stdout.splitlines() if request in line]
    outcomes = [
        outcome for outcome in ("requested", "rejected") if any(outcome in x for x in lines)
    ]
    assert outcomes == ["requested", "rejected"]
    assert "Closed on Sundays." in "".join(lines)


@pytest.mark.requirement("A7")
def test_a_caller_that_is_denied_repeatedly_is_refused(servers: ApprovalServers) -> None:
    """Both replicas refuse all its calls until an operator ends the hold; others continue."""
    mallory, alice = servers.token(sub="mallory"), servers.token()
    servers.rest(0, mallory, to="mallory")
    servers.operator("reject", servers.waiting())

    denied = [servers.rest(at % 2, mallory, to="mallory")[1]["error"] for at in range(10)]
    assert denied == ["denied"] * 10
    for at in (0, 1):
        eventually(lambda at=at: servers.rest(at, mallory, "balance")[0] == 429, within=20)
        status, body = servers.rest(at, mallory, to="mallory")
        assert (status, body["error"]) == (429, "rate_limited")
        assert "were denied" in body["message"]
        assert 0 < body["retry_after"] <= 600
        assert servers.mcp(at, mallory, to="mallory")["error"]["data"]["limit"] == "hold"
        assert servers.rest(at, alice, "balance")[0] == 200

    [hold] = re.findall(r"hold-\w+", output := operator_output("revoke", "--list"))
    assert "calls held until" in output
    assert '"outcome":"held"' in operator_output("audit", "export", "--tenant", "acme")
    assert "Hold ended" in operator_output("revoke", "--undo", hold)
    for at in (0, 1):
        eventually(lambda at=at: servers.rest(at, mallory, "balance")[0] == 200, within=20)


def operator_output(*command: str) -> str:
    """Return what a command of the operator prints."""
    done = CliRunner().invoke(main, [*command, "--config", "gatepost.toml"])
    assert done.exit_code == 0, done.output
    return done.stdout
