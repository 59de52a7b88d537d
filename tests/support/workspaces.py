"""Tenants' folders that a test fills by hand, with the record that marks them as Gatepost's."""

from pathlib import Path

from gatepost.workspace.ownership import LEDGER, PRIVATE


def recorded(root: Path, tenant: str) -> Path:
    """Where the tenant's files are; the record is made where there is none."""
    home = root / PRIVATE / tenant
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    (home / LEDGER).touch(mode=0o600)
    return root / tenant
