"""`[packs.vault]`."""

from collections.abc import Iterator

from gatepost import PackSettings, SettingFault

MIN_INDEX = 1_000_000


class VaultSettings(PackSettings, frozen=True):
    """`[packs.vault]`."""

    folder: str = "vault"
    """The folder of the tenant's workspace that is its vault; `.` is the whole workspace."""
    index_bytes: int = 500_000_000
    """
    Maximum number of bytes of a tenant's search index. It lies beside the workspace, does not count
    towards `workspace.quota_bytes`, and can be rebuilt at any time.
    """

    def faults(self) -> Iterator[SettingFault]:
        """Yield an invalid folder, and an index that is too small."""
        names = self.folder.split("/")
        if self.folder != "." and any(
            not name or name.startswith(".") or not name.isprintable() for name in names
        ):
            yield SettingFault(
                "folder",
                f"{self.folder!r} is not a folder of the workspace whose notes can be listed",
                "write `notes` or `work/notes`: no `/` at the ends, no name with a leading dot",
            )
        if self.index_bytes < MIN_INDEX:
            yield SettingFault("index_bytes", f"an index needs at least {MIN_INDEX:_} bytes")
