"""`[packs.vault]`."""

from collections.abc import Iterator

from gatepost.packs.table import Fault, PackSettings

LEAST_INDEX = 1_000_000


class VaultSettings(PackSettings, frozen=True):
    """Where the notes are."""

    folder: str = "vault"
    """The folder of the tenant's workspace that is its vault; `.` is all of it."""
    index_bytes: int = 500_000_000
    """The size of a tenant's search index at most. It lies beside the workspace, does not count \
towards `workspace.quota_bytes`, and can be made again at any time."""

    def faults(self) -> Iterator[Fault]:
        """A folder that is none, and an index that holds nothing."""
        names = self.folder.split("/")
        if self.folder != "." and any(
            not name or name.startswith(".") or not name.isprintable() for name in names
        ):
            yield Fault(
                "folder",
                f"{self.folder!r} is no folder of the workspace whose notes can be listed",
                "write `notes` or `work/notes`: no `/` at its ends, no name with a leading dot",
            )
        if self.index_bytes < LEAST_INDEX:
            yield Fault("index_bytes", f"an index needs at least {LEAST_INDEX:_} bytes")
