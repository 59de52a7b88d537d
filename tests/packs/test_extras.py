"""A pack whose libraries are not installed says what brings them, and breaks no other."""

import os
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from gatepost_packs import BUILT_IN
from tests.architecture.source import ROOT
from tests.support.commands import completed
from tests.support.processes import python_environment

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OPTIONAL_DEPENDENCIES: dict[str, list[str]] = PROJECT["optional-dependencies"]
STORES = {"postgres", "redis"}
CONTROL_EXTRAS = {"cel", "otel"}
"""What conditions of approvals, and an OpenTelemetry collector, ask for."""
PACK_EXTRAS = {name: row.extra for name, row in BUILT_IN.items() if row.extra}

FILE = """
resource = "https://mcp.example.com/mcp"
listen.trusted_proxies = ["10.0.0.0/8"]
keys.ring = "file:keyring.json"
issuers = [{{ issuer = "https://id.example.com", tenant = {{ value = "acme" }} }}]
tools.packs = {packs}
"""
MISSING_MODULE = "raise ModuleNotFoundError(f'No module named {__name__!r}', name=__name__)\n"


def test_every_extra_belongs_to_a_pack_or_a_store() -> None:
    """No extra is unused, and no used extra is missing."""
    assert set(OPTIONAL_DEPENDENCIES) == STORES | CONTROL_EXTRAS | set(PACK_EXTRAS.values())


def modules_of(extra: str) -> list[str]:
    """Return the modules that the libraries of an extra provide."""
    names = {Requirement(line).name.lower() for line in OPTIONAL_DEPENDENCIES[extra]}
    return [
        module
        for module, owners in metadata.packages_distributions().items()
        if names & {owner.lower() for owner in owners}
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a configuration with packs for every extra, all of them missing."""
    completed("keyring", "new", cwd=tmp_path)
    (tmp_path / "gatepost.toml").write_text(FILE.format(packs=["demo", *PACK_EXTRAS]))
    (tmp_path / "bare").mkdir()
    for extra in set(PACK_EXTRAS.values()):
        for module in modules_of(str(extra)):
            (tmp_path / "bare" / f"{module}.py").write_text(MISSING_MODULE)
    return tmp_path


def test_check_names_the_extra_of_a_missing_package(folder: Path) -> None:
    """There is one warning for each, with the command to install it."""
    paths = os.pathsep.join([str(folder / "bare"), python_environment(None)["PYTHONPATH"]])
    done = completed("check", cwd=folder, env={"PYTHONPATH": paths})

    assert done.code == 0, done.err
    assert done.err.count("warning config.W004") == len(PACK_EXTRAS)
    for extra in PACK_EXTRAS.values():
        assert f"pip install 'gatepost[{extra}]'" in done.err
    assert "5 tools" in done.out
