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
        """Return how many seconds that peer is told to wait, or None if it may go on."""
        try:
            self.check(peer_scope(peer))
        except EdgeRefusal as refusal:
            return dict(refusal.headers)[b"retry-after"].decode()
        return None


@pytest.fixture
def clocked_throttle() -> Clocked:
    return Clocked()


def peer_scope(peer: str) -> Scope:
    return {"client": (peer, 1)}


@pytest.mark.requirement("W23")
def test_bad_credentials_are_rate_limited_for_each_peer(clocked_throttle: Clocked) -> None:
    """Over the limit, only that peer waits, and for a limited time."""
    for _ in range(2):
        clocked_throttle.failed(peer_scope("198.51.100.7"), InvalidToken("bad_signature"))

    assert (clocked_throttle.waits(), clocked_throttle.waits("198.51.100.8")) == ("1", None)
    clocked_throttle.now += 0.6
    assert clocked_throttle.waits() is None


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
def test_only_forged_or_invalid_credentials_are_counted(
    clocked_throttle: Clocked, error: Callable[[], AuthError], counts: bool
) -> None:
    """Missing and expired tokens and outages are not counted."""
    for _ in range(5):
        clocked_throttle.failed(peer_scope("198.51.100.7"), error())

    assert (clocked_throttle.waits() is not None) is counts


PEERS = [
    ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
    ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
    ("::ffff:192.0.2.1", "192.0.2.1", True),
    ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
]


@pytest.mark.parametrize(("address", "other", "same"), PEERS)
def test_addresses_of_one_ipv6_network_are_one_peer(
    clocked_throttle: Clocked, address: str, other: str, same: bool
) -> None:
    """The owner of an IPv6 /64 has more addresses than fit the memory."""
    for _ in range(2):
        clocked_throttle.failed(peer_scope(address), InvalidToken("bad_signature"))

    assert (clocked_throttle.waits(other) is not None) is same


def test_the_failed_token_limit_can_be_turned_off_and_is_bounded() -> None:
    """With 0 no failure is counted; otherwise the number of peers is limited."""
    off, on = FailedTokenLimit(0), FailedTokenLimit(5)
    for number in range(20_000):
        scope = peer_scope(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
        off.failed(scope, InvalidToken("x"))
        on.failed(scope, InvalidToken("x"))

    assert len(off._peers) == 0
    assert len(on._peers) == 10_000
