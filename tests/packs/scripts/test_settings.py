"""`gatepost check` finds what is wrong with `[packs.scripts]`."""

from pathlib import Path
from typing import Any

import pytest

from gatepost_packs.scripts.settings import ScriptsSettings

pytestmark = pytest.mark.requirement("P11")

WRONG_SETTINGS: list[tuple[dict[str, Any], str, str]] = [
    ({"folder": "missing"}, "folder", "is not a folder"),
    ({"folder": "everybody"}, "folder", "every user of the machine may write"),
    ({"allow": ["weather"]}, "allow[0]", "`folder`, which is not set"),
    ({"folder": "good", "allow": ["weather", "../x"]}, "allow[1]", "is not a script"),
    ({"folder": "good", "allow": ["weather.star"]}, "allow[0]", "is not a script"),
    ({"folder": "good", "allow": ["*"]}, "allow[0]", "is not a script"),
    ({"allow": ["weather@sha256:12"]}, "allow[0]", "is not a script"),
    ({"allow": [f"weather@sha256:{'A' * 64}"]}, "allow[0]", "is not a script"),
    ({"workspace_folder": "../other"}, "workspace_folder", "is not a folder of the workspace"),
    ({"workspace_folder": "/scripts"}, "workspace_folder", "is not a folder of the workspace"),
    ({"timeout_s": 301}, "timeout_s", "from 0.1 to 300"),
    ({"cpu_s": 0}, "cpu_s", "from 1 to 300"),
    ({"memory_mb": 0}, "memory_mb", "from 16"),
    ({"max_output_bytes": 2_000_000}, "max_output_bytes", "to 1e+06"),
    ({"workers": 1}, "workers", "from 2"),
    ({"workers": 2, "workers_per_tenant": 2}, "workers_per_tenant", "occupy all"),
]


@pytest.mark.parametrize(
    ("settings", "setting", "expected_text"),
    WRONG_SETTINGS,
    ids=[str(row[0]) for row in WRONG_SETTINGS],
)
def test_an_invalid_setting_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    setting: str,
    expected_text: str,
) -> None:
    """The error names the setting before the server starts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good").mkdir()
    (tmp_path / "everybody").mkdir()
    (tmp_path / "everybody").chmod(0o777)

    faults = list(ScriptsSettings(**settings).faults())

    assert setting in [fault.setting for fault in faults]
    assert any(expected_text in fault.message for fault in faults)


def test_the_default_settings_are_valid() -> None:
    """No script is allowed, and no setting is required."""
    usual = ScriptsSettings()

    assert (list(usual.faults()), usual.allow, usual.exec) == ([], [], "approved")
