"""Locks between processes that share a disk."""

import fcntl


def lock(handle: int) -> bool:
    """Lock an open file without waiting; return whether this handle holds the lock."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
