"""Removes folder trees of any depth, even if they change meanwhile."""

import errno
import os
import stat

from gatepost.tools.context.interfaces import WorkspaceUsage
from gatepost.workspace.path import partial_name
from gatepost.workspace.resolver import DIRECTORY


def clear(folder: int, name: str) -> WorkspaceUsage:
    """
    Remove *name* in an open folder with everything below it; return its usage.

    A folder's folders are first moved up beside it, so that neither depth nor open handles grow;
    links are removed, never followed.
    """
    size = files = 0
    todo = [name]
    while todo:
        current = todo.pop()
        try:
            status = os.stat(current, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            continue
        if stat.S_ISDIR(status.st_mode):
            emptied, moved = _empty(folder, current)
            todo += moved
            size, files = size + emptied.bytes, files + emptied.files
            try:
                os.rmdir(current, dir_fd=folder)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
                continue  # another process still writes there; the next count removes it
        else:
            size += status.st_size if stat.S_ISREG(status.st_mode) else 0
            os.unlink(current, dir_fd=folder)
        files += 1
    return WorkspaceUsage(size, files)


def _empty(parent: int, name: str) -> tuple[WorkspaceUsage, list[str]]:
    """Remove everything but folders, which are moved to *parent* under new names."""
    size = files = 0
    moved: list[str] = []
    handle = os.open(name, DIRECTORY, dir_fd=parent)
    try:
        for entry_name in os.listdir(handle):
            status = os.stat(entry_name, dir_fd=handle, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                fresh = partial_name()
                os.rename(entry_name, fresh, src_dir_fd=handle, dst_dir_fd=parent)
                moved.append(fresh)
                continue
            os.unlink(entry_name, dir_fd=handle)
            files += 1
            size += status.st_size if stat.S_ISREG(status.st_mode) else 0
    finally:
        os.close(handle)
    return WorkspaceUsage(size, files), moved
