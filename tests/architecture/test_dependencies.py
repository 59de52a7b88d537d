"""What an installation brings along stays small, locked and used."""

import re
import tomllib
from importlib.metadata import requires

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.architecture.source import ROOT, contents, source_files

MAX_PACKAGES = 40
# The name to import, where it is not the name to install.
IMPORT_NAMES = {
    "pyyaml": "yaml",
    "pyjwt": "jwt",
    "jsonschema-rs": "jsonschema_rs",
    "ahocorasick-rs": "ahocorasick_rs",
    "prometheus-client": "prometheus_client",
}
# Chosen by uvicorn or SQLAlchemy through their settings, or imported under a condition.
BY_NAME = {"uvloop", "httptools", "aiosqlite"}


def declared() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [Requirement(line) for line in project["dependencies"]]


def closure() -> set[str]:
    """Every package that installing the core brings, on this machine."""
    names: set[str] = set()
    todo = declared()
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if name in names or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        names.add(name)
        todo += [Requirement(line) for line in requires(name) or []]
    return names


def test_the_core_stays_small() -> None:
    """Each package brings bugs and keys of other people; the limit is forty."""
    assert len(closure()) <= MAX_PACKAGES, sorted(closure())


def test_the_lock_holds_exactly_what_the_core_needs_and_can_build_it() -> None:
    """Nothing is installed that is not locked."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    locked = {canonicalize_name(name) for name in re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)}

    assert closure() <= locked


def test_every_declared_dependency_is_used() -> None:
    """A dependency that nothing imports is only risk."""
    imported = {name.split(".")[0] for path in source_files() for name, _ in contents(path).imports}
    unused = {
        requirement.name
        for requirement in declared()
        if requirement.name not in BY_NAME
        and IMPORT_NAMES.get(requirement.name, requirement.name) not in imported
    }

    assert unused == set()
