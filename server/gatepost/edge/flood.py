"""Slows down whoever presents one bad credential after another."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, IPv6Network

from starlette.types import Scope

from gatepost.edge.request import Refusal, Request
from gatepost.scope import peer_of
from gatepost_authz.errors import AuthError, InvalidToken, MalformedCredentials, RevokedToken

MOST_PEERS = 10_000


class Flood:
    """
    Counts failed authentications per peer address (an IPv6 peer by its /64).

    A token bucket: *rate* failures a second, and a second's worth at once. Beyond that a request
    with a credential is refused before any signature work, whoever's token it carries; the key is
    never the token itself, which an attacker changes at will. A request without a credential costs
    nothing and passes. 0 turns it off. What it remembers is bounded: the peer that was quiet
    longest is forgotten first.
    """

    again = True

    def __init__(self, rate: float, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = max(1.0, rate)
        self._monotonic = monotonic
        self._peers: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __call__(self, request: Request) -> None:
        if self._peers and b"authorization" in request.headers:
            self.slow_down(request.scope)

    def slow_down(self, scope: Scope) -> None:
        """Raise Refusal for a peer whose credentials were too often no good."""
        now = self._monotonic()
        left = self._left(peer_key(scope), now)
        if left < 1.0:
            wait = max(1, math.ceil((1.0 - left) / self._rate))
            raise Refusal(
                429,
                "too_many_failures",
                "Too many failed authentications from this address",
                ((b"retry-after", str(wait).encode()),),
            )

    def failed(self, scope: Scope, error: AuthError) -> None:
        """Count one refusal, if a credential was presented and is itself at fault."""
        if not self._rate or not isinstance(error, InvalidToken | MalformedCredentials):
            return
        if isinstance(error, RevokedToken):
            # Nobody guesses those, and a whole tenant may come with them from one address, which
            # others share.
            return
        now = self._monotonic()
        key = peer_key(scope)
        self._peers[key] = (max(0.0, self._left(key, now) - 1.0), now)
        self._peers.move_to_end(key)
        if len(self._peers) > MOST_PEERS:
            self._peers.popitem(last=False)

    def _left(self, key: str, now: float) -> float:
        known = self._peers.get(key)
        if known is None:
            return self._burst
        left, then = known
        return min(self._burst, left + (now - then) * self._rate)


def peer_key(scope: Scope) -> str:
    """The address failures are counted under; everybody of an IPv6 /64 is one peer."""
    peer = peer_of(scope)
    if ":" not in peer:
        return peer
    try:
        address = IPv6Address(peer)
    except ValueError:
        return peer
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(IPv6Network((int(address) >> 64 << 64, 64)))
