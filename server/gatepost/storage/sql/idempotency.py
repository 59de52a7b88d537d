"""Idempotency keys in SQL."""

from functools import cache
from typing import Any

import msgspec
from sqlalchemy import Double, LargeBinary, bindparam, delete, select, update

from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.idempotency import IdempotencyRecord
from gatepost.storage.sql.database import Database
from gatepost.storage.sql.tables import IDEMPOTENCY_RECORDS, insert_into
from gatepost.storage.stored_bytes import ROW_BYTES, weight

ATTEMPTS = 10
"""How often a record may disappear between the conflict and the reading."""

_FIELDS = [IDEMPOTENCY_RECORDS.c[name] for name in IdempotencyRecord.__struct_fields__]
_SET = [name for name in (*IdempotencyRecord.__struct_fields__, "bytes") if name != "key"]
_THIS = (
    IDEMPOTENCY_RECORDS.c.tenant == bindparam("where_tenant"),
    IDEMPOTENCY_RECORDS.c.key == bindparam("where_key"),
)
_LEASED_BY_US = (
    *_THIS,
    IDEMPOTENCY_RECORDS.c.holder == bindparam("where_holder"),
    IDEMPOTENCY_RECORDS.c.outcome.is_(None),
)

_GET = select(*_FIELDS).where(*_THIS)
_CHANGE = update(IDEMPOTENCY_RECORDS).where(*_LEASED_BY_US)
_RELEASE = delete(IDEMPOTENCY_RECORDS).where(*_LEASED_BY_US)
_TAKE_OVER = update(IDEMPOTENCY_RECORDS).where(
    *_THIS,
    IDEMPOTENCY_RECORDS.c.digest == bindparam("where_digest"),
    IDEMPOTENCY_RECORDS.c.holder == bindparam("where_holder"),
    IDEMPOTENCY_RECORDS.c.leased_until == bindparam("where_leased_until"),
    IDEMPOTENCY_RECORDS.c.expires_at == bindparam("where_expires_at"),
    IDEMPOTENCY_RECORDS.c.outcome.is_not_distinct_from(
        bindparam("where_outcome", type_=LargeBinary)
    ),
)


@cache
def _begin(dialect: str) -> Any:
    # One statement, so that the database decides which process is first.
    insert = insert_into(IDEMPOTENCY_RECORDS, dialect)
    return insert.on_conflict_do_update(
        index_elements=[IDEMPOTENCY_RECORDS.c.tenant, IDEMPOTENCY_RECORDS.c.key],
        set_={name: insert.excluded[name] for name in _SET},
        where=IDEMPOTENCY_RECORDS.c.expires_at <= bindparam("now", type_=Double),
    )


class SqlIdempotency:
    """The `IdempotencyStore` of one tenant, in an SQL table."""

    __slots__ = ("_database", "_tenant")

    def __init__(self, database: Database, tenant: str) -> None:
        self._database, self._tenant = database, tenant

    async def begin(self, record: IdempotencyRecord, *, now: float) -> IdempotencyRecord | None:
        """Store a record durably, or return the one that already holds the key."""
        statement = _begin(self._database.dialect)
        values = {"tenant": self._tenant, **_columns(record), "now": now}
        for _ in range(ATTEMPTS):
            if await self._database.change(statement, values):
                return None
            if (stored := await self.get(record.key)) is not None:
                return stored
            # The other call released the key between the two statements: it is free again.
        raise StoreUnavailable("an idempotency key changes hands faster than it can be read")

    async def get(self, key: bytes) -> IdempotencyRecord | None:
        """Return the record that holds this key."""
        rows = await self._database.rows(_GET, self._condition_values(key))
        return IdempotencyRecord(**rows[0]._mapping) if rows else None

    async def renew(self, key: bytes, holder: str, leased_until: float) -> bool:
        """Extend the lease of a running call; return False if *holder* no longer has the record."""
        values = {
            **self._condition_values(key),
            "where_holder": holder,
            "leased_until": leased_until,
        }
        return await self._database.change(_CHANGE, values) == 1

    async def finish(self, key: bytes, holder: str, outcome: bytes, expires_at: float) -> bool:
        """Store the outcome durably; return False if *holder* no longer has the record."""
        changes = {"outcome": outcome, "expires_at": expires_at, "bytes": weight(outcome)}
        values = {**self._condition_values(key), "where_holder": holder, **changes}
        return await self._database.change(_CHANGE, values) == 1

    async def release(self, key: bytes, holder: str) -> None:
        """Delete the record of a call that did nothing."""
        await self._database.change(
            _RELEASE, {**self._condition_values(key), "where_holder": holder}
        )

    async def take_over(self, record: IdempotencyRecord, *, expected: IdempotencyRecord) -> bool:
        """Replace *expected*, whose holder is gone; return False if it has changed meanwhile."""
        values = _columns(record)
        values["where_key"] = values.pop("key")
        for name, value in msgspec.structs.asdict(expected).items():
            values.setdefault(f"where_{name}", value)
        return (
            await self._database.change(_TAKE_OVER, {**values, "where_tenant": self._tenant}) == 1
        )

    def _condition_values(self, key: bytes) -> dict[str, Any]:
        return {"where_tenant": self._tenant, "where_key": key}


def _columns(record: IdempotencyRecord) -> dict[str, Any]:
    return {**msgspec.structs.asdict(record), "bytes": ROW_BYTES + len(record.outcome or b"")}
