"""Payments at two replicas on PostgreSQL and Valkey, decided on the command line."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from gatepost.cli import main
from tests.approvals.bank import Bank
from tests.support.idp import Idp
from tests.support.postgres import Postgres
from tests.support.valkey import Valkey
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def bank(
    idp: Idp,
    tmp_path_factory: pytest.TempPathFactory,
    postgres_server: Postgres,
    postgres_template: str,
    valkey_server: Valkey,
) -> Iterator[Bank]:
    folder: Path = tmp_path_factory.mktemp("bank")
    with postgres_server.database(like=postgres_template) as database:
        bank = Bank(idp, folder, {"database": database, "shared": valkey_server.url()})
        with bank.running():
            yield bank


@pytest.fixture(autouse=True)
def there(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator's commands find what the configuration names."""
    monkeypatch.chdir(bank.folder)


@pytest.mark.requirement("A7")
def test_a_payment_waits_for_a_person_and_is_made_once(bank: Bank) -> None:
    """Asked for at one replica, decided at the command line, made at the other."""
    token = bank.token()

    status, body = bank.rest(0, token, to="ann", amount=5)
    assert (status, body["error"]) == (503, "approval_pending")
    assert body["retry_after"] > 0
    assert "waits for a person's approval until" in body["message"]
    assert bank.rest(1, token, to="ann", amount=5)[0] == 503

    request = bank.waiting()
    shown = bank.operator("show", request)
    assert re.search(r"tool +pay\ncaller +alice\nclient +client-1\n", shown)
    assert '"to": "ann"' in shown
    [digest] = re.findall(r"--digest (\w+)", shown)
    assert "may run" in bank.operator("approve", request, "--digest", digest)

    status, body = bank.rest(1, token, to="ann", amount=5)
    assert (status, body["result"]) == (200, "paid ann 5")
    assert bank.rest(0, token, to="ann", amount=5)[0] == 503
    assert bank.paid("ann") == 1
    bank.operator("reject", bank.waiting())


@pytest.mark.requirement("A7")
@pytest.mark.requirement("A8")
def test_a_rejection_reaches_the_agent_with_its_reason(bank: Bank) -> None:
    """By both protocols, as something it can act on; asking again does not help."""
    token = bank.token()
    bank.rest(0, token, to="bob")

    bank.operator("reject", bank.waiting(), "--reason", "Bob left.")

    for at in (0, 1):
        status, body = bank.rest(at, token, to="bob")
        assert (status, body["error"]) == (403, "denied")
        assert "Their reason: Bob left." in body["message"]
        result = bank.mcp(at, token, to="bob")["result"]
        assert result["isError"]
        assert "Their reason: Bob left." in result["content"][0]["text"]
    assert bank.paid("bob") == 0
    assert "rejected" in bank.operator("list", "--past")


@pytest.mark.slow
@pytest.mark.requirement("A7")
def test_what_was_approved_survives_the_servers(bank: Bank) -> None:
    """Both are killed after the decision; the payment is made by one that knew nothing of it."""
    token = bank.token()
    bank.rest(0, token, to="cyd")
    shown = bank.operator("show", bank.waiting())
    [digest] = re.findall(r"--digest (\w+)", shown)
    bank.operator("approve", bank.waiting(), "--digest", digest)

    bank.kill(0)
    bank.restart(1)

    assert bank.rest(1, token, to="cyd")[0] == 200
    assert bank.paid("cyd") == 1
    bank.restart(0)


def test_only_what_was_looked_at_is_approved(bank: Bank) -> None:
    """Without a digest, and with another one, nothing happens."""
    token = bank.token()
    bank.rest(0, token, to="dee")
    request = bank.waiting()

    assert "Nothing is approved yet" in bank.operator("approve", request)
    refused = bank.attempt(1, "approve", request, "--digest", "0" * 16)
    assert "not what you saw" in refused
    assert "no such request" in bank.attempt(1, "approve", "unknown", "--digest", "0" * 16)
    assert bank.rest(0, token, to="dee")[0] == 503
    bank.operator("reject", request)


def test_nothing_of_a_stranger_moves_the_terminal(bank: Bank) -> None:
    """Arguments and names are shown with what a terminal would act on as escapes."""
    bank.rest(0, bank.token(name="\N{RIGHT-TO-LEFT OVERRIDE}mallory"), to="\x1b[2J\u202eeve")
    request = bank.waiting()

    for shown in (bank.operator("show", request), bank.operator("list")):
        assert all(one.isprintable() or one == "\n" for one in shown)
    bank.operator("reject", request)


def test_a_listener_is_told_of_requests_and_decisions(bank: Bank) -> None:
    """Signed, in their order, whoever made the change; neither arguments nor people are in it."""
    token = bank.token()
    bank.rest(1, token, to="fay-4711")
    request = bank.waiting()
    bank.operator("reject", request, "--reason", "never-4711")

    expected = [("approval.requested", "waiting"), ("approval.decided", "rejected")]
    # A message may come twice, by the same id.
    eventually(lambda: [*dict.fromkeys(bank.listener.events(request))] == expected, within=60)

    assert bank.listener.refused == 1
    told = b"".join(message.body for message in bank.listener.got)
    assert b"4711" not in told
    assert b"alice" not in told
    messages = {(message.headers["webhook-id"], message.body) for message in bank.listener.got}
    assert len(messages) == len({one for one, _ in messages})


def test_a_declared_tool_says_that_it_needs_a_person(bank: Bank) -> None:
    """`gatepost tools` has it, for people and for programs."""

    done = CliRunner().invoke(main, ["tools", "--json", "--config", "gatepost.toml"])

    assert '"approval": "always"' in done.output
    assert '"approval": "never"' in done.output


@pytest.mark.requirement("A7")
def test_decisions_are_on_record(bank: Bank) -> None:
    """What was asked, what was decided and by whom, for the audit; the reason can be erased."""
    token = bank.token()
    bank.rest(0, token, to="gus")
    request = bank.waiting()
    bank.operator("reject", request, "--reason", "Closed on Sundays.")

    exported = CliRunner().invoke(
        main, ["audit", "export", "--tenant", "acme", "--config", "gatepost.toml"]
    )

    lines = [line for line in exported.stdout.splitlines() if request in line]
    outcomes = [
        outcome for outcome in ("requested", "rejected") if any(outcome in x for x in lines)
    ]
    assert outcomes == ["requested", "rejected"]
    assert "Closed on Sundays." in "".join(lines)
