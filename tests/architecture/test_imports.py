"""Imports point one way: the table in docs/architecture.md is the rule and this is its check."""

import re
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path

from tests.architecture.source import (
    ROOT,
    SOURCE_ROOTS,
    contents,
    module_name,
    source_files,
    wrong,
)

PUBLIC_MODULES = ("gatepost", "gatepost.sandbox", "gatepost.workspace", "gatepost_authz")
"""The modules that docs/tools.md offers to packs."""

ROW = re.compile(r"^\| `(?P<package>gatepost[\w.]*)` \| (?P<allowed>[^|]*) \|$", re.MULTILINE)


def table() -> dict[str, list[str]]:
    """Return each package, in the order of the page, with the packages that it may import."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    section = text.split("## Who may import whom")[1].split("\n## ")[0]
    return {
        row["package"]: re.findall(r"`(gatepost[\w.]*)`", row["allowed"])
        for row in ROW.finditer(section)
    }


ALLOWED_IMPORTS = table()


def package_of(name: str) -> str:
    """
    Return the package of a module, which is a part of another one where the table lists parts.

    `gatepost.mcp.tasks.store` is in `gatepost.mcp`, `gatepost.tools.offers.effects` in
    `gatepost.tools.offers`.
    """
    parts = name.split(".")
    if parts[0] != "gatepost" or len(parts) == 1:
        return parts[0]
    if (part := ".".join(parts[:3])) in ALLOWED_IMPORTS:
        return part
    first = whole(part)
    # `from gatepost import Pack` names no module of its own.
    return first if first in MODULES_AT_THE_TOP else "gatepost"


def whole(package: str) -> str:
    """Return the package that a part belongs to, or the package itself."""
    return ".".join(package.split(".")[:2])


DIVIDED_PACKAGES = {whole(package) for package in ALLOWED_IMPORTS if whole(package) != package}
"""The packages with a row for each of their parts."""


MODULES_AT_THE_TOP = {
    ".".join(module_name(path).split(".")[:2])
    for path in source_files()
    if module_name(path).startswith("gatepost.")
}


def imports(path: Path) -> list[tuple[str, int]]:
    """
    List the other packages of ours that a module imports or names, with the lines.

    A part is listed as such only for modules of the same package.
    """
    own, have = package_of(module_name(path)), contents(path)
    imported = (
        (package_of(name), line) for name, line in have.imports + have.named if is_ours(name)
    )
    return [
        (package if whole(package) == whole(own) else whole(package), line)
        for package, line in imported
        if package != own
    ]


def is_ours(name: str) -> bool:
    return name.split(".")[0] in SOURCE_ROOTS


def test_modules_import_only_packages_that_the_table_allows() -> None:
    """The table in docs/architecture.md lists what each package may import."""

    def rule(path: Path) -> list[tuple[str, int]]:
        granted = ALLOWED_IMPORTS.get(package_of(module_name(path)), [])
        return [imported for imported in imports(path) if imported[0] not in granted]

    assert wrong(source_files(), rule) == []


def test_the_table_lists_each_package_with_exactly_its_imports() -> None:
    """
    A row for a removed package, or an unused permission, would permit too much.

    All modules of a divided package are in its parts; its `__init__` imports nothing.
    """
    used: dict[str, set[str]] = {package_of(module_name(path)): set() for path in source_files()}
    for path in source_files():
        used[package_of(module_name(path))].update(name for name, _ in imports(path))

    listed = {package: set(allowed) for package, allowed in ALLOWED_IMPORTS.items()}
    assert listed | {package: set() for package in DIVIDED_PACKAGES} == used


def test_packages_import_only_packages_of_earlier_rows() -> None:
    """If every package imports earlier rows only, there is no import cycle."""
    row_of = {package: row for row, package in enumerate(ALLOWED_IMPORTS)}
    # A whole package stands where its last part does.
    row_of |= {whole(package): row for package, row in row_of.items()}
    below = {
        (package, other)
        for package, allowed in ALLOWED_IMPORTS.items()
        for other in allowed
        if row_of[other] > row_of[package]
    }

    assert below == set()


def module_graph() -> dict[str, set[str]]:
    """
    Return each module with the modules that it imports or names.

    An import inside a function, or for type checkers only, counts like any other.
    """
    modules = {module_name(path): path for path in source_files()}
    graph = dict[str, set[str]]()
    for module, path in modules.items():
        found = contents(path)
        names = [name.partition(":")[0] for name, _ in found.imports + found.named]
        # `from a.b import c` imports the module `a.b.c` if there is one, otherwise `a.b`.
        imported = {name if name in modules else name.rpartition(".")[0] for name in names}
        graph[module] = (imported & modules.keys()) - {module}
    return graph


def cycle_in(graph: dict[str, set[str]]) -> list[str]:
    """Return the nodes of one cycle, which begins and ends with the same; empty without any."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle
    return []


