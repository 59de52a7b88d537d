"""The schema: as the tables say, on both databases, and never half way."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from gatepost.storage.errors import StoreRefused, StoreUnavailable
from gatepost.storage.sql import database_schema as schema
from gatepost.storage.sql.database import Database
from gatepost.storage.sql.records import database_of, migrate, opened
from gatepost.storage.sql.tables import METADATA, REVISION
from tests.conftest import task
from tests.support.measuring import capture_logs

STEPS = (
    "0001: Create all tables.",
    "0002: Index the approval requests in the order in which they are listed.",
)
LATER_MIGRATION = '''
"""Something new."""

import sqlalchemy as sa
from alembic import op

revision = "later"
down_revision = "{before}"


def upgrade() -> None:
    op.add_column("tasks", sa.Column("news", sa.Text))
    op.execute("UPDATE tasks SET tool = 'changed'")
    {last}
'''


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/records.db"
    url: str = request.getfixturevalue("postgres")
    return url


def scripts(folder: Path, last: str = "pass") -> Path:
    """Copy the migrations and add one more, which ends with the statement *last*."""
    copied = folder / "migrations"
    shutil.copytree(schema.SCRIPTS, copied, ignore=shutil.ignore_patterns("__pycache__"))
    (copied / "versions" / "later.py").write_text(
        LATER_MIGRATION.format(before=REVISION, last=last)
    )
    return copied


def differences(connection: Connection) -> list[object]:
    options = {"compare_type": True, "compare_server_default": True}
    return list(compare_metadata(MigrationContext.configure(connection, opts=options), METADATA))


async def test_the_migrated_schema_is_the_one_in_the_source(empty_url: str) -> None:
    """Alembic finds no difference in tables, columns, types, keys and indexes."""
    await migrate(empty_url)
    database = database_of(empty_url)
    differences_found = await database.run_sync(differences)
    await database.aclose()

    assert differences_found == []


def test_the_source_names_the_newest_migration() -> None:
    """A start that compares with an older one would serve a schema it does not know."""
    assert ScriptDirectory(schema.SCRIPTS).get_heads() == [REVISION]


def test_every_table_begins_its_key_with_the_tenant() -> None:
    """Every record is found by the tenant alone."""
    keys = {table.name: [c.name for c in table.primary_key] for table in METADATA.sorted_tables}

    assert keys
    assert all(columns[0] == "tenant" and len(columns) > 1 for columns in keys.values()), keys


async def test_a_migration_reports_its_steps_and_runs_once(empty_url: str) -> None:
    """A second migration has no steps."""
    first = await migrate(empty_url)
    second = await migrate(empty_url)

    assert (first.before, first.after) == (None, REVISION)
    assert first.steps == STEPS
    assert (second.before, second.after, second.steps) == (REVISION, REVISION, ())


async def test_the_creation_of_a_database_file_is_logged_once(tmp_path: Path) -> None:
    """A schema that changes by itself is worth a line; one that is there already is not."""
    with capture_logs() as logs:
        for _ in range(2):
            await (await opened(f"sqlite:///{tmp_path}/new.db")).aclose()

    # What an earlier test left in this process may log too.
    events = [event for event in logs if event["event"] == "database_migrated"]
    assert [(event["before"], event["after"]) for event in events] == [(None, REVISION)]


Shape = dict[str, tuple[list[object], list[object], list[object]]]


def shape(path: Path) -> Shape:
    """Return each table's columns, indexes and rows, whatever the order of their creation."""
    with closing(sqlite3.connect(path)) as file:

        def ask(query: str, *values: str) -> list[Any]:
            return file.execute(query, values).fetchall()

        def index(name: str) -> list[Any]:
            return ask("SELECT seqno, name, desc, coll, key FROM pragma_index_xinfo(?)", name)

        shapes: Shape = {}
        for (table,) in ask("SELECT name FROM sqlite_master WHERE type = 'table'"):
            columns = ask(
                'SELECT name, type, "notnull", dflt_value, pk FROM pragma_table_info(?)', table
            )
            indexes = ask('SELECT name, "unique", origin, partial FROM pragma_index_list(?)', table)
            rows = ask(f"SELECT * FROM {table}")  # noqa: S608  # a name of the schema
            shapes[table] = (
                sorted(columns), sorted((*fields, index(fields[0])) for fields in indexes), rows,
            )  # fmt: skip
        return shapes


