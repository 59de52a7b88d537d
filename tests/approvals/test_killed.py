"""Servers that are killed before another system is told: whoever is there then tells it."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.approvals.bank import Bank
from tests.support.idp import Idp
from tests.support.waiting import eventually

WITHIN_S = 240.0
"""The longest pause between two attempts, and the time for which a message is left to its taker."""
MANY = 12
REFUSED = 4
"""Attempts that fail at first: with five for each message, none is given up for them."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]  # a dead server's lease: 20 s each


@pytest.fixture(params=["sqlite", "postgresql"], scope="module")
def bank(
    request: pytest.FixtureRequest, idp: Idp, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bank]:
    """Two servers at one database, with nothing else between them."""
    folder: Path = tmp_path_factory.mktemp("killed")
    if request.param == "sqlite":
        bank = Bank(idp, folder, {"database": "sqlite:///records.db"})
        with bank.running():
            yield bank
        return
    server = request.getfixturevalue("postgres_server")
    template: str = request.getfixturevalue("postgres_template")
    with server.database(like=template) as database:
        bank = Bank(idp, folder, {"database": database})
        with bank.running():
            yield bank


def heard(bank: Bank) -> Counter[str]:
    """How often the listener took each message about a request, by its id there."""
    taken = [*bank.listener.got]
    return Counter(one.headers["webhook-id"] for one in taken if "requested" in one.event["type"])


def same(bank: Bank) -> None:
    """Whatever came twice, taken or not, was the same message."""
    bodies: dict[str, set[bytes]] = {}
    for one in [*bank.listener.tried]:
        assert one.event  # whoever sent it has signed it
        bodies.setdefault(one.headers["webhook-id"], set()).add(one.body)
    assert {len(said) for said in bodies.values()} == {1}


def asked(bank: Bank, at: int, to: str) -> None:
    """Ask one of the servers for a payment; it has answered, and nobody was told."""
    bank.listener.refusing = bank.listener.refused + 10**6
    status, body = bank.rest(at, bank.token(subject=to), to=to)
    assert (status, body["error"]) == (503, "approval_pending")


def told(bank: Bank, before: int) -> None:
    """From now on the listener takes what it gets; wait for one more than *before*."""
    bank.listener.refusing = 0
    eventually(lambda: len(heard(bank)) == before + 1, within=WITHIN_S)
    same(bank)


@pytest.mark.requirement("A7")
def test_another_server_tells_what_a_killed_one_has_not(bank: Bank) -> None:
    """It knew of neither the request nor the message."""
    before = len(heard(bank))
    asked(bank, 1, to="ivy")
    bank.kill(1)

    told(bank, before)

    bank.restart(1)


@pytest.mark.requirement("A7")
def test_a_server_that_is_started_anew_tells_what_it_has_not(bank: Bank) -> None:
    """Nobody else is there: what is to be told is in the database alone."""
    before = len(heard(bank))
    asked(bank, 0, to="joe")
    for number in (0, 1):
        bank.kill(number)
    bank.restart(0)

    told(bank, before)

    bank.restart(1)


def test_what_two_servers_tell_arrives_and_is_known_again(bank: Bank) -> None:
    """One message for each request, though both look, and what is tried again is the same."""
    before, tried = heard(bank), len(bank.listener.tried)
    bank.listener.refusing = bank.listener.refused + REFUSED
    for number in range(MANY):
        assert bank.rest(number % 2, bank.token(subject=f"s{number}"), to=f"p{number}")[0] == 503

    eventually(lambda: len(heard(bank)) == len(before) + MANY, within=WITHIN_S)

    # How often is not said: a server that is held up for half a minute loses what it has taken.
    since = bank.listener.tried[tried:]
    assert len(since) >= MANY + REFUSED
    since = [one for one in since if "requested" in one.event["type"]]
    new = [one for one in since if one.headers["webhook-id"] not in before]
    assert len({one.headers["webhook-id"] for one in new}) == MANY
    assert len({one.event["data"]["id"] for one in new}) == MANY
    same(bank)
