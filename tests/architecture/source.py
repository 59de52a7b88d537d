"""The shipped source as data: files, modules, functions, imports."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE_ROOTS = {
    "gatepost": ROOT / "server",
    "gatepost_authz": ROOT / "authz",
    "gatepost_keys": ROOT / "keys",
}


def source_files() -> list[Path]:
    """Every Python file that ships, sorted."""
    return sorted(
        path for package, root in SOURCE_ROOTS.items() for path in (root / package).rglob("*.py")
    )


def other_files() -> list[Path]:
    """Every Python file of the tests, the benchmarks and the examples, sorted."""
    return sorted(
        path
        for folder in ("tests", "bench", "examples")
        for path in (ROOT / folder).rglob("*.py")
        if "node_modules" not in path.parts
    )


def module_name(path: Path) -> str:
    """`server/gatepost/mcp/era.py` → `gatepost.mcp.era`."""
    for root in SOURCE_ROOTS.values():
        if path.is_relative_to(root):
            parts = path.relative_to(root).with_suffix("").parts
            return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    raise ValueError(path)


def imported_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every module a file imports, with its line; `from a.b import c` gives `a.b.c`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