async def test_a_new_file_has_the_schema_of_all_migrations(tmp_path: Path) -> None:
    """A start makes the tables at once, and a later step finds them as the earlier left them."""
    await (await opened(f"sqlite:///{tmp_path}/made.db")).aclose()
    await migrate(f"sqlite:///{tmp_path}/migrated.db")

    assert shape(tmp_path / "made.db") == shape(tmp_path / "migrated.db")


async def test_a_database_with_foreign_tables_is_not_changed(tmp_path: Path) -> None:
    """A foreign table that has the name of one of Gatepost's is not taken for it."""
    with closing(sqlite3.connect(tmp_path / "theirs.db")) as file:
        file.execute("CREATE TABLE grants (amount TEXT)")
    before = shape(tmp_path / "theirs.db")

    for opening in (opened, migrate):
        with pytest.raises(StoreUnavailable):
            await opening(f"sqlite:///{tmp_path}/theirs.db")

    assert shape(tmp_path / "theirs.db") == before


async def database_with_a_task(empty_url: str) -> Database:
    """Return a database at the current revision with a task in it."""
    await migrate(empty_url)
    records = await opened(empty_url)
    await records.for_tenant("acme").tasks.create(task())
    return records.database


async def single_value(database: Database, sql: str) -> object:
    return (await database.rows(text(sql), {}))[0][0]


async def test_a_database_of_an_older_version_is_refused_until_it_is_migrated(
    empty_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names both revisions and the command; the database is unchanged."""
    database = await database_with_a_task(empty_url)
    monkeypatch.setattr(schema, "REVISION", "later")
    monkeypatch.setattr(schema, "SCRIPTS", scripts(tmp_path))
    with pytest.raises(
        StoreRefused, match=rf"revision {REVISION} .* needs later: run `gatepost migrate`"
    ):
        await schema.check(database)
    assert await schema.revision(database) == REVISION

    move = await schema.migrate(database, schema.SCRIPTS)
    await schema.check(database)

    assert (move.before, move.after, move.steps) == (REVISION, "later", ("later: Something new.",))
    await database.aclose()


async def test_a_later_migration_keeps_the_data(empty_url: str, tmp_path: Path) -> None:
    """Forward only, over data."""
    database = await database_with_a_task(empty_url)
    move = await schema.migrate(database, scripts(tmp_path))

    assert (move.before, move.after) == (REVISION, "later")
    assert await single_value(database, "SELECT tool FROM tasks WHERE news IS NULL") == "changed"
    await database.aclose()


@pytest.mark.parametrize(
    "last", ["op.execute('SELECT nonsense')", "raise RuntimeError('in the middle')"]
)
async def test_a_migration_that_fails_leaves_everything_as_it_was(
    empty_url: str, tmp_path: Path, last: str
) -> None:
    """No column, no change and no revision of it remains, and it can be tried again."""
    database = await database_with_a_task(empty_url)

    with pytest.raises((StoreUnavailable, RuntimeError)):
        await schema.migrate(database, scripts(tmp_path, last))

    assert await schema.revision(database) == REVISION
    assert await single_value(database, "SELECT tool FROM tasks") == "count"
    shutil.rmtree(tmp_path / "migrations")
    assert (await schema.migrate(database, scripts(tmp_path))).after == "later"
    await database.aclose()


async def test_postgresql_is_not_migrated_at_the_start(postgres: str) -> None:
    """Several replicas start at any time; when to migrate, the operator says."""
    with pytest.raises(StoreRefused, match=r"revision none.*gatepost migrate"):
        await opened(postgres)

    database = database_of(postgres)
    assert await schema.revision(database) is None
    await database.aclose()


async def test_a_database_of_a_newer_version_is_refused(empty_url: str, tmp_path: Path) -> None:
    """Its columns are unknown here, so nothing is written to it."""
    database = await database_with_a_task(empty_url)
    await schema.migrate(database, scripts(tmp_path))
    await database.aclose()

    for opening in (opened, migrate):
        with pytest.raises(StoreRefused, match=r"later, which a newer Gatepost.*gatepost migrate"):
            await opening(empty_url)


async def test_a_sqlite_file_is_migrated_at_the_start(tmp_path: Path) -> None:
    """One process has one file, so no operator has to say when to migrate."""
    records = await opened(f"sqlite:///{tmp_path}/a/b/new.db")

    assert await schema.revision(records.database) == REVISION
    await records.aclose()
