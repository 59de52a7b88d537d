"""Slow down clients that present one bad credential after another."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable

from starlette.types import Scope

from gatepost.http.edge import peer_of
from gatepost.http.edge_request import EdgeRefusal
from gatepost.storage.rate_limits import ROUNDING_ERROR, Bucket
from gatepost_authz.addresses import network_of_peer
from gatepost_authz.errors import (
    AuthError,
    ExpiredToken,
    InvalidToken,
    MalformedCredentials,
    RevokedToken,
)

MAX_PEERS = 10_000


class FailedTokenLimit:
    """
    Counts failed authentications by peer address (an IPv6 peer by its /64).

    The token bucket allows *rate* failures a second, and as many at once. When it is empty, the
    gate refuses unknown tokens before it checks their signature. The bucket belongs to the address
    and never to the token, which an attacker can change. Tokens that were valid before still pass,
    because other clients may share the address. 0 turns the limit off. The number of remembered
    peers is bounded; the one that was quiet longest is forgotten first.
    """

    def __init__(self, rate: float, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = max(1.0, rate)
        self._monotonic = monotonic
        self._peers: OrderedDict[str, Bucket] = OrderedDict()

    def check(self, scope: Scope) -> None:
        """Raise the refusal for this peer, if there is one."""
        if (refusal := self.refusal(scope)) is not None:
            raise refusal

    def refusal(self, scope: Scope) -> EdgeRefusal | None:
        """Return the refusal for a peer with too many failed tokens, or None."""
        bucket = self._peers.get(peer_key(scope)) if self._peers else None
        wait_s = 0.0 if bucket is None else bucket.wait_s(self._monotonic())
        if not wait_s:
            return None
        wait = max(1, math.ceil(wait_s - 2 * ROUNDING_ERROR))
        return EdgeRefusal(
            429,
            "too_many_failures",
            "Too many failed authentications from this address",
            ((b"retry-after", str(wait).encode()),),
        )

    def failed(self, scope: Scope, error: AuthError) -> None:
        """Count one refusal, if a credential was presented and is itself at fault."""
        if not self._rate or not isinstance(error, InvalidToken | MalformedCredentials):
            return
        if isinstance(error, RevokedToken) or (isinstance(error, ExpiredToken) and error.genuine):
            # These tokens cannot be guessed, and a whole tenant may present them from one shared
            # address.
            return
        now = self._monotonic()
        key = peer_key(scope)
        bucket = self._peers.get(key)
        if bucket is None:
            bucket = self._peers[key] = Bucket.full(self._rate, self._burst, now)
        bucket.charge(now, bucket.each_s)
        bucket.forgive(now)  # more failures do not make the peer wait longer
        self._peers.move_to_end(key)
        if len(self._peers) > MAX_PEERS:
            self._peers.popitem(last=False)


def peer_key(scope: Scope) -> str:
    """Return the key for counting failures: the address, or the /64 of an IPv6 address."""
    return network_of_peer(peer_of(scope))
