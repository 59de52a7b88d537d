"""The vault is where the configuration says, and a configuration that cannot be is found out."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from gatepost.workspace import Workspaces
from gatepost_packs.vault.settings import VaultSettings
from gatepost_packs.vault.tools import vault_list, vault_read, vault_write
from tests.packs.vault.test_index import VaultTestSettings, VaultTools
from tests.support.measuring import each

pytestmark = pytest.mark.requirement("P5")


@each(
    ("settings", "faults"),
    [
        ({}, []),
        ({"folder": "."}, []),
        ({"folder": "documents/My notes"}, []),
        *[
            ({"folder": folder}, ["folder"])
            for folder in ("", "/vault", "vault/", "a//b", "..", "a/../b", ".hidden", "a\nb")
        ],
        ({"index_bytes": 1_000}, ["index_bytes"]),
    ],
    ids=str,
)
def test_check_reports_an_unusable_setting(settings: dict[str, Any], faults: list[str]) -> None:
    """`gatepost check` reports it with a remedy."""
    problems = list(msgspec.convert(settings, VaultSettings).faults())

    assert [fault.setting for fault in problems] == faults


@pytest.mark.parametrize(
    ("folder", "inside"), [("vault", "vault"), (".", ""), ("a/My notes", "a/My notes")]
)
async def test_the_vault_folder_can_be_configured(tmp_path: Path, folder: str, inside: str) -> None:
    """Its paths are the same for any folder."""
    spaces = Workspaces(tmp_path)
    secrets = VaultTools(spaces, tmp_path)
    secrets.told = VaultTestSettings(folder=folder)

    written = await vault_write(secrets.ctx, "One", "text")
    listed = await vault_list(secrets.ctx)
    read = await vault_read(secrets.ctx, "/vault/One.md")

    assert written.path == read.path == listed.notes[0].path == "/vault/One.md"
    assert (tmp_path / "acme" / inside / "One.md").read_text() == "text"
    spaces.close()
