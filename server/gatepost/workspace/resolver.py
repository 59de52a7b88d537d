"""Open files below a handle without following links, even if the tree changes meanwhile."""

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import struct
import sys
from collections.abc import Sequence
from functools import cache
from typing import Literal, Protocol

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

# The number is the same on every architecture for all calls added since 2019 (openat2(2)).
OPENAT2 = 437
RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH = 0x02, 0x04, 0x08
RESOLVE = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS
# PATH_MAX limits the path of one system call: 15 names of 255 bytes stay below it.
NAMES_AT_ONCE = 15
# The kernel gives up if a folder is renamed during the lookup (EAGAIN), or if the current folder is
# moved outside (EXDEV). Neither happens often in a row.
ATTEMPTS = 8
RETRIED_ERRORS = frozenset({errno.EAGAIN, errno.EINTR, errno.EXDEV})

Choice = Literal["auto", "kernel", "walk"]


class Resolver(Protocol):
    """Opens names below a handle without following links."""

    def open(self, root: int, parts: Sequence[str], flags: int) -> int:
        """
        Open *parts* below *root* and return the handle; without parts, the root itself.

        *flags* are those of open(2) for the last of them; nothing is made. OSError when it is not
        there, or a link stands anywhere on the way.
        """


class Walk:
    """Opens name by name, each relative to the previous one; works on every POSIX system."""

    def open(self, root: int, parts: Sequence[str], flags: int) -> int:
        """Open *parts* below *root* as `Resolver` describes."""
        if not parts:
            return os.open(".", flags | os.O_CLOEXEC, dir_fd=root)
        handle = root
        try:
            for name in parts[:-1]:
                subfolder = os.open(name, DIRECTORY, dir_fd=handle)
                if handle != root:
                    os.close(handle)
                handle = subfolder
            return os.open(parts[-1], flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
        finally:
            if handle != root:
                os.close(handle)


class Kernel:
    """Opens with one system call that refuses links and ways out (Linux, openat2)."""

    def __init__(self) -> None:
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._call.restype = ctypes.c_long

    def open(self, root: int, parts: Sequence[str], flags: int) -> int:
        """Open *parts* below *root* as `Resolver` describes."""
        handle = root
        try:
            while len(parts) > NAMES_AT_ONCE:
                subfolder = self._open(handle, parts[:NAMES_AT_ONCE], DIRECTORY)
                if handle != root:
                    os.close(handle)
                handle, parts = subfolder, parts[NAMES_AT_ONCE:]
            return self._open(handle, parts, flags)
        finally:
            if handle != root:
                os.close(handle)

    def _open(self, handle: int, parts: Sequence[str], flags: int) -> int:
        path = os.fsencode("/".join(parts) or ".")
        if b"\0" in path:
            raise ValueError("embedded null byte")  # C would read the path only up to the NUL
        open_how = struct.pack("=QQQ", flags | os.O_CLOEXEC, 0, RESOLVE)
        for _ in range(ATTEMPTS):
            opened: int = self._call(
                ctypes.c_long(OPENAT2),
                ctypes.c_long(handle),
                ctypes.c_char_p(path),
                ctypes.c_char_p(open_how),
                ctypes.c_size_t(len(open_how)),
            )
            if opened >= 0:
                return opened
            number = ctypes.get_errno()
            if number not in RETRIED_ERRORS:
                raise OSError(number, os.strerror(number))
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


@cache
def kernel_resolves() -> bool:
    """Return whether this kernel has openat2 and allows it (a sandbox may refuse it)."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        return False
    with contextlib.suppress(OSError):
        os.close(Kernel().open(_current_directory(), (), DIRECTORY))
        return True
    return False


def resolver_of(choice: Choice = "auto") -> Resolver:
    """Return the best available resolver, or the requested one."""
    if choice == "walk" or (choice == "auto" and not kernel_resolves()):
        return Walk()
    return Kernel()


def place_of(handle: int) -> str:
    """Return the absolute path of an open folder; raise OSError if the system does not tell."""
    if sys.platform == "darwin":
        path = fcntl.fcntl(handle, fcntl.F_GETPATH, bytes(1024))
        return os.fsdecode(path.rstrip(b"\0"))
    return os.readlink(f"/proc/self/fd/{handle}")


def _current_directory() -> int:
    # AT_FDCWD (fcntl.h): the working directory, for a call that only asks whether it may be made.
    return -100
