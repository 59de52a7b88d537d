"""Move write-ahead logs from beside a link to a SQLite file, where earlier versions made them."""

import os

from gatepost.storage.errors import StoreRefused
from gatepost.storage.sql.sqlite import WAL, wals
from gatepost.storage.sql.sqlite_audit_files import has_ended, synchronise_folder
from gatepost.storage.sql.sqlite_database import write_lock
from gatepost.storage.sqlite_file import given_path, path_of

IN_USE = "a running process uses it"


def move_logs(url: str) -> None:
    """
    Move the write-ahead logs beside a link to the file that the link names.

    Empty ones stay. Raises StoreRefused for one that cannot be moved: its records would be missing.
    """
    link, path = given_path(url), path_of(url)
    if link != path and os.path.exists(path):
        with write_lock(path):
            for number, name in wals(link).items():
                _move(name, f"{path}{WAL}{number}")


def _move(source: str, target: str) -> None:
    try:
        if _is_used(source):
            reason = IN_USE
        elif not _has_records(source):
            return
        elif os.path.lexists(target) and _is_used(target):
            reason = IN_USE
        elif os.path.lexists(target) and _has_records(target):
            reason = "there is another one with records"
        else:
            os.rename(source, target)
            for name in (target, source):
                synchronise_folder(name)
            return
    except FileNotFoundError:
        return  # another process has moved it
    except OSError as error:
        reason = str(error.strerror)
    raise StoreRefused(
        f"the write-ahead log {source} is beside a link and must be moved to {target}: {reason}"
    )


def _is_used(name: str) -> bool:
    file = os.open(name, os.O_RDWR | os.O_CLOEXEC)
    try:
        return not has_ended(file)
    finally:
        os.close(file)


def _has_records(name: str) -> bool:
    """Return whether a write-ahead log contains anything but zeros; OSError."""
    with open(name, "rb") as content:
        return any(map(any, content))
