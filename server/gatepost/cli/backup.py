"""`gatepost backup`: copy the SQLite database consistently while servers write to it."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import click

from gatepost.audit.batches import RingLinker
from gatepost.cli.configuration import config_option
from gatepost.cli.stores import configured
from gatepost.config.references import resolved_setting
from gatepost.config.settings import KeySettings
from gatepost.secrets.keyring import KeyRing, KeyRingError
from gatepost.storage.backends import scheme_of
from gatepost.storage.errors import StoreRefused, StoreUnavailable
from gatepost.storage.sql.sqlite import wals
from gatepost.storage.sql.sqlite_audit_merger import SqliteMerger
from gatepost.storage.sql.sqlite_links import move_logs
from gatepost.storage.sqlite_file import exists, path_of

WAIT_S = 30.0
"""Seconds that the copy waits for a locked database."""


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@config_option
def backup(file: Path, path: Path) -> None:
    """
    Copy the configured SQLite database to FILE. Servers can keep running.

    The copy is consistent, unlike a plain copy of the file. Also back up the workspaces and, in
    another place, the key ring. See docs/storage.md.
    """
    config = configured(path, settings=("storage.database",))
    url = resolved_setting(config.storage.database)
    if scheme_of(url) != "sqlite":
        raise click.ClickException("This command supports SQLite only. Use pg_dump for PostgreSQL.")
    if not exists(url):
        raise click.ClickException(f"The database {path_of(url)} does not exist.")
    _merge(url, config.keys)
    try:
        size = copy(path_of(url), file)
    except FileExistsError:
        raise click.ClickException(f"{file} already exists. Choose another file.") from None
    except (OSError, sqlite3.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise click.ClickException(f"{file} cannot be written: {reason}.") from None
    click.echo(f"Backed up the database to {file}: {size} bytes.")


def _merge(url: str, keys: KeySettings) -> None:
    """Merge the write-ahead logs of audit records, which the copy does not contain."""
    database = path_of(url)
    try:
        move_logs(url)
        if not wals(database):
            return
        if not keys.ring:
            raise KeyRingError("There is no key ring.")
        ring = KeyRing.load(keys.ring, group_read=keys.group_read)
        with closing(SqliteMerger(database)) as merger:
            merger.merge(None, RingLinker(ring))
    except (KeyRingError, StoreRefused, StoreUnavailable) as error:
        click.echo(f"Audit records of the last second may be missing: {error}", err=True)


def copy(database: str, file: Path) -> int:
    """
    Copy a database in one read transaction, durably, and return the size of the copy.

    Only this user can read the copy, because it contains arguments and encrypted secrets. It gets
    its name when it is complete.
    """
    if file.exists():
        raise FileExistsError(file)
    partial = file.with_name(f"{file.name}.partial")
    os.close(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
    try:
        _fill(database, partial)
        partial.rename(file)
    finally:
        # The disk may be full, and an incomplete copy takes room on it.
        partial.unlink(missing_ok=True)
    return file.stat().st_size


def _fill(database: str, partial: Path) -> None:
    """Write the copy and check it; raises OSError or sqlite3.Error."""
    source_url = f"file:{quote(os.path.abspath(database))}?mode=rw"
    with (
        closing(sqlite3.connect(source_url, uri=True, timeout=WAIT_S)) as source,
        closing(sqlite3.connect(partial)) as target,
    ):
        # Copy all pages in one step: otherwise every write in between restarts the backup.
        source.backup(target)
        fault = target.execute("PRAGMA quick_check").fetchone()[0]
        if fault != "ok":
            raise sqlite3.DatabaseError(f"the copy is damaged: {fault}")
        # Make it a single file, without -wal and -shm.
        target.execute("PRAGMA journal_mode = delete")
    with partial.open("rb") as written:
        os.fsync(written.fileno())
