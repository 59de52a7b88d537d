"""Undelivered messages to other systems, in memory."""

from collections.abc import Mapping

from msgspec.structs import replace

from gatepost.storage.outbox import OutboxMessage


class MemoryOutbox:
    """The `OutboxStore` of one tenant, in memory."""

    def __init__(self) -> None:
        self.held: dict[str, OutboxMessage] = {}

    async def add(self, message: OutboxMessage) -> bool:
        """Store a message durably; return False if there is one with its id, which stays."""
        return self.held.setdefault(message.id, message) is message

    async def remove(self, taken: OutboxMessage) -> bool:
        """Delete a message; return False, without a change, if another sender has leased it."""
        if not self._has(taken):
            return False
        del self.held[taken.id]
        return True

    async def put_off(self, taken: OutboxMessage, until: float) -> bool:
        """Let no sender lease the message until then; return False as `remove` does."""
        if not self._has(taken):
            return False
        self.held[taken.id] = replace(self.held[taken.id], due_at=until)
        return True

    async def shed(self, most: int) -> list[str]:
        """Delete the oldest messages beyond the *most* newest; return the ids of those deleted."""
        newest = sorted(self.held.values(), key=lambda one: (one.created_at, one.id), reverse=True)
        gone = [one.id for one in newest[most:]]
        for message_id in gone:
            del self.held[message_id]
        return gone

    def due(self, now: float) -> list[OutboxMessage]:
        """Return the messages that may be leased."""
        alive = [one for one in self.held.values() if one.expires_at > now]
        first: dict[str, int] = {}
        for one in alive:
            first[one.ordering_key] = min(one.sequence, first.get(one.ordering_key, one.sequence))
        return [
            one for one in alive if one.due_at <= now and one.sequence == first[one.ordering_key]
        ]

    def _has(self, taken: OutboxMessage) -> bool:
        kept = self.held.get(taken.id)
        return kept is not None and (kept.holder, kept.attempts) == (taken.holder, taken.attempts)


def leased(
    stores: Mapping[str, MemoryOutbox], now: float, until: float, holder: str, most: int
) -> list[tuple[str, OutboxMessage]]:
    """Lease due messages of all tenants to *holder*, *until* then."""
    due = [(tenant, one) for tenant, store in stores.items() for one in store.due(now)]
    due.sort(key=lambda one: one[1].due_at)
    taken = [
        (tenant, replace(one, due_at=until, attempts=one.attempts + 1, holder=holder))
        for tenant, one in due[:most]
    ]
    for tenant, one in taken:
        stores[tenant].held[one.id] = one
    return taken
