"""Retry keys in SQL."""

from functools import cache
from typing import Any

import msgspec
from sqlalchemy import Double, LargeBinary, bindparam, delete, select, update

from gatepost.stores.api import Claim, StoreUnavailable
from gatepost.stores.sql.database import Database
from gatepost.stores.sql.tables import CLAIMS, insert_into

ATTEMPTS = 10
"""How often a claim may slip away between being met and being read."""

_FIELDS = [CLAIMS.c[name] for name in Claim.__struct_fields__]
_THIS = (CLAIMS.c.tenant == bindparam("its_tenant"), CLAIMS.c.key == bindparam("its_key"))
_HELD = (*_THIS, CLAIMS.c.holder == bindparam("its_holder"), CLAIMS.c.outcome.is_(None))

_GET = select(*_FIELDS).where(*_THIS)
_CHANGE = update(CLAIMS).where(*_HELD)
_RELEASE = delete(CLAIMS).where(*_HELD)
_TAKE_OVER = update(CLAIMS).where(
    *_THIS,
    CLAIMS.c.digest == bindparam("its_digest"),
    CLAIMS.c.holder == bindparam("its_holder"),
    CLAIMS.c.leased_until == bindparam("its_leased_until"),
    CLAIMS.c.expires_at == bindparam("its_expires_at"),
    CLAIMS.c.outcome.is_not_distinct_from(bindparam("its_outcome", type_=LargeBinary)),
)


@cache
def _begin(dialect: str) -> Any:
    # One statement, so that the database decides who is first.
    insert = insert_into(CLAIMS, dialect)
    return insert.on_conflict_do_update(
        index_elements=[CLAIMS.c.tenant, CLAIMS.c.key],
        set_={name: insert.excluded[name] for name in Claim.__struct_fields__ if name != "key"},
        where=CLAIMS.c.expires_at <= bindparam("now", type_=Double),
    )


class SqlClaims:
    """See `Claims`."""

    __slots__ = ("_database", "_tenant")

    def __init__(self, database: Database, tenant: str) -> None:
        self._database, self._tenant = database, tenant

    async def begin(self, claim: Claim, *, now: float) -> Claim | None:
        """See `Claims`."""
        statement = _begin(self._database.dialect)
        values = {"tenant": self._tenant, **msgspec.structs.asdict(claim), "now": now}
        for _ in range(ATTEMPTS):
            if await self._database.change(statement, values):
                return None
            if (kept := await self.get(claim.key)) is not None:
                return kept
            # Released between the two statements: the key is free again.
        raise StoreUnavailable("a retry key changes hands faster than it can be read")

    async def get(self, key: bytes) -> Claim | None:
        """See `Claims`."""
        found = await self._database.rows(_GET, self._this(key))
        return Claim(**found[0]._mapping) if found else None

    async def renew(self, key: bytes, holder: str, leased_until: float) -> bool:
        """See `Claims`."""
        values = {**self._this(key), "its_holder": holder, "leased_until": leased_until}
        return await self._database.change(_CHANGE, values) == 1

    async def finish(self, key: bytes, holder: str, outcome: bytes, expires_at: float) -> bool:
        """See `Claims`."""
        changes = {"outcome": outcome, "expires_at": expires_at}
        values = {**self._this(key), "its_holder": holder, **changes}
        return await self._database.change(_CHANGE, values) == 1

    async def release(self, key: bytes, holder: str) -> None:
        """See `Claims`."""
        await self._database.change(_RELEASE, {**self._this(key), "its_holder": holder})

    async def take_over(self, claim: Claim, *, was: Claim) -> bool:
        """See `Claims`."""
        values = msgspec.structs.asdict(claim)
        values["its_key"] = values.pop("key")
        for name, value in msgspec.structs.asdict(was).items():
            values.setdefault(f"its_{name}", value)
        return await self._database.change(_TAKE_OVER, {**values, "its_tenant": self._tenant}) == 1

    def _this(self, key: bytes) -> dict[str, Any]:
        return {"its_tenant": self._tenant, "its_key": key}
