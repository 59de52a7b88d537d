"""Addresses that send one bad credential after another have to wait."""

from collections.abc import Callable

import pytest
from starlette.types import Scope

from gatepost.http.edge_request import EdgeRefusal
from gatepost.http.failed_tokens import FailedTokenLimit
from gatepost_authz.errors import (
    AuthError,
    ExpiredToken,
    InsufficientScope,
    InvalidToken,
    IssuerUnavailable,
    MissingToken,
    RevokedToken,
)


class Clocked(FailedTokenLimit):
    """Two failures a second, by a clock that stands still."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(2, monotonic=lambda: self.now)

    def waits(self, peer: str = "198.51.100.7") -> str | None:
        """How long that peer is told to wait; None: not at all."""
        try:
            self.check(peer_scope(peer))
        except EdgeRefusal as refusal:
            return dict(refusal.headers)[b"retry-after"].decode()
        return None


@pytest.fixture
def flood() -> Clocked:
    return Clocked()


def peer_scope(peer: str) -> Scope:
    return {"client": (peer, 1)}


@pytest.mark.requirement("W23")
def test_bad_credentials_are_slowed_down_per_peer(flood: Clocked) -> None:
    """Over the limit that peer waits, and that alone, and not for ever."""
    for _ in range(2):
        flood.failed(peer_scope("198.51.100.7"), InvalidToken("bad_signature"))

    assert (flood.waits(), flood.waits("198.51.100.8")) == ("1", None)
    flood.now += 0.6
    assert flood.waits() is None


def genuine() -> ExpiredToken:
    expired = ExpiredToken()
    expired.genuine = True
    return expired


COUNTED_ERRORS: list[tuple[Callable[[], AuthError], bool]] = [
    (lambda: InvalidToken("bad_signature"), True),
    (ExpiredToken, True),
    (genuine, False),
    (lambda: InsufficientScope(("files:read",)), False),
    (RevokedToken, False),
    (MissingToken, False),
    (lambda: IssuerUnavailable("down"), False),
]


@pytest.mark.parametrize(("error", "counts"), COUNTED_ERRORS)
def test_only_a_credential_that_is_at_fault_counts(
    flood: Clocked, error: Callable[[], AuthError], counts: bool
) -> None:
    """Neither asking without a token, nor a genuine one that is too old, nor our own outage."""
    for _ in range(5):
        flood.failed(peer_scope("198.51.100.7"), error())

    assert (flood.waits() is not None) is counts


PEERS = [
    ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
    ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
    ("::ffff:192.0.2.1", "192.0.2.1", True),
    ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
]


@pytest.mark.parametrize(("address", "other", "same"), PEERS)
def test_a_network_of_addresses_is_one_peer(
    flood: Clocked, address: str, other: str, same: bool
) -> None:
    """The owner of an IPv6 /64 has more addresses than we have memory."""
    for _ in range(2):
        flood.failed(peer_scope(address), InvalidToken("bad_signature"))

    assert (flood.waits(other) is not None) is same


def test_the_flood_check_can_be_turned_off_and_stays_small() -> None:
    """0 counts nothing; otherwise the number of peers remembered is bounded."""
    off, on = FailedTokenLimit(0), FailedTokenLimit(5)
    for number in range(20_000):
        scope = peer_scope(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
        off.failed(scope, InvalidToken("x"))
        on.failed(scope, InvalidToken("x"))

    assert len(off._peers) == 0
    assert len(on._peers) == 10_000