def test_modules_form_no_import_cycle() -> None:
    """Modules of a cycle can only be read, tested and moved together."""
    graph = module_graph()

    assert "gatepost.tools.calls.runner" in graph["gatepost.app"] | graph["gatepost.rest.routes"]
    assert "gatepost.cli.serve" in graph["gatepost.cli.main"]
    assert cycle_in({"a": {"b"}, "b": {"c"}, "c": {"a"}}) != []
    assert cycle_in(graph) == []


def test_sessions_and_tasks_of_mcp_do_not_import_each_other() -> None:
    """A task can outlive a session, and the newest revision has tasks without sessions."""
    parts = ("gatepost.mcp.sessions", "gatepost.mcp.tasks")
    edges = [
        (module, other)
        for module, imported in module_graph().items()
        for other in imported
        if module.startswith(parts) and other.startswith(parts)
    ]

    assert len(edges) > 20
    assert [edge for edge in edges if len({name.split(".")[2] for name in edge}) > 1] == []


def test_the_core_knows_no_pack() -> None:
    """Packs register themselves, so a third-party pack can do all that a built-in pack does."""
    knowing = [
        str(path.relative_to(ROOT))
        for path in source_files()
        if package_of(module_name(path)) != "gatepost_packs"
        and "gatepost_packs" in path.read_text(encoding="utf-8")
    ]

    assert knowing == []


def test_built_in_packs_import_public_names_only() -> None:
    """The public API has everything that a built-in pack needs."""
    files = [path for path in source_files() if module_name(path).startswith("gatepost_packs")]

    def rule(path: Path) -> list[tuple[str, int]]:
        return [
            imported
            for imported in contents(path).imports
            if is_ours(imported[0]) and not is_public(imported[0])
        ]

    assert len(files) > 50
    assert wrong(files, rule) == []


def is_public(name: str) -> bool:
    module, _, attribute = name.rpartition(".")
    if module.split(".")[0] == "gatepost_packs" or name == "gatepost_packs":
        return True
    return module in PUBLIC_MODULES and attribute in import_module(module).__all__


def test_only_listed_modules_are_outside_of_packages() -> None:
    """Each module belongs to a package that names its subject."""
    flat = {path.stem for path in (SOURCE_ROOTS["gatepost"] / "gatepost").glob("*.py")}

    assert flat == {"__init__", "__main__", "app", "background", "permissions", "serve"}


def test_only_the_development_command_and_tests_import_the_signing_keys() -> None:
    """
    Signing must not be reachable from anything that serves in production.

    `gatepost call` reads what `gatepost dev` wrote for `gatepost token`. `tests/cli/test_main.py`
    holds that `gatepost serve` loads nothing of the development server.
    """
    signing = {
        package for package, allowed in ALLOWED_IMPORTS.items() if "gatepost_keys" in allowed
    }
    files = {module_name(path): path for path in source_files()}
    imported = {
        name
        for module, path in files.items()
        if package_of(module) not in signing
        for name, _ in contents(path).imports
        if package_of(name) in signing
    }
    modules = {name.rpartition(".")[0] for name in imported}

    assert signing == {"gatepost.dev", "gatepost.testing"}
    assert modules == {"gatepost.dev.token_command"}
    assert [
        name for name, _ in contents(files["gatepost.dev.token_command"]).imports if is_ours(name)
    ] == []


def test_imports_stand_at_the_top_of_the_file() -> None:
    """An import of our own inside a function hides a cycle."""

    def rule(path: Path) -> list[tuple[str, int]]:
        spans = [range(function.first, function.last + 1) for function in contents(path).functions]
        return [
            imported
            for imported in contents(path).imports
            if is_ours(imported[0]) and any(imported[1] in span for span in spans)
        ]

    assert wrong(source_files(), rule) == []
