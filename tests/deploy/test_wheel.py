"""The wheel in an empty environment: everything it needs is in its metadata, and it runs."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.architecture.source import ROOT
from tests.deploy.conftest import PROGRAMS, clean, dev, printed

pytestmark = pytest.mark.slow

LOCK = ROOT / "requirements.lock"
UV = Path(sys.executable).with_name("uv")


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """The programs of an environment with the locked dependencies and the wheel, and no more."""
    home = wheel.parent / "environment"
    programs = home / "bin"
    printed(UV, "venv", "--quiet", "--seed", "--python", sys.executable, home, cwd=wheel.parent)
    # With pip, as `make` installs the lock and pipx the names in it, this takes ten times as long.
    lock = ["pip", "install", "--quiet", "--python", programs / "python", "--require-hashes"]
    printed(UV, *lock, "--requirement", LOCK, cwd=wheel.parent)
    pip = [programs / "python", "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    printed(*pip, "--no-deps", "--no-compile", wheel, cwd=wheel.parent)
    return programs


def test_the_metadata_names_every_dependency(installed: Path, tmp_path: Path) -> None:
    """Nothing that it imports was there only because a checkout had it."""
    printed(installed / "python", "-m", "pip", "check", cwd=tmp_path)
    printed(installed / "gatepost", "--help", cwd=tmp_path)


def test_it_runs_after_pip_install(installed: Path, tmp_path: Path) -> None:
    """A server, a token for it, and the doctor, which finds nothing wrong."""
    with dev(installed / "gatepost", cwd=tmp_path) as process:
        token = printed(installed / "gatepost", "token", "--tenant", "acme", cwd=tmp_path).strip()
        environment = clean() | {"GATEPOST_DOCTOR_TOKEN": token}
        said = printed(installed / "gatepost", "doctor", process.url, cwd=tmp_path, env=environment)

    assert said.strip().splitlines()[-1] == f"No problems found at {process.url}."


def test_it_runs_by_uvx(wheel: Path, tmp_path: Path) -> None:
    """`uvx gatepost dev`, with the wheel in the place of the name."""
    by_uv = [UV, "tool", "run", "--constraints", pinned(tmp_path), "--from", wheel, "gatepost"]
    with dev(*by_uv, cwd=tmp_path) as process:
        assert "Traceback" not in process.output


def test_it_runs_by_pipx(wheel: Path, tmp_path: Path) -> None:
    """`pipx run gatepost dev`, with the wheel in the place of the name."""
    pipx = shutil.which("pipx", path=PROGRAMS)
    if pipx is None:
        pytest.skip("make .venv/deploy/.installed installs pipx")
    settings = [f"PIPX_HOME={tmp_path / 'pipx'}", f"PIP_CONSTRAINT={pinned(tmp_path)}"]
    # Most of the run would be to compile files that nobody imports. pip reads it as `compile = no`.
    settings += ["PIP_NO_COMPILE=no"]
    # The pip that pipx would install for itself first.
    printed(UV, "venv", "--quiet", "--seed", tmp_path / "pipx/shared", cwd=tmp_path)
    by_pipx = ["env", *settings, pipx, "run", "--spec", wheel, "gatepost"]
    with dev(*by_pipx, cwd=tmp_path) as process:
        assert "Traceback" not in process.output


def pinned(folder: Path) -> Path:
    """A file with the versions of the lock, for installers that know no hashes."""
    pins = re.findall(r"^[\w.\[\]-]+==\S+", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(pins), encoding="utf-8")
    return constraints


def test_the_wheel_holds_what_it_should(wheel: Path, tmp_path: Path) -> None:
    """The packages with their pages and styles, the licence, and no tests or keys."""
    names = printed(sys.executable, "-m", "zipfile", "--list", wheel, cwd=tmp_path)
    tops = {line.split("/")[0] for line in names.splitlines()[1:]}

    assert {top for top in tops if "dist-info" not in top} == {
        "gatepost",
        "gatepost_authz",
        "gatepost_keys",
        "gatepost_packs",
    }
    assert "gatepost/py.typed" in names
    assert "dist-info/licenses/LICENSE" in names
    assert not re.search(r"\.pem|keyring\.json|__pycache__", names)
