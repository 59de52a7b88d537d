"""What another system is still to be told, in SQL."""

from functools import cache
from typing import Any

import msgspec
from sqlalchemy import Double, Integer, and_, bindparam, delete, exists, select, tuple_, update

from gatepost.stores.notices import Notice
from gatepost.stores.sql.database import Database
from gatepost.stores.sql.tables import NOTICES, insert_into

BATCH = 500
"""Rows that one look for the oldest finds at most."""

_FIELDS = [NOTICES.c[name] for name in Notice.__struct_fields__]
_KEY = (NOTICES.c.tenant, NOTICES.c.id)
_OF = NOTICES.c.tenant == bindparam("its_tenant")
_THIS = (_OF, NOTICES.c.id == bindparam("its_id"))
_TAKEN = (
    *_THIS,
    NOTICES.c.holder == bindparam("its_holder"),
    NOTICES.c.tries == bindparam("its_tries", type_=Integer),
)
_REMOVE = delete(NOTICES).where(*_TAKEN)
_PUT_OFF = update(NOTICES).where(*_TAKEN)
_DROP = delete(NOTICES).where(*_THIS)
_OLDEST = (
    select(NOTICES.c.id)
    .where(_OF)
    .order_by(NOTICES.c.made_at.desc(), NOTICES.c.id.desc())
    .offset(bindparam("most", type_=Integer))
    .limit(BATCH)
)

_NOW = bindparam("now", type_=Double)
_before = NOTICES.alias("before")
_WAITS = exists().where(
    _before.c.tenant == NOTICES.c.tenant,
    _before.c.about == NOTICES.c.about,
    _before.c.place < NOTICES.c.place,
    _before.c.expires_at > _NOW,
)
_DUE = and_(NOTICES.c.due_at <= _NOW, NOTICES.c.expires_at > _NOW, ~_WAITS)
_ANY = select(NOTICES.c.id).where(_DUE).limit(1)
# Whoever takes the same rows elsewhere is left alone (PostgreSQL; SQLite has one writer), and what
# is locked like this is looked for once: PostgreSQL may run a plain subquery again for each row.
_first = (
    select(*_KEY)
    .where(_DUE)
    .order_by(NOTICES.c.due_at)
    .limit(bindparam("most", type_=Integer))
    .with_for_update(skip_locked=True, of=NOTICES)
    .cte("first")
)
_CLAIM = (
    update(NOTICES)
    .where(tuple_(*_KEY).in_(select(_first.c.tenant, _first.c.id)))
    .values(
        due_at=bindparam("until", type_=Double),
        tries=NOTICES.c.tries + 1,
        holder=bindparam("its_holder"),
    )
    .returning(NOTICES.c.tenant, *_FIELDS)
)


@cache
def adding(dialect: str) -> Any:
    """The statement that keeps one, whose values `values_of` makes."""
    return insert_into(NOTICES, dialect).on_conflict_do_nothing(index_elements=[*_KEY])


def values_of(tenant: str, notice: Notice) -> dict[str, Any]:
    """See `adding`."""
    return {"tenant": tenant, **msgspec.structs.asdict(notice)}


class SqlNotices:
    """See `Notices`."""

    __slots__ = ("_database", "_tenant")

    def __init__(self, database: Database, tenant: str) -> None:
        self._database, self._tenant = database, tenant

    async def add(self, notice: Notice) -> bool:
        """See `Notices`."""
        statement = adding(self._database.dialect)
        return await self._database.change(statement, values_of(self._tenant, notice)) == 1

    async def remove(self, taken: Notice) -> bool:
        """See `Notices`."""
        return await self._database.change(_REMOVE, self._of(taken)) == 1

    async def put_off(self, taken: Notice, until: float) -> bool:
        """See `Notices`."""
        return await self._database.change(_PUT_OFF, {**self._of(taken), "due_at": until}) == 1

    async def shed(self, most: int) -> list[str]:
        """See `Notices`."""
        which = {"its_tenant": self._tenant}
        found = await self._database.rows(_OLDEST, {**which, "most": most})
        # One by one: two that drop the same in another order would wait for each other.
        return [
            row.id
            for row in found
            if await self._database.change(_DROP, {**which, "its_id": row.id})
        ]

    def _of(self, taken: Notice) -> dict[str, Any]:
        return {
            "its_tenant": self._tenant,
            "its_id": taken.id,
            "its_holder": taken.holder,
            "its_tries": taken.tries,
        }


async def claimed(
    database: Database, now: float, until: float, holder: str, most: int
) -> list[tuple[str, Notice]]:
    """See `Records.claim_notices`."""
    if not await database.rows(_ANY, {"now": now}):
        return []  # SQLite's one lock is taken by a change that changes nothing, too
    values = {"now": now, "until": until, "its_holder": holder, "most": most}
    found = [row._asdict() for row in await database.rows(_CLAIM, values)]
    return [(row.pop("tenant"), Notice(**row)) for row in found]
