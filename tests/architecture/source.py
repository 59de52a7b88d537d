"""The shipped source as data: files, modules, and what stands in each of them."""

import ast
import re
import tokenize
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE_ROOTS = {
    "gatepost": ROOT / "server",
    "gatepost_packs": ROOT / "server",
    "gatepost_authz": ROOT / "authz",
    "gatepost_keys": ROOT / "keys",
}
CLASS_NAME = re.compile(r"_?[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*", re.ASCII)
REFUSAL_CLASSES = {"EdgeRefusal", "RestRefusal"}
MODULE = re.compile(r"(gatepost|gatepost_[a-z]+)(\.\w+)+", re.ASCII)


@dataclass(frozen=True)
class Function:
    """Where a function begins and ends, and what its docstring says."""

    name: str
    first: int
    last: int
    docstring: str = ""


@dataclass(frozen=True)
class SourceCall:
    """What is called, as `a.b.c` (empty where it has no such name), and what it adds to the log."""

    name: str
    line: int
    extra: tuple[str, ...] = ()
    """The members that it gives a log event."""


@dataclass(frozen=True)
class SourceContents:
    """What the rules look at in a file; the tree itself is too large to be kept for each."""

    imports: list[tuple[str, int]] = field(default_factory=list)
    """Every module it imports, with its line; `from a.b import c` gives `a.b.c`."""
    named: list[tuple[str, int]] = field(default_factory=list)
    """Every module of ours that a text names, with its line: what is imported by name."""
    classes: list[str] = field(default_factory=list)
    docstrings: list[str] = field(default_factory=list)
    """Those of the module and its classes."""
    functions: list[Function] = field(default_factory=list)
    parameters: list[str] = field(default_factory=list)
    variables: list[str] = field(default_factory=list)
    """Every variable, attribute, field, constant and alias that it sets."""
    aliases: list[str] = field(default_factory=list)
    """Names that its first level gives to types; `TypeVar` makes none."""
    calls: list[SourceCall] = field(default_factory=list)
    renamed: list[tuple[str, str, int]] = field(default_factory=list)
    """Every `from a import b as c`, as `a.b`, `c` and the line."""
    prefixes: list[str] = field(default_factory=list)
    """What stands before a colon at the beginning of an f-string: a topic, or the kind of a key."""
    excepts: list[tuple[str, int]] = field(default_factory=list)
    """Every name that a handler catches, with its line; `BaseException` for a bare one."""


@cache
def source_files() -> Sequence[Path]:
    """Return every Python file that ships, sorted."""
    return sorted(
        path for package, root in SOURCE_ROOTS.items() for path in (root / package).rglob("*.py")
    )


@cache
def other_files() -> Sequence[Path]:
    """
    Return every Python file of the tests, benchmarks, documentation and examples, sorted.

    Without the files of others, which are kept as they are.
    """
    return sorted(
        path
        for folder in ("tests", "bench", "docs", "examples")
        for path in (ROOT / folder).rglob("*.py")
        if not {"node_modules", "sdk_fixture"} & {*path.parts}
    )


def module_name(path: Path) -> str:
    """Turn `server/gatepost/mcp/revisions.py` into `gatepost.mcp.revisions`."""
    for root in SOURCE_ROOTS.values():
        if path.is_relative_to(root):
            parts = path.relative_to(root).with_suffix("").parts
            return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    raise ValueError(path)


@cache
def contents(path: Path) -> SourceContents:
    """Return what stands in a file; it is read and parsed once, however many rules ask."""
    found = SourceContents()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    found.named.extend(modules_named(nodes))
    found.aliases.extend(aliases_of(tree))
    found.variables.extend(name for node in nodes for name in set_by(node))
    found.prefixes.extend(text for node in nodes for text in prefix_of(node))
    for node in nodes:
        match node:
            case ast.Import():
                found.imports.extend((alias.name, node.lineno) for alias in node.names)
            case ast.ImportFrom():
                names = (f"{node.module}.{alias.name}" for alias in node.names)
                found.imports.extend((name, node.lineno) for name in names)
                found.renamed.extend(
                    (f"{node.module}.{alias.name}", alias.asname, node.lineno)
                    for alias in node.names
                    if alias.asname not in {None, alias.name}
                )
            case ast.ClassDef():
                found.classes.append(node.name)
                found.docstrings.append(docstring_of(node))
            case ast.Module():
                found.docstrings.append(docstring_of(node))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                last = node.end_lineno or node.lineno
                said = docstring_of(node)
                found.functions.append(Function(node.name, node.lineno, last, said))
            case ast.arg():
                found.parameters.append(node.arg)
            case ast.Call():
                extra = tuple(names_in(word.value) for word in node.keywords if word.arg == "extra")
                found.calls.append(SourceCall(dotted(node.func), node.lineno, *extra))
            case ast.ExceptHandler():
                caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
                names = (dotted(one) if one else "BaseException" for one in caught)
                found.excepts.extend((name, node.lineno) for name in names)
    return found


