"""Move write-ahead logs from beside a link to a SQLite file, where earlier versions made them."""

import os

from gatepost.storage.errors import StoreRefused
from gatepost.storage.sql.sqlite import WAL, wals
from gatepost.storage.sql.sqlite_audit_files import has_ended, synchronise_folder
from gatepost.storage.sql.sqlite_database import write_lock
from gatepost.storage.sqlite_file import given_path, path_of


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
        reason = _reason_against(source, target)
        if not reason:
            os.rename(source, target)
            for name in (target, source):
                synchronise_folder(name)
    except FileNotFoundError:
        return  # another process has moved it
    except OSError as error:
        reason = str(error.strerror)
    if reason and reason != _EMPTY:
        raise StoreRefused(
            f"the write-ahead log {source} is beside a link and must be moved to {target}: {reason}"
        )


_EMPTY = "it is empty"


def _reason_against(source: str, target: str) -> str:
    """Return why a write-ahead log is not to be moved; OSError."""
    if (state := _state(source)) != "":
        return state
    if os.path.lexists(target) and (state := _state(target)) != _EMPTY:
        return state or "there is another one with records"
    return ""


def _state(name: str) -> str:
    """Return whether a write-ahead log is in use or empty; "" if it is neither. OSError."""
    file = os.open(name, os.O_RDWR | os.O_CLOEXEC)
    try:
        if not has_ended(file):
            return "a running process uses it"
        with os.fdopen(os.dup(file), "rb") as content:
            return "" if any(map(any, content)) else _EMPTY
    finally:
        os.close(file)
