"""Imports point one way: the table in docs/architecture.md is the rule and this is its check."""

import re
from pathlib import Path

from tests.architecture.source import ROOT, contents, module_name, source_files, wrong

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
    return [one for one in contents(path).imports if one[0].split(".")[0] in OURS]


def grants(module: str, name: str) -> bool:
    row = row_of(module)
    # The bare package `gatepost` is granted as a whole only by a row that says so.
    return (covers(row, name) and row != "gatepost") or any(covers(a, name) for a in ALLOWED[row])


def test_imports_point_one_way() -> None:
    """A module imports only what the table grants its package."""

    def rule(path: Path) -> list[tuple[str, int]]:
        return [one for one in ours(path) if not grants(module_name(path), one[0])]

    assert wrong(source_files(), rule) == []


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


def test_imports_stand_at_the_top_of_the_file() -> None:
    """An import of our own inside a function hides a cycle."""

    def rule(path: Path) -> list[tuple[str, int]]:
        spans = [range(one.first, one.last + 1) for one in contents(path).functions]
        return [one for one in ours(path) if any(one[1] in span for span in spans)]

    assert wrong(source_files(), rule) == []