def aliases_of(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module gives to types; an alias is written like a class."""
    for node in tree.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=value)
            ) if CLASS_NAME.fullmatch(name) and not isinstance(value, ast.Call):
                yield name


def set_by(node: ast.AST) -> Iterator[str]:
    """Yield the variable, attribute, field, constant or alias that a part of a file sets."""
    match node:
        case (
            ast.Name(id=name, ctx=ast.Store())
            | ast.Attribute(attr=name, ctx=ast.Store())
            | ast.alias(asname=str(name))
            | ast.ExceptHandler(name=str(name))
            | ast.MatchAs(name=str(name))
            | ast.MatchStar(name=str(name))
        ) if not name.startswith("__"):
            yield name


def prefix_of(node: ast.AST) -> Iterator[str]:
    """Yield what stands before the first colon of an f-string, if that is constant."""
    match node:
        case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]) if ":" in text:
            yield text.partition(":")[0]


def modules_named(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    """
    Yield the modules of ours that stand in texts, with their lines.

    A text may name a package for many reasons, so that counts in `import_module` alone.
    """
    seen: dict[int, str] = {}
    for node in nodes:
        if isinstance(node, ast.Call):
            seen |= {id(one): dotted(node.func).rpartition(".")[2] for one in node.args}
        # A tree is walked from the outside: a call comes before its arguments.
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            caller = seen.get(id(node))
            is_loaded = caller == "import_module" and node.value.split(".")[0] in SOURCE_ROOTS
            if is_loaded or is_module(node.value):
                yield node.value, node.lineno


def is_module(name: str) -> bool:
    """Return whether a text names a module of ours, also with a name in it (`module:name`)."""
    name = name.partition(":")[0]
    if not MODULE.fullmatch(name):
        return False
    place = SOURCE_ROOTS.get(name.split(".")[0], ROOT) / name.replace(".", "/")
    return place.with_suffix(".py").exists()


def docstring_of(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return the docstring on one line; empty where there is none."""
    return " ".join((ast.get_docstring(node) or "").split())


def prose_of(path: Path) -> Iterator[str]:
    """Yield the docstrings and the comments of a file; a test's data may be in any words."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield text
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                yield token.string


def calls_of(names: Collection[str], files: Iterable[Path] = ()) -> Iterator[ast.Call]:
    """Yield every call of a function with one of these names, by default in the whole source."""
    for path in files or source_files():
        text = path.read_text(encoding="utf-8")
        # To parse a file takes a hundred times as long as to look through it.
        if any(name in text for name in names):
            yield from (
                node
                for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] in names
            )


def refusal_codes(files: Iterable[Path] = ()) -> set[str]:
    """Return the second argument of each refusal (status, code, message), by default of all."""
    codes = [call.args[1] for call in calls_of(REFUSAL_CLASSES, files)]
    return {str(code.value) for code in codes if isinstance(code, ast.Constant)}


def names_in(node: ast.AST) -> tuple[str, ...]:
    """Return the keys that a dictionary spells out."""
    keys = node.keys if isinstance(node, ast.Dict) else []
    return tuple(str(key.value) for key in keys if isinstance(key, ast.Constant))


def dotted(node: ast.AST) -> str:
    """Return `a.b.c` as it is written; empty for anything else."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def wrong(files: Iterable[Path], rule: Callable[[Path], Iterable[tuple[str, int]]]) -> list[str]:
    """List what a rule finds in each file, as `file:line: what`."""
    return [
        f"{path.relative_to(ROOT)}:{line}: {what}" for path in files for what, line in rule(path)
    ]
