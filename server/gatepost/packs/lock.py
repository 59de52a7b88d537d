"""Turns that processes take at what they share on disk."""

import fcntl


def taken(handle: int) -> bool:
    """Lock an open file for this handle alone, without waiting; whether it is ours now."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
