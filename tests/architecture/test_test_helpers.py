"""Test modules share helpers through a conftest above them or through tests/support."""

from pathlib import Path

from tests.architecture.source import ROOT, contents, other_files, wrong


def module_of(name: str) -> Path | None:
    """Return the file of a module of the tests, given its name or the name of something in it."""
    parts = name.split(".")
    paths = (ROOT.joinpath(*parts[:length]) for length in range(len(parts), 1, -1))
    files = (path.with_suffix(".py") for path in paths if parts[0] == "tests")
    return next((file for file in files if file.is_file()), None)


def may_import(importer: Path, module: Path) -> bool:
    """Return whether a conftest is above the importer, or a test module is in its folder."""
    if module.name == "conftest.py":
        return importer.is_relative_to(module.parent)
    return not module.name.startswith("test_") or importer.parent == module.parent


def test_a_test_module_or_conftest_is_imported_only_within_its_folder() -> None:
    """A helper in another folder's test module is hard to find, and that folder cannot move."""

    def rule(path: Path) -> list[tuple[str, int]]:
        return [
            (name, line)
            for name, line in contents(path).imports
            if (module := module_of(name)) is not None and not may_import(path, module)
        ]

    assert wrong(other_files(), rule) == []


def test_the_rule_finds_imports_of_other_folders() -> None:
    """The folder decides, for conftests also the folders below."""
    tests = ROOT / "tests"
    conftest, module = tests / "audit" / "conftest.py", tests / "audit" / "test_calls.py"

    assert module_of("tests.audit.conftest.AuditLog") == conftest
    assert module_of("tests.audit.test_calls") == module
    assert module_of("gatepost.audit.writer") is None
    assert may_import(tests / "audit" / "test_wal.py", module)
    assert may_import(tests / "audit" / "below" / "test_any.py", conftest)
    assert may_import(tests / "docs" / "test_any.py", tests / "support" / "server.py")
    assert not may_import(tests / "audit" / "below" / "test_any.py", module)
    assert not may_import(tests / "docs" / "test_any.py", conftest)
    assert not may_import(ROOT / "docs" / "images" / "screenshots.py", module)
