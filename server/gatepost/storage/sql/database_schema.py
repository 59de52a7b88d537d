"""Read the revision of a database, and migrate it."""

import importlib
from functools import partial
from pathlib import Path
from typing import NoReturn

import msgspec
from sqlalchemy import (
    Column,
    Connection,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    insert,
    select,
)

from gatepost.storage.errors import StoreRefused
from gatepost.storage.sql.database import Database
from gatepost.storage.sql.tables import METADATA, REVISION

MIGRATIONS = "gatepost.storage.migrations.steps"
"""
The module is loaded by name: Alembic costs a tenth of a second, and most starts do not need it.
"""
SCRIPTS = Path(__file__).parents[1] / "migrations"
MIGRATION_S = 3600.0
"""The deadline of all steps together, in seconds."""

# If two processes migrate at once, one waits for the other and then finds nothing left to do.
# SQLite has one writer anyway.
_LOCK = {
    "sqlite": (),
    # The lock's number is "gatepost" in ASCII; any number that no other program uses would do.
    "postgresql": (
        "SET LOCAL statement_timeout = 0",
        "SELECT pg_advisory_xact_lock(7449363229243306868)",
    ),
}
# The table is the one that Alembic creates, which later finds its revision there.
_VERSIONS = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
# SQLAlchemy asks the same, but takes longer to write the statement than the database to answer.
_HAS_VERSIONS = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'table' AND name = 'alembic_version'",
    "postgresql": "SELECT to_regclass('alembic_version')::text",
}


class Move(msgspec.Struct, frozen=True):
    """What a migration did: the revisions before and after, and a line for each step."""

    before: str | None
    after: str
    steps: tuple[str, ...] = ()


async def revision(database: Database) -> str | None:
    """Return the revision of a database, None if it is empty; raises StoreUnavailable."""
    return await database.run_sync(_revision)


async def check(database: Database) -> None:
    """Raise StoreRefused unless the database is exactly at our revision."""
    current = await revision(database)
    if current != REVISION:
        _refuse(current)


def _refuse(current: str | None) -> NoReturn:
    steps = importlib.import_module(MIGRATIONS)
    if current is not None and not steps.has_revision(SCRIPTS, current):
        raise StoreRefused(
            f"the database is at revision {current}, which a newer Gatepost has made; this one "
            f"needs {REVISION}, and `gatepost migrate` only goes forward: run the newer version"
        )
    raise StoreRefused(must_migrate(current))


def must_migrate(current: str | None) -> str:
    """Return the message for a database that must be migrated."""
    return (
        f"the database is at revision {current or 'none'} and this Gatepost needs {REVISION}: "
        "run `gatepost migrate`"
    )


async def migrate(database: Database, scripts: Path = SCRIPTS) -> Move:
    """
    Bring the database to the newest revision, or leave it as it was.

    All steps are one transaction. Raises StoreRefused for a database that is ahead of us, and
    StoreUnavailable.
    """
    if (before := await revision(database)) == REVISION and scripts == SCRIPTS:
        return Move(before, REVISION)
    return await database.transaction(partial(_migrate, scripts), within_s=MIGRATION_S)


async def make(database: Database) -> Move:
    """
    Migrate a database; an empty one gets the current tables at once, without the steps.

    This saves importing Alembic.
    """
    if await revision(database) is not None:
        return await migrate(database)
    created = await database.transaction(_create_tables, within_s=MIGRATION_S)
    # Another process was faster, perhaps with fewer steps.
    return Move(None, REVISION) if created else await migrate(database)


def _lock(connection: Connection) -> None:
    for statement in _LOCK[connection.dialect.name]:
        connection.exec_driver_sql(statement)


def _create_tables(connection: Connection) -> bool:
    _lock(connection)
    if _revision(connection) is not None:
        return False
    # The tables that exist already belong to another program, so they must not be used.
    for tables in (METADATA, _VERSIONS.metadata):
        tables.create_all(connection, checkfirst=False)
    connection.execute(insert(_VERSIONS).values(version_num=REVISION))
    return True


def _migrate(scripts: Path, connection: Connection) -> Move:
    steps = importlib.import_module(MIGRATIONS)
    _lock(connection)
    before = _revision(connection)
    if before is not None and not steps.has_revision(scripts, before):
        _refuse(before)
    applied: list[str] = steps.upgrade(connection, scripts)
    return Move(before, _revision(connection) or REVISION, tuple(applied))


def _revision(connection: Connection) -> str | None:
    if connection.exec_driver_sql(_HAS_VERSIONS[connection.dialect.name]).scalar() is None:
        return None
    current: str | None = connection.execute(select(_VERSIONS.c.version_num)).scalar()
    return current
