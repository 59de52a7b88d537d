"""The wheel in an empty environment of each Python: its metadata names all that it needs."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.architecture.source import ROOT
from tests.support.client import ResourceClient
from tests.support.commands import READY_LINE, Gatepost
from tests.support.processes import free_port

PROGRAMS = f"{ROOT / '.venv/deploy/bin'}{os.pathsep}/usr/sbin"
"""Where programs are that are not on the path."""


def clean() -> dict[str, str]:
    """Return this environment without variables that lead to the checkout."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def printed(*command: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """Run a command, which must succeed, and return what it prints."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=dict(env or clean()),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def dev(*command: str | Path, cwd: Path, tools: Path | None = None) -> Iterator[Gatepost]:
    """Run `gatepost dev` by that command in an empty folder."""
    words = [*map(str, command), "dev", "--port", str(free_port())]
    words += [] if tools is None else ["--tools", str(tools)]
    process = Gatepost(words, env=clean(), cwd=cwd)
    try:
        process.url = process.wait_for(READY_LINE, timeout_s=120)["url"]
        yield process
        assert process.stop() == 0, process.output
    finally:
        process.kill()


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build and return the wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    printed(sys.executable, "-m", "pip", "--disable-pip-version-check", *build, cwd=folder)
    (wheel,) = folder.glob("gatepost-*.whl")
    return wheel


pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LOCK = ROOT / "requirements.lock"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSIONS = re.findall(r"Python :: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE)
EXTRA_NAMES = list(PROJECT["optional-dependencies"])
UV = Path(sys.executable).with_name("uv")
DEBIAN_RELEASES = {"3.13": "trixie", "3.14": "forky"}
"""What .ci/run brings where it is missing, and the release of Debian that has it."""
PYTHON_PATHS = (
    (ROOT / "build/pythons", "{version}/usr/bin/python{version}"),  # by .ci/python
    (Path.home() / ".pyenv/versions", "{version}.*/bin/python{version}"),
)

TOOLS = '''
from dataclasses import dataclass
from typing import Annotated, TypedDict

from pydantic import BaseModel

from gatepost import CallContext, Depends, Pack

pack = Pack("shop")


def owner(ctx: CallContext) -> str:
    return ctx.caller.subject


class Item(BaseModel):
    """An item."""

    name: str
    count: int = 1


@dataclass
class Line:
    """A line of a receipt."""

    name: str
    count: int


class Receipt(BaseModel):
    """What was ordered."""

    text: str
    lines: list[Line]


@pack.tool
async def order(ctx: CallContext, item: Item, who: Annotated[str, Depends(owner)]) -> "Receipt":
    """Order an item."""
    return Receipt(text=f"{item.name} for {who}", lines=[Line(item.name, item.count)])
'''

IMPORT_ALL = """
import importlib, pkgutil, sys

for package in ("gatepost", "gatepost_authz", "gatepost_keys", "gatepost_packs"):
    found = importlib.import_module(package)
    for module in pkgutil.walk_packages(found.__path__, package + "."):
        if "migrations" not in module.name and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
print(sum(name.startswith("gatepost") for name in sys.modules))
"""


def interpreter(version: str) -> Path:
    """Return an installed Python of that version."""
    paths = [path for path in [shutil.which(f"python{version}")] if path]
    for folder, pattern in PYTHON_PATHS:
        paths += map(str, sorted(folder.glob(pattern.format(version=version))))
    says = "import sys; print('{}.{}'.format(*sys.version_info))"
    for path in paths:
        # pyenv's own programs are there for versions that it does not have.
        ran = subprocess.run([path, "-c", says], capture_output=True, text=True, check=False)
        if ran.stdout.strip() == version:
            return Path(path)
    if version in DEBIAN_RELEASES:
        pytest.skip(f"no Python {version}: run .ci/python {version} {DEBIAN_RELEASES[version]} …")
    # No skip, which fails .ci/run: no release of Debian has it, so not every machine can.
    pytest.xfail(f"no Python {version}: install it, for instance with `uv python install`")


def installed(python: Path, wheel: Path, home: Path) -> Path:
    """Return the programs of a new environment with only the wheel and its locked packages."""
    printed(UV, "venv", "--quiet", "--python", python, home, cwd=home.parent)
    pip = [UV, "pip", "install", "--quiet", "--python", home / "bin/python"]
    printed(*pip, "--require-hashes", "-r", LOCK, cwd=home.parent)
    printed(*pip, "--no-deps", wheel, cwd=home.parent)
    printed(UV, "pip", "check", "--quiet", "--python", home / "bin/python", cwd=home.parent)
    return home / "bin"


def install_extras(programs: Path, wheel: Path) -> None:
    """Install all extras in their locked versions, from wheels alone."""
    pip = [UV, "pip", "install", "--quiet", "--python", programs / "python"]
    lock = (ROOT / "requirements-dev.lock").read_text(encoding="utf-8")
    constraints = programs / "constraints.txt"
    constraints.write_text("\n".join(re.findall(r"^[\w.-]+==[^\\\n]+", lock, re.M)))
    extras = f"{wheel}[{','.join(EXTRA_NAMES)}]"
    printed(*pip, "--only-binary", ":all:", "--constraints", constraints, extras, cwd=programs)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_wheel_serves_a_tool_in_an_empty_environment(
    version: str, wheel: Path, tmp_path: Path
) -> None:
    """
    The challenge, a call, `check` and the doctor work as from the source.

    Then every module is imported, with the extras installed as well.
    """
    programs = installed(interpreter(version), wheel, tmp_path / "environment")
    gatepost, folder = programs / "gatepost", tmp_path / "work"
    folder.mkdir()
    (folder / "shop.py").write_text(TOOLS, encoding="utf-8")
    environment = clean() | {"PYTHONWARNINGS": "error"}
    with dev(gatepost, cwd=folder, tools=folder / "shop.py") as process:
        challenge = ResourceClient(process.url).send("POST", body=b"{}")
        token = printed(gatepost, "token", "--tenant", "acme", cwd=folder).strip()
        ordered = printed(
            *(gatepost, "call", "order", 'item:={"name": "tea", "count": 2}'),
            cwd=folder,
            env=environment | {"GATEPOST_TOKEN": token},
        )
        checked = printed(gatepost, "check", "--config", ".gatepost/dev.toml", cwd=folder)
        examined = printed(
            *(gatepost, "doctor", process.url),
            cwd=folder,
            env=environment | {"GATEPOST_DOCTOR_TOKEN": token},
        )
    output = printed(gatepost, "--version", cwd=folder, env=environment)
    install_extras(programs, wheel)
    counted = printed(programs / "python", "-c", IMPORT_ALL, cwd=folder)

    assert printed(programs / "python", "-V", cwd=folder).startswith(f"Python {version}.")
    assert PROJECT["version"] in output
    assert challenge.status == 401
    assert (challenge.field("www-authenticate") or "").startswith("Bearer ")
    assert '"text":"tea for alice"' in ordered
    assert f"OK: {process.url}" in checked
    assert examined.splitlines()[-1] == f"No problems found at {process.url}."
    assert "Traceback" not in process.output
    assert int(counted) > 400


def test_the_wheel_runs_by_uvx(wheel: Path, tmp_path: Path) -> None:
    """The command is `uvx gatepost dev`, with the wheel in place of the name."""
    by_uv = [UV, "tool", "run", "--constraints", pinned(tmp_path), "--from", wheel, "gatepost"]
    with dev(*by_uv, cwd=tmp_path) as process:
        assert "Traceback" not in process.output


def test_the_wheel_runs_by_pipx(wheel: Path, tmp_path: Path) -> None:
    """The command is `pipx run gatepost dev`, with the wheel in place of the name."""
    pipx = shutil.which("pipx", path=PROGRAMS)
    if pipx is None:
        pytest.skip("make .venv/deploy/.installed installs pipx")
    settings = [f"PIPX_HOME={tmp_path / 'pipx'}", f"PIP_CONSTRAINT={pinned(tmp_path)}"]
    # Most of the run would be to compile files that are not used. pip reads it as `compile = no`.
    settings += ["PIP_NO_COMPILE=no"]
    # The pip that pipx would install for itself first.
    printed(UV, "venv", "--quiet", "--seed", tmp_path / "pipx/shared", cwd=tmp_path)
    by_pipx = ["env", *settings, pipx, "run", "--spec", wheel, "gatepost"]
    with dev(*by_pipx, cwd=tmp_path) as process:
        assert "Traceback" not in process.output


def pinned(folder: Path) -> Path:
    """Write and return a file with the locked versions, for installers that know no hashes."""
    pins = re.findall(r"^[\w.\[\]-]+==\S+", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(pins), encoding="utf-8")
    return constraints


def test_the_wheel_contains_the_packages_and_the_licence_only(wheel: Path, tmp_path: Path) -> None:
    """It has no tests, no private keys and no bytecode."""
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
