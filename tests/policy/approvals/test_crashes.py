"""Webhook messages of servers that were killed are sent by the other replicas."""

import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from gatepost.cli.main import main
from tests.policy.conftest import ApprovalServers
from tests.support.issuers import Idp
from tests.support.measuring import eventually

WITHIN_S = 240.0
"""The longest pause between two attempts, and the time for which a message is left to its taker."""
PAYMENT_COUNT = 12
REFUSED_COUNT = 4
"""Attempts that fail at first: with five for each message, none is given up for them."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]  # a dead server's lease: 20 s each


@pytest.fixture(params=["sqlite", "postgresql"], scope="module")
def servers(
    request: pytest.FixtureRequest, idp: Idp, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApprovalServers]:
    """Yield two servers that have only a database in common."""
    folder: Path = tmp_path_factory.mktemp("killed")
    if request.param == "sqlite":
        servers = ApprovalServers(idp, folder, {"database": "sqlite:///records.db"})
        with servers.running():
            yield servers
        return
    server = request.getfixturevalue("postgres_server")
    template: str = request.getfixturevalue("postgres_template")
    with server.database(like=template) as database:
        servers = ApprovalServers(idp, folder, {"database": database})
        with servers.running():
            yield servers


def deliveries(servers: ApprovalServers) -> Counter[str]:
    """Return how often the listener took each message about a request, by message id."""
    taken = [*servers.listener.got]
    return Counter(
        message.headers["webhook-id"] for message in taken if "requested" in message.event["type"]
    )


def assert_same_content(servers: ApprovalServers) -> None:
    """Check that every message that came twice, taken or not, had the same content."""
    bodies: dict[str, set[bytes]] = {}
    for message in [*servers.listener.tried]:
        assert message.event  # verifies the signature
        bodies.setdefault(message.headers["webhook-id"], set()).add(message.body)
    assert {len(body) for body in bodies.values()} == {1}


def request_payment(servers: ApprovalServers, at: int, to: str) -> None:
    """Ask one of the servers for a payment; return when it has answered, before any webhook."""
    servers.listener.refusing = servers.listener.refused + 10**6
    status, body = servers.rest(at, servers.token(subject=to), to=to)
    assert (status, body["error"]) == (503, "approval_pending")


def deliver_messages(servers: ApprovalServers, before: int) -> None:
    """Let the listener take messages; wait for one more than *before*."""
    servers.listener.refusing = 0
    eventually(lambda: len(deliveries(servers)) == before + 1, within=WITHIN_S)
    assert_same_content(servers)


@pytest.mark.requirement("A7")
def test_another_server_sends_the_webhook_messages_of_a_killed_one(
    servers: ApprovalServers,
) -> None:
    """The other server knew of neither the request nor the message."""
    before = len(deliveries(servers))
    request_payment(servers, 1, to="ivy")
    servers.kill(1)

    deliver_messages(servers, before)

    servers.restart(1)


@pytest.mark.requirement("A7")
def test_a_restarted_server_sends_unsent_webhook_messages(servers: ApprovalServers) -> None:
    """While no server runs, only the database has the unsent messages."""
    before = len(deliveries(servers))
    request_payment(servers, 0, to="joe")
    for number in (0, 1):
        servers.kill(number)
    servers.restart(0)

    deliver_messages(servers, before)

    servers.restart(1)


def test_retries_of_two_servers_repeat_the_same_webhook_message(servers: ApprovalServers) -> None:
    """Both servers look for messages; each request has one message with one id."""
    before, tried = deliveries(servers), len(servers.listener.tried)
    servers.listener.refusing = servers.listener.refused + REFUSED_COUNT
    for number in range(PAYMENT_COUNT):
        assert (
            servers.rest(number % 2, servers.token(subject=f"s{number}"), to=f"p{number}")[0] == 503
        )

    eventually(lambda: len(deliveries(servers)) == len(before) + PAYMENT_COUNT, within=WITHIN_S)

    # How often is not said: a server that is held up for half a minute loses what it has taken.
    since = servers.listener.tried[tried:]
    assert len(since) >= PAYMENT_COUNT + REFUSED_COUNT
    since = [message for message in since if "requested" in message.event["type"]]
    new = [message for message in since if message.headers["webhook-id"] not in before]
    assert len({message.headers["webhook-id"] for message in new}) == PAYMENT_COUNT
    assert len({message.event["data"]["id"] for message in new}) == PAYMENT_COUNT
    assert_same_content(servers)


@pytest.mark.requirement("A7")
def test_a_payment_of_a_killed_server_is_recorded(
    servers: ApprovalServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The agent never comes back; the database of the other server says that the approval is used.
    """
    monkeypatch.chdir(servers.folder)
    before, token = len(deliveries(servers)), servers.token(subject="kay")
    assert servers.rest(1, token, "wire", to="kay")[0] == 503
    deliver_messages(servers, before)
    [line] = [line for line in servers.operator("list").splitlines() if " wire " in line]
    request = line.split()[0]
    [digest] = re.findall(r"--digest (\w+)", servers.operator("show", request))
    servers.operator("approve", request, "--digest", digest)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(servers.rest, 1, token, "wire", to="kay")
        eventually(lambda: servers.paid("kay") == 1, within=WITHIN_S)
        servers.kill(1)
        # The connection breaks, with one error or another; the test ignores which.
        call.exception(60)

    eventually(
        lambda: "outcome is unknown" in servers.operator("show", request), within=WITHIN_S, every=1
    )

    # The caller that repeats the call gets the same answer, also with a new token.
    assert servers.rest(0, servers.token(subject="kay"), "wire", to="kay")[1]["error"] == "conflict"
    assert servers.paid("kay") == 1
    export = ["audit", "export", "--tenant", "acme", "--config", "gatepost.toml"]
    lines = [
        line for line in CliRunner().invoke(main, export).stdout.splitlines() if request in line
    ]
    assert any('"unknown"' in line for line in lines)
    assert not any('"expired"' in line for line in lines)
    assert ("approval.expired", "expired") not in servers.listener.events(request)
    servers.restart(1)
