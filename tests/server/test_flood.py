"""The flood check: whoever presents one bad credential after another has to wait."""

from collections.abc import Callable

import pytest
from starlette.types import Scope

from gatepost.edge.flood import Flood
from gatepost_authz.errors import (
    ExpiredToken,
    InvalidToken,
    IssuerUnavailable,
    MissingToken,
)
from tests.server.exchange import HOST, ask
from tests.server.front import Front

TOKEN = (HOST, (b"authorization", b"Bearer x"))


def peer_scope(peer: str) -> Scope:
    return {"client": (peer, 1)}


@pytest.mark.requirement("W23")
async def test_bad_credentials_are_slowed_down_per_peer(front: Front) -> None:
    """Over the limit 429 comes before any token work, for that peer alone, and it passes."""
    for _ in range(2):
        front.flood.failed(peer_scope("198.51.100.7"), InvalidToken("bad_signature"))

    refused = await ask(front.edge, headers=TOKEN)
    neighbour = await ask(front.edge, headers=TOKEN, peer="198.51.100.8")
    silent = await ask(front.edge)
    front.now += 0.6
    later = await ask(front.edge, headers=TOKEN)

    assert (refused.status, refused.header("retry-after")) == (429, "1")
    assert refused.json["error"]["code"] == -32000
    assert (neighbour.status, silent.status, later.status) == (200, 200, 200)


COUNTED: list[tuple[Callable[[], Exception], int]] = [
    (lambda: InvalidToken("bad_signature"), 429),
    (ExpiredToken, 429),
    (MissingToken, 200),
    (lambda: IssuerUnavailable("down"), 200),
]


@pytest.mark.parametrize(("error", "status"), COUNTED)
async def test_only_a_refused_credential_counts(
    front: Front, error: Callable[[], InvalidToken], status: int
) -> None:
    """Neither asking without a token nor our own outage is an attack."""
    for _ in range(5):
        front.flood.failed(peer_scope("198.51.100.7"), error())

    assert (await ask(front.edge, headers=TOKEN)).status == status


PEERS = [
    ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
    ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
    ("::ffff:192.0.2.1", "192.0.2.1", True),
    ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
]


@pytest.mark.parametrize(("one", "other", "same"), PEERS)
async def test_a_network_of_addresses_is_one_peer(
    front: Front, one: str, other: str, same: bool
) -> None:
    """Whoever owns an IPv6 /64 has more addresses than we have memory."""
    for _ in range(2):
        front.flood.failed(peer_scope(one), InvalidToken("bad_signature"))
    answer = await ask(front.edge, headers=TOKEN, peer=other)

    assert answer.status == (429 if same else 200)


async def test_the_flood_check_can_be_turned_off_and_stays_small() -> None:
    """0 counts nothing; otherwise the number of peers remembered is bounded."""
    off, on = Flood(0), Flood(5)
    for number in range(20_000):
        scope = peer_scope(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
        off.failed(scope, InvalidToken("x"))
        on.failed(scope, InvalidToken("x"))

    assert len(off._peers) == 0
    assert len(on._peers) == 10_000
