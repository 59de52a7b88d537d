"""Slows down clients that present one bad credential after another."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable

from starlette.types import Scope

from gatepost.http.edge import peer_of
from gatepost.http.request import EdgeRefusal
from gatepost.storage.rate_limits import WITHIN, Bucket
from gatepost_authz.addresses import network_of_peer
from gatepost_authz.errors import (
    AuthError,
    ExpiredToken,
    InvalidToken,
    MalformedCredentials,
    RevokedToken,
)

MOST_PEERS = 10_000


class FailedTokenLimit:
    """
    Counts failed authentications per peer address (an IPv6 peer by its /64).

    A token bucket: *rate* failures a second, and a second's worth at once. Beyond that the gate
    refuses a token that it has not seen good before any signature work; the key is never the token
    itself, which an attacker changes at will. Tokens that were good before pass: an address may be
    shared with clients that fail. 0 turns it off. What it remembers is bounded: the peer that was
    quiet longest is forgotten first.
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
        wait = max(1, math.ceil(wait_s - 2 * WITHIN))
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
            # Nobody guesses those, and a whole tenant may come with them from one address, which
            # others share.
            return
        now = self._monotonic()
        key = peer_key(scope)
        bucket = self._peers.get(key)
        if bucket is None:
            bucket = self._peers[key] = Bucket.of(self._rate, self._burst, now)
        bucket.take(now)
        bucket.forgive(now)  # more failures do not make the peer wait longer
        self._peers.move_to_end(key)
        if len(self._peers) > MOST_PEERS:
            self._peers.popitem(last=False)


def peer_key(scope: Scope) -> str:
    """Return the key for counting failures: the address, or the /64 of an IPv6 address."""
    return network_of_peer(peer_of(scope))
