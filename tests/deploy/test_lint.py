"""What does not run in the tests is linted: images, manifests and the release workflow."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.architecture.source import ROOT
from tests.deploy.test_wheel import PROGRAMS
from tests.support.measuring import each

pytestmark = pytest.mark.slow

LINTERS = {
    "hadolint": ["deploy/Dockerfile", "deploy/compose/issuer.Dockerfile"],
    "kubernetes-validate": ["--strict", "deploy/kubernetes/gatepost.yaml"],
    "zizmor": ["--offline", "--persona", "pedantic", ".github/workflows/release.yml"],
    "systemd-analyze": ["verify"],
}


@each("name", LINTERS)
def test_linters_report_no_problem(tmp_path: Path, name: str) -> None:
    """Each linter ends with exit code 0."""
    program = shutil.which(name, path=PROGRAMS) or shutil.which(name)
    if program is None:
        pytest.skip(f"no {name}: run `make .venv/deploy/.installed` or install systemd")
    arguments = list(LINTERS[name])
    if name == "systemd-analyze":
        unit = tmp_path / "gatepost.service"
        text = (ROOT / "deploy/systemd/gatepost.service").read_text(encoding="utf-8")
        # It looks for the program.
        unit.write_text(text.replace("/opt/gatepost/bin/gatepost", "/bin/true"), encoding="utf-8")
        arguments.append(str(unit))
    done = subprocess.run(
        [program, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert name != "systemd-analyze" or not done.stderr, done.stderr
