"""Close files and folders that hold secrets to other users of the machine."""

import logging
import os
import stat

GROUP_AND_OTHERS = 0o077
GROUP_READ = 0o040

log = logging.getLogger(__name__)


class ForeignOwner(PermissionError):
    """A file that should hold secrets belongs to another user, who can read and change it."""


def close_to_others(handle: int, shown_path: str) -> None:
    """
    Take the permissions of group and others from an open file or folder, logging that.

    Raises ForeignOwner for one of another user: a mode does not keep its owner out. Root may use
    every user's files, as commands of an administrator do. OSError where the mode cannot be
    changed.
    """
    status = os.fstat(handle)
    if is_foreign(status):
        raise ForeignOwner(1, f"it belongs to another user (uid {status.st_uid})", shown_path)
    mode = stat.S_IMODE(status.st_mode)
    if mode & GROUP_AND_OTHERS:
        os.fchmod(handle, mode & ~GROUP_AND_OTHERS)
        log.warning("permissions_removed", extra={"path": shown_path, "mode": f"{mode:04o}"})


def is_foreign(status: os.stat_result) -> bool:
    """Return whether a file belongs to another user than this process runs as."""
    return os.geteuid() not in (0, status.st_uid)
