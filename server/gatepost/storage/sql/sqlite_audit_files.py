"""Open, lock and copy the files of write-ahead logs, and make their names durable."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from gatepost.permissions import close_to_others


def locked(name: str, owner_path: str) -> int:
    """
    Open a write-ahead log, or make it, and lock it; return -1 if another process has it. OSError.

    The lock ends with the process, however it ends.
    """
    try:
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except PermissionError:
        if os.path.exists(name):
            return -1  # it belongs to another user, such as root
        raise
    try:
        if os.geteuid() == 0:
            # A command of an administrator must not leave a file that the server cannot read.
            owner = os.stat(owner_path)
            os.fchown(file, owner.st_uid, owner.st_gid)
        close_to_others(file, name)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return -1
    except OSError:
        os.close(file)
        raise
    return file


def synchronise_folder(path: str) -> None:
    """Make the name of a file durable; OSError."""
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def keep_copy(file: int, name: str) -> None:
    """Copy a write-ahead log that was changed to a file beside it, for the operator; OSError."""
    content = os.pread(file, os.fstat(file).st_size, 0)
    for number in count(1):
        copy = Path(f"{name}.damaged-{number}")
        with suppress(FileNotFoundError):
            if copy.read_bytes() == content:
                return  # the copy was kept, but the next step failed
            continue
        handle = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(handle, "wb") as target:
                target.write(content)
                target.flush()
                os.fsync(target.fileno())
        except OSError:
            copy.unlink()  # each attempt would leave another copy
            raise
        return


def has_ended(file: int) -> bool:
    """
    Return whether the process of a write-ahead log has ended; the write-ahead log is then locked by
    this one.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextmanager
def opened(path: str) -> Iterator[int]:
    """Open a write-ahead log; -1: it is gone, or another user's."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        yield -1
        return
    try:
        yield file
    finally:
        os.close(file)
