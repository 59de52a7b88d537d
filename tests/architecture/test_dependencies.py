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
# Chosen by uvicorn through its settings, or imported under a condition.
BY_NAME = {"uvloop", "httptools"}


def declared() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [Requirement(line) for line in project["dependencies"]]


def closure() -> set[str]:
    """Return every package that installing the core brings, on this machine."""
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


def test_the_core_needs_at_most_forty_packages() -> None:
    """Each package adds bugs and signing keys of other people."""
    assert len(closure()) <= MAX_PACKAGES, sorted(closure())


def test_the_lock_file_contains_every_package_that_the_core_needs() -> None:
    """An installation gets no package without a locked version."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    locked = {canonicalize_name(name) for name in re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)}

    assert closure() <= locked


def test_every_declared_dependency_is_used() -> None:
    """An unused dependency is only a risk."""
    imported = {name.split(".")[0] for path in source_files() for name, _ in contents(path).imports}
    unused = {
        requirement.name
        for requirement in declared()
        if requirement.name not in BY_NAME
        and IMPORT_NAMES.get(requirement.name, requirement.name) not in imported
    }

    assert unused == set()
