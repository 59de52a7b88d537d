"""Undelivered messages to other systems, in SQL."""

from functools import cache
from typing import Any

import msgspec
from sqlalchemy import Double, Integer, and_, bindparam, delete, exists, select, tuple_, update

from gatepost.storage.outbox import OutboxMessage
from gatepost.storage.sql.database import Database
from gatepost.storage.sql.tables import OUTBOX_MESSAGES, insert_into

BATCH = 500
"""Maximum number of rows that one search for the oldest message finds."""

_FIELDS = [OUTBOX_MESSAGES.c[name] for name in OutboxMessage.__struct_fields__]
_KEY = (OUTBOX_MESSAGES.c.tenant, OUTBOX_MESSAGES.c.id)
_OF = OUTBOX_MESSAGES.c.tenant == bindparam("where_tenant")
_THIS = (_OF, OUTBOX_MESSAGES.c.id == bindparam("where_id"))
_TAKEN = (
    *_THIS,
    OUTBOX_MESSAGES.c.holder == bindparam("where_holder"),
    OUTBOX_MESSAGES.c.attempts == bindparam("where_attempts", type_=Integer),
)
_REMOVE = delete(OUTBOX_MESSAGES).where(*_TAKEN)
_PUT_OFF = update(OUTBOX_MESSAGES).where(*_TAKEN)
_DROP = delete(OUTBOX_MESSAGES).where(*_THIS)
_OLDEST = (
    select(OUTBOX_MESSAGES.c.id)
    .where(_OF)
    .order_by(OUTBOX_MESSAGES.c.created_at.desc(), OUTBOX_MESSAGES.c.id.desc())
    .offset(bindparam("max_rows", type_=Integer))
    .limit(BATCH)
)

_NOW = bindparam("now", type_=Double)
_before = OUTBOX_MESSAGES.alias("before")
_WAITS = exists().where(
    _before.c.tenant == OUTBOX_MESSAGES.c.tenant,
    _before.c.ordering_key == OUTBOX_MESSAGES.c.ordering_key,
    _before.c.sequence < OUTBOX_MESSAGES.c.sequence,
    _before.c.expires_at > _NOW,
)
_DUE = and_(OUTBOX_MESSAGES.c.due_at <= _NOW, OUTBOX_MESSAGES.c.expires_at > _NOW, ~_WAITS)
_ANY = select(OUTBOX_MESSAGES.c.id).where(_DUE).limit(1)
# Rows that another process takes are skipped (PostgreSQL; SQLite has one writer). The locking
# subquery runs once, as a CTE: PostgreSQL may run a plain subquery again for each row.
_first = (
    select(*_KEY)
    .where(_DUE)
    .order_by(OUTBOX_MESSAGES.c.due_at)
    .limit(bindparam("max_rows", type_=Integer))
    .with_for_update(skip_locked=True, of=OUTBOX_MESSAGES)
    .cte("first")
)
_CLAIM = (
    update(OUTBOX_MESSAGES)
    .where(tuple_(*_KEY).in_(select(_first.c.tenant, _first.c.id)))
    .values(
        due_at=bindparam("until", type_=Double),
        attempts=OUTBOX_MESSAGES.c.attempts + 1,
        holder=bindparam("where_holder"),
    )
    .returning(OUTBOX_MESSAGES.c.tenant, *_FIELDS)
)


@cache
def adding(dialect: str) -> Any:
    """Return the statement that adds a message; `values_of` returns its values."""
    return insert_into(OUTBOX_MESSAGES, dialect).on_conflict_do_nothing(index_elements=[*_KEY])


def values_of(tenant: str, message: OutboxMessage) -> dict[str, Any]:
    """Return the values of a message for the statement of `adding`."""
    return {"tenant": tenant, **msgspec.structs.asdict(message)}


class SqlOutbox:
    """The `OutboxStore` of one tenant, in an SQL table."""

    __slots__ = ("_database", "_tenant")

    def __init__(self, database: Database, tenant: str) -> None:
        self._database, self._tenant = database, tenant

    async def add(self, message: OutboxMessage) -> bool:
        """Store a message durably; return False if there is one with its id, which stays."""
        statement = adding(self._database.dialect)
        return await self._database.change(statement, values_of(self._tenant, message)) == 1

    async def remove(self, message: OutboxMessage) -> bool:
        """Delete a message; return False, without a change, if another sender has leased it."""
        return await self._database.change(_REMOVE, self._condition_values(message)) == 1

    async def put_off(self, message: OutboxMessage, until: float) -> bool:
        """Let no sender lease the message until then; return False as `remove` does."""
        return (
            await self._database.change(
                _PUT_OFF, {**self._condition_values(message), "due_at": until}
            )
            == 1
        )

    async def drop_excess(self, limit: int) -> list[str]:
        """Delete the oldest messages beyond the *limit* newest; return the ids of those deleted."""
        where_values = {"where_tenant": self._tenant}
        rows = await self._database.rows(_OLDEST, {**where_values, "max_rows": limit})
        # One at a time: two processes that drop the same messages in different orders would
        # deadlock.
        return [
            row.id
            for row in rows
            if await self._database.change(_DROP, {**where_values, "where_id": row.id})
        ]

    def _condition_values(self, message: OutboxMessage) -> dict[str, Any]:
        return {
            "where_tenant": self._tenant,
            "where_id": message.id,
            "where_holder": message.holder,
            "where_attempts": message.attempts,
        }


async def leased(
    database: Database, now: float, until: float, holder: str, limit: int
) -> list[tuple[str, OutboxMessage]]:
    """Lease due messages of all tenants to *holder*, *until* then."""
    if not await database.rows(_ANY, {"now": now}):
        return []  # a change that changes nothing also takes SQLite's only lock
    values = {"now": now, "until": until, "where_holder": holder, "max_rows": limit}
    rows = [row._asdict() for row in await database.rows(_CLAIM, values)]
    return [(row.pop("tenant"), OutboxMessage(**row)) for row in rows]
