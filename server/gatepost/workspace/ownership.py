"""Recognise tenants' folders that Gatepost created."""

import logging
import os
from contextlib import suppress
from pathlib import Path

from gatepost.execution.failure import ToolFailure
from gatepost.permissions import ForeignOwner, close_to_others
from gatepost.workspace.resolver import DIRECTORY, Resolver

PRIVATE = ".gatepost"
"""The folder beside the tenants' folders; no tenant's id begins with a dot."""
USAGE_FILE = ".usage"
"""The file with a tenant's usage; it is created first, so it marks the folder."""

NO_ROOT = -1
"""The root's handle if there is no folder for workspaces."""
NO_WORKSPACES = "This server stores no files, because it has no folder for them (workspace.root)."
REFUSED = "The workspace cannot be used: its folder was not made for it. The operator can see why."

log = logging.getLogger("gatepost.workspace")


class Owned:
    """
    Checks once whether one tenant's folder may be used.

    The root may be a folder that contained other folders before, such as `/home`. Those belong to
    other people, and a token can name any of them as its tenant.
    """

    def __init__(self, root: int, tenant: str, resolver: Resolver) -> None:
        self._root, self._tenant, self._resolver = root, tenant, resolver
        self._is_closed = self._is_logged = False

    def check(self) -> None:
        """Raise ToolFailure if the folder was not made by Gatepost for this tenant."""
        if self._is_closed:
            return
        if self._root == NO_ROOT:
            raise ToolFailure("denied", NO_WORKSPACES)
        try:
            if is_foreign_folder(self._root, self._tenant, self._resolver):
                raise ForeignOwner(1, "it was there before, and is not empty")
            self._is_closed = self._closed()
        except ForeignOwner as error:
            if not self._is_logged:
                self._is_logged = True
                log.error(
                    "workspace_refused",
                    extra={"tenant": self._tenant, "reason": f"its folder: {error.strerror}"},
                )
            raise ToolFailure("upstream_unavailable", REFUSED, retry_after=60) from None

    def _closed(self) -> bool:
        """Remove other users' permissions from the folders; return whether all folders exist."""
        folders = ((PRIVATE,), (PRIVATE, self._tenant), (self._tenant,))
        return all(self._close(folder) for folder in folders)

    def _close(self, folder: tuple[str, ...]) -> bool:
        try:
            handle = self._resolver.open(self._root, folder, DIRECTORY)
        except OSError:
            return False  # a link or a file in the way; opening it reports the error
        try:
            # A network file system may have one owner for all files, and modes that cannot be
            # changed.
            if os.fstat(handle).st_uid in (os.geteuid(), os.fstat(self._root).st_uid):
                with suppress(PermissionError):
                    close_to_others(handle, "/".join(folder))
            else:
                close_to_others(handle, "/".join(folder))
        finally:
            os.close(handle)
        return True


def is_foreign_folder(root: int, tenant: str, resolver: Resolver) -> bool:
    """Return whether the tenant's folder has content and was not made by Gatepost."""
    try:
        handle = resolver.open(root, (tenant,), DIRECTORY)
    except OSError:
        return False  # there is none, or no tool can enter it
    try:
        if not os.listdir(handle):
            return False
    finally:
        os.close(handle)
    try:
        home = resolver.open(root, (PRIVATE, tenant), DIRECTORY)
    except OSError:
        return True
    try:
        os.stat(USAGE_FILE, dir_fd=home, follow_symlinks=False)
    except FileNotFoundError:
        return True
    finally:
        os.close(home)
    return False


def adoption(root: Path, tenant: str) -> str:
    """Return the hint for the operator about such a folder."""
    home = root / PRIVATE / tenant
    return (
        f"move {root / tenant} away; if its files are this tenant's, as after a restored backup: "
        f"mkdir -p -m 700 {home} && touch {home / USAGE_FILE}"
    )
