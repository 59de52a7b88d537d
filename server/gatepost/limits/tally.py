"""What this process counts by itself: spent tokens, running calls."""

from collections.abc import Hashable, Mapping
from weakref import WeakValueDictionary

from gatepost.limits.account import Account, Key
from gatepost.limits.queue import Place, Queue
from gatepost.limits.terms import ANY, Row, Terms, rows_of
from gatepost.stores.allowance import Slot, Spending
from gatepost.stores.api import Relay
from gatepost.stores.bucket import Buckets

MOST_ACCOUNTS = 10_000
"""Accounts that are kept; one that is needed again is made again, for some microseconds."""


class Tally:
    """Lives as long as the process, whatever is configured anew: what runs goes on counting."""

    def __init__(self) -> None:
        self.accounts: dict[Key, Account] = {}
        """Those that were made since the terms were last changed, or since there were too many."""
        self.buckets = Buckets(forgetting=self.accounts.clear)
        self.places: WeakValueDictionary[Hashable, Place] = WeakValueDictionary()
        """By tenant, and by tenant and tool, as long as an account is kept or a call holds it."""
        self.queue = Queue(self.places)

    def account(self, key: Key, terms: Terms, now: float, relay: Relay | None) -> Account:
        """The account of that key by these terms."""
        principal, tool, inner = key[:4], key[4], key[5]
        tenant = principal[0]
        rows = rows_of(terms, tenant, (tool,) if tool else (), (principal,))
        rated = [row for row in rows if row.bound.rate]
        # A tenant's calls are counted although any number may run: turns depend on it.
        placed = [
            row
            for row in rows
            if (row.kind == "tenant" and not inner)
            or (row.kind == "tool" and row.bound.most != ANY)
        ]
        bounded = [row for row in placed if row.bound.most != ANY]
        buckets = self.buckets.these(
            [(row.here, 1 / row.bound.rate, row.bound.burst / row.bound.rate) for row in rated], now
        )
        if len(self.accounts) >= MOST_ACCOUNTS:
            self.accounts.clear()
        account = self.accounts[key] = Account(
            tenant=tenant,
            buckets=tuple(buckets),
            places=tuple(self._place(row) for row in placed),
            kinds=[row.kind for row in (*rated, *bounded)],
            queue=None if inner else self.queue,
        )
        if relay is not None:
            account.relay = relay.of(tenant)
            account.spendings = [
                Spending(row.shared, row.bound.rate, row.bound.burst) for row in rated
            ]
            account.slots = [Slot(row.shared, int(row.bound.most)) for row in bounded]
        return account

    def _place(self, row: Row) -> Place:
        place = self.places.get(row.here)
        if place is None:
            place = self.places[row.here] = Place(row.kind, row.bound.most)
        place.most = row.bound.most
        return place

    @property
    def running(self) -> Mapping[Hashable, int]:
        """Calls by tenant, and by tenant and tool, that have a place or wait for their turn."""
        return {name: place.taken for name, place in self.places.items() if place.taken}
