"""Imports point one way: the table in docs/architecture.md is the rule and this is its check."""

import ast
import re
from pathlib import Path

import pytest

from tests.architecture.source import ROOT, functions, imported_names, module_name, source_files

OURS = ("gatepost", "gatepost_authz", "gatepost_keys")
ROW = re.compile(r"^\| `(?P<package>gatepost[\w.]*)` \| (?P<allowed>[^|]*) \|$", re.MULTILINE)


def table() -> dict[str, list[str]]:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    section = text.split("## Who may import whom")[1].split("\n## ")[0]
    rows = {}
    for row in ROW.finditer(section):
        allowed = re.findall(r"`(gatepost[\w.]*)`", row["allowed"])
        rows[row["package"]] = [row["package"], *allowed] if "itself" in row["allowed"] else allowed
    return rows


ALLOWED = table()


def covers(package: str, name: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def row_of(module: str) -> str:
    """The most specific row that names the module's package."""
    return max((package for package in ALLOWED if covers(package, module)), key=len)


def ours(path: Path) -> list[tuple[str, int]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [(name, line) for name, line in imported_names(tree) if name.split(".")[0] in OURS]


def grants(module: str, name: str) -> bool:
    row = row_of(module)
    # The bare package `gatepost` is granted as a whole only by a row that says so.
    return (covers(row, name) and row != "gatepost") or any(covers(a, name) for a in ALLOWED[row])


@pytest.mark.parametrize("path", source_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    """A module imports only what the table grants its package."""
    module = module_name(path)
    wrong = [f"line {line}: {name}" for name, line in ours(path) if not grants(module, name)]

    assert wrong == []


def test_every_row_of_the_table_names_a_module_that_exists() -> None:
    """A row for a module that is gone would grant rights to whoever takes its name."""
    modules = [module_name(path) for path in source_files()]

    assert [row for row in ALLOWED if not any(covers(row, module) for module in modules)] == []


def test_only_the_development_command_reaches_the_signing_keys() -> None:
    """Signing must not be reachable from anything that serves in production."""
    importers = {
        module_name(path)
        for path in source_files()
        if not module_name(path).startswith("gatepost_keys")
        and any(name.startswith("gatepost_keys") for name, _ in ours(path))
    }

    assert all(covers("gatepost.dev", module) for module in importers), importers


@pytest.mark.parametrize("path", source_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_stand_at_the_top_of_the_file(path: Path) -> None:
    """An import of our own inside a function hides a cycle."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    late = [
        name
        for function in functions(tree)
        for name, _ in imported_names(function)
        if name.split(".")[0] in OURS
    ]

    assert late == []
