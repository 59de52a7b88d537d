"""`gatepost backup`: a copy of the SQLite database that is whole, while servers write to it."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import click

from gatepost.commands.configuration import config_option
from gatepost.commands.stores import configured
from gatepost.config.references import plain
from gatepost.stores.backends import scheme_of
from gatepost.stores.sql.sqlite import exists, path_of

WAIT_S = 30.0
"""How long the copy waits for whoever has the database locked."""


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@config_option
def backup(file: Path, path: Path) -> None:
    """
    Copy the configured SQLite database to FILE, as it is at one moment; servers may run.

    A plain copy of the file would miss what has not reached it yet. Back up the workspaces and, in
    another place, the key ring too; see docs/storage.md.
    """
    url = plain(configured(path, needs=("storage.database",)).storage.database)
    if scheme_of(url) != "sqlite":
        raise click.ClickException(
            "This is for SQLite. PostgreSQL has pg_dump, or what you use for your other databases."
        )
    if not exists(url):
        raise click.ClickException(f"There is no database {path_of(url)} yet.")
    try:
        size = copy(path_of(url), file)
    except FileExistsError:
        raise click.ClickException(f"{file} is there already; name another file.") from None
    except (OSError, sqlite3.Error) as error:
        raise click.ClickException(f"{file} cannot be written: {error}.") from None
    click.echo(f"{file} holds all of the database: {size} bytes.")


def copy(database: str, file: Path) -> int:
    """
    Copy a database in one read transaction, durably; the bytes of the copy.

    The copy is this user's alone, as it holds arguments and sealed secrets, and gets its name when
    it is complete.
    """
    if file.exists():
        raise FileExistsError(file)
    partial = file.with_name(f"{file.name}.partial")
    os.close(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
    there = f"file:{quote(os.path.abspath(database))}?mode=rw"
    with (
        closing(sqlite3.connect(there, uri=True, timeout=WAIT_S)) as source,
        closing(sqlite3.connect(partial)) as target,
    ):
        # All pages in one step: in steps, it would begin again with every write in between.
        source.backup(target)
        fault = target.execute("PRAGMA quick_check").fetchone()[0]
        if fault != "ok":
            raise sqlite3.DatabaseError(f"the copy is damaged: {fault}")
        # A single file, without the two that a running server keeps beside it.
        target.execute("PRAGMA journal_mode = delete")
    with partial.open("rb") as written:
        os.fsync(written.fileno())
    partial.rename(file)
    return file.stat().st_size
