"""Run the migrations with Alembic, on the connection and in the transaction of the caller."""

from pathlib import Path
from typing import cast

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationInfo
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection


def upgrade(connection: Connection, scripts: Path) -> list[str]:
    """Run every step that the database lacks; answers what each did, in their order."""
    config = Config()
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    applied: list[str] = []

    def report(*, step: MigrationInfo, **_: object) -> None:
        migration = cast("Script", step.up_revision)
        applied.append(f"{migration.revision}: {migration.doc}")

    config.attributes.update(connection=connection, tell=report)
    command.upgrade(config, "head")
    return applied


def has_revision(scripts: Path, revision: str) -> bool:
    """Return whether the revision is one of these migrations."""
    return revision in {script.revision for script in ScriptDirectory(scripts).walk_revisions()}
