"""One command sets the version in every file that names it."""

import re
import shutil
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.architecture.source import ROOT
from tests.deploy.test_wheel import clean, printed

pytestmark = pytest.mark.slow

PROGRAM = ROOT / ".venv/deploy/bin/bump-my-version"
SETTINGS = ".bumpversion.toml"
VERSION = "47.11.0"
NAME = re.compile(r"gatepost[:-](\d+\.\d+\.\d+)|^\W*(?:version|appVersion)\W+(\d+\.\d+\.\d+)", re.M)


def test_the_bump_command_sets_the_version_in_every_file(tmp_path: Path) -> None:
    """It also dates the changelog and creates a tag."""
    files = tomllib.loads((ROOT / SETTINGS).read_text(encoding="utf-8"))["tool"]["bumpversion"]
    names = [file.get("filename") or file["glob"] for file in files["files"]]
    for name in (SETTINGS, *names):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    env = clean() | {"GIT_CONFIG_GLOBAL": str(tmp_path / "none")}
    for name in ("AUTHOR", "COMMITTER"):
        env |= {f"GIT_{name}_NAME": "a", f"GIT_{name}_EMAIL": "a@example.com"}
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "All"]):
        printed("git", *command, cwd=tmp_path, env=env)
    bump = ["bump", "--new-version", VERSION, "--no-sign-tags"]
    printed(PROGRAM, *bump, cwd=tmp_path, env=env)

    for name in names:
        text = (tmp_path / name).read_text(encoding="utf-8")
        if name == "CHANGELOG.md":
            today = datetime.now(UTC).date()
            assert f"## Unreleased\n\n## {VERSION} - {today}\n" in text
        else:
            release_names = {name for pair in NAME.findall(text) for name in pair if name}
            assert release_names == {VERSION}, (name, release_names)
    assert printed("git", "tag", cwd=tmp_path, env=env).split() == [f"v{VERSION}"]
    assert printed("git", "status", "--short", cwd=tmp_path, env=env) == ""
