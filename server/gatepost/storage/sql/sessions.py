"""The stored state of sessions of older revisions, in SQL."""

from functools import cache
from typing import Any

import msgspec
from sqlalchemy import Integer, bindparam, select, update

from gatepost.storage.sessions import SessionRecord
from gatepost.storage.sql.database import Database
from gatepost.storage.sql.tables import SESSIONS, insert_into

NEW_SESSION = SessionRecord()

_FIELDS = [SESSIONS.c[name] for name in SessionRecord.__struct_fields__]
_THIS = (SESSIONS.c.tenant == bindparam("where_tenant"), SESSIONS.c.key == bindparam("where_key"))
_GET = select(*_FIELDS).where(*_THIS)
_REPLACE = update(SESSIONS).where(
    *_THIS, SESSIONS.c.revision == bindparam("where_revision", type_=Integer)
)


@cache
def _first(dialect: str) -> Any:
    key = [SESSIONS.c.tenant, SESSIONS.c.key]
    return insert_into(SESSIONS, dialect).on_conflict_do_nothing(index_elements=key)


_encode = msgspec.json.encode
_decode = msgspec.json.Decoder(tuple[str, ...]).decode


class SqlSessions:
    """The `SessionStore` of one tenant, in an SQL table."""

    __slots__ = ("_database", "_tenant")

    def __init__(self, database: Database, tenant: str) -> None:
        self._database, self._tenant = database, tenant

    async def get(self, key: bytes) -> SessionRecord:
        """Return the state of a session."""
        rows = await self._database.rows(_GET, {"where_tenant": self._tenant, "where_key": key})
        if not rows:
            return NEW_SESSION
        values = {**rows[0]._mapping}
        return SessionRecord(**values | {"subscriptions": _decode(values["subscriptions"])})

    async def replace(self, key: bytes, record: SessionRecord, *, expires_at: float) -> bool:
        """Replace the record that has the same ``revision`` (0: there is none), durably."""
        values: dict[str, Any] = {
            **msgspec.structs.asdict(record),
            "subscriptions": _encode(record.subscriptions),
            "expires_at": expires_at,
            "revision": record.revision + 1,
        }
        if record.revision == 0:
            first = {"tenant": self._tenant, "key": key, **values}
            return await self._database.change(_first(self._database.dialect), first) == 1
        where_values = {
            "where_tenant": self._tenant,
            "where_key": key,
            "where_revision": record.revision,
        }
        return await self._database.change(_REPLACE, {**values, **where_values}) == 1
