"""Undelivered messages to other systems, in memory."""

from collections.abc import Mapping

from msgspec.structs import replace

from gatepost.storage.outbox import OutboxMessage


class MemoryOutbox:
    """The `OutboxStore` of one tenant, in memory."""

    def __init__(self) -> None:
        self.messages: dict[str, OutboxMessage] = {}

    async def add(self, message: OutboxMessage) -> bool:
        """Store a message durably; return False if there is one with its id, which stays."""
        return self.messages.setdefault(message.id, message) is message

    async def remove(self, message: OutboxMessage) -> bool:
        """Delete a message; return False, without a change, if another sender has leased it."""
        if not self._is_leased(message):
            return False
        del self.messages[message.id]
        return True

    async def put_off(self, message: OutboxMessage, until: float) -> bool:
        """Let no sender lease the message until then; return False as `remove` does."""
        if not self._is_leased(message):
            return False
        self.messages[message.id] = replace(self.messages[message.id], due_at=until)
        return True

    async def drop_excess(self, limit: int) -> list[str]:
        """Delete the oldest messages beyond the *limit* newest; return the ids of those deleted."""
        newest = sorted(
            self.messages.values(),
            key=lambda message: (message.created_at, message.id),
            reverse=True,
        )
        removed_ids = [message.id for message in newest[limit:]]
        for message_id in removed_ids:
            del self.messages[message_id]
        return removed_ids

    def due(self, now: float) -> list[OutboxMessage]:
        """Return the messages that may be leased."""
        alive = [message for message in self.messages.values() if message.expires_at > now]
        first: dict[str, int] = {}
        for message in alive:
            first[message.ordering_key] = min(
                message.sequence, first.get(message.ordering_key, message.sequence)
            )
        return [
            message
            for message in alive
            if message.due_at <= now and message.sequence == first[message.ordering_key]
        ]

    def _is_leased(self, message: OutboxMessage) -> bool:
        stored = self.messages.get(message.id)
        return stored is not None and (stored.holder, stored.attempts) == (
            message.holder,
            message.attempts,
        )


def leased(
    stores: Mapping[str, MemoryOutbox], now: float, until: float, holder: str, limit: int
) -> list[tuple[str, OutboxMessage]]:
    """Lease due messages of all tenants to *holder*, *until* then."""
    due = [(tenant, message) for tenant, store in stores.items() for message in store.due(now)]
    due.sort(key=lambda item: item[1].due_at)
    leased_messages = [
        (tenant, replace(message, due_at=until, attempts=message.attempts + 1, holder=holder))
        for tenant, message in due[:limit]
    ]
    for tenant, message in leased_messages:
        stores[tenant].messages[message.id] = message
    return leased_messages
