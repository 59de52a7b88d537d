"""The same head again on its connection: judged once, and what can change is asked each time."""

import msgspec
import pytest

from gatepost.edge.request import Refusal
from gatepost_authz.errors import InvalidToken
from tests.server.exchange import HOST, Connection, Pairs
from tests.server.front import PAGE, Front
from tests.server.test_flood import peer_scope

TOKEN: Pairs = (HOST, (b"authorization", b"Bearer x"))


@pytest.mark.requirement("W23")
async def test_what_pretends_to_be_an_identity_is_removed_each_time(front: Front) -> None:
    """The application never sees it, nor in the folded headers."""
    connection = Connection((*TOKEN, (b"x-tenant-id", b"globex"), (b"x_forwarded_for", b"1.2.3.4")))
    for _ in range(3):
        assert (await connection.ask(front.edge)).status == 200

    for scope in front.inner.scopes:
        assert scope["headers"] == list(TOKEN)
        assert scope["gatepost.headers"] == dict(TOKEN)
    assert connection.headers[2] == (b"x-tenant-id", b"globex"), "what came is nobody's to change"


async def test_a_proxys_word_counts_for_each_request(front: Front) -> None:
    """Peer and scheme behind a trusted proxy are those that it tells, in scope and log."""
    fields = (HOST, (b"x-forwarded-for", b"203.0.113.9"), (b"x-forwarded-proto", b"https"))
    connection = Connection(fields, peer="10.0.0.1")
    for _ in range(3):
        await connection.ask(front.edge)
    await front.log.aclose()

    assert [scope["client"] for scope in front.inner.scopes] == [("203.0.113.9", 0)] * 3
    assert [line["peer"] for line in front.lines] == ["203.0.113.9"] * 3


async def test_every_answer_has_its_own_id_and_a_pages_permissions(front: Front) -> None:
    """What the checks add to an answer is added to those that they let pass unseen."""
    connection = Connection((HOST, (b"origin", PAGE)))
    answers = [await connection.ask(front.edge) for _ in range(3)]
    await front.log.aclose()

    assert {one.header("access-control-allow-origin") for one in answers} == {PAGE.decode()}
    ids = [one.header("x-request-id") for one in answers]
    assert len(set(ids)) == 3
    assert [line["request_id"] for line in front.lines] == ids


@pytest.mark.requirement("W23")
async def test_a_peer_is_slowed_down_whose_head_has_passed_before(front: Front) -> None:
    """Failures count from whatever connection, and the wait ends."""
    connection = Connection(TOKEN)
    for _ in range(2):
        assert (await connection.ask(front.edge)).status == 200
    for _ in range(2):
        front.flood.failed(peer_scope(connection.peer), InvalidToken("bad_signature"))
    slowed = await connection.ask(front.edge)
    front.now += 0.6
    later = await connection.ask(front.edge)

    assert (slowed.status, later.status) == (429, 200)


REFUSED: list[tuple[Pairs, int]] = [
    (((b"host", b"evil.example"),), 421),
    ((HOST, (b"origin", b"https://evil.example")), 403),
    ((HOST, (b"content-length", b"1001")), 413),
    ((HOST, *((b"x-%d" % number, b"") for number in range(100))), 431),
]


@pytest.mark.parametrize(("fields", "status"), REFUSED)
async def test_a_refused_head_is_refused_again(front: Front, fields: Pairs, status: int) -> None:
    """Only what passed is remembered."""
    connection = Connection(fields)
    for _ in range(3):
        assert (await connection.ask(front.edge)).status == status
    assert front.inner.scopes == []


async def test_another_length_is_judged_anew(front: Front) -> None:
    """A connection's list of fields is another one for another length."""
    connection = Connection((HOST, (b"content-length", b"10")))
    for _ in range(2):
        assert (await connection.ask(front.edge)).status == 200
    connection.headers = [HOST, (b"content-length", b"1001")]

    assert (await connection.ask(front.edge)).status == 413


async def test_another_configuration_judges_anew(front: Front) -> None:
    """What one edge let pass another one has not seen, and nothing of the first is kept."""
    connection = Connection((HOST, (b"origin", PAGE)))
    for _ in range(2):
        await connection.ask(front.edge)
    other = Front()
    other.edge.checks = (_refuses,)

    assert (await connection.ask(other.edge)).status == 403
    other.edge.checks = ()
    assert (await connection.ask(other.edge)).status == 200
    assert front.edge not in connection.heads
    await other.log.aclose()


def _refuses(_: msgspec.Struct) -> None:
    raise Refusal(403, "forbidden_origin", "Pages of that origin may not call this server")
