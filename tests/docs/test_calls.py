"""The calls in the pages name only keywords that the public API has."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Set
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints, is_typeddict

import pytest

from tests.architecture.source import ROOT, dotted

MODULES = ("gatepost", "gatepost.testing", "gatepost.sandbox", "gatepost_authz")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`([^`\n]*\([^`\n]*=[^`\n]*\))`(?!`)")


def keywords_of(function: Any) -> Set[str] | None:
    """Return the keywords that a call may have; None if it may have any."""
    if is_typeddict(function):
        return get_type_hints(function).keys()
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin
        return None
    for parameter in parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            options = get_args(parameter.annotation)  # of `Unpack[Options]`
            if not options or not is_typeddict(options[0]):
                return None
            return parameters.keys() | get_type_hints(options[0]).keys()
    return parameters.keys()


@cache
def public_keywords() -> dict[str, Set[str] | None]:
    """Return the keywords of each public function, class and method by its name."""
    functions: list[tuple[str, Any]] = []
    for module in map(import_module, MODULES):
        public = [(name, getattr(module, name)) for name in module.__all__]
        functions += [(name, value) for name, value in public if callable(value)]
        for _, value in public:
            if inspect.isclass(value):
                functions += inspect.getmembers(value, callable)
    keywords: dict[str, Set[str] | None] = {}
    for name, function in functions:
        named, before = keywords_of(function), keywords.get(name, frozenset())
        keywords[name] = None if named is None or before is None else before | named
    return keywords


def snippets_of(page: str) -> Iterator[str]:
    """Yield the Python of a page: its code blocks, and the calls in its sentences."""
    for _, language, code in BLOCK.findall(page):
        if language == "python":
            yield textwrap.dedent(code)
    for call in SPAN.findall(BLOCK.sub("", page)):
        yield call.removeprefix("@").removeprefix("await ").replace("…", "...")


def unknown_keywords(code: str) -> Iterator[str]:
    """
    Yield the keywords of calls that nothing public of the called name has.

    The functions of the snippet itself and the objects of other libraries are not public.
    """
    nodes = list(ast.walk(ast.parse(code)))
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    foreign = {node.name for node in nodes if isinstance(node, definitions)}
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id=maker))):
                if maker not in public_keywords():
                    foreign.add(name)
    for node in nodes:
        if isinstance(node, ast.Call):
            called = dotted(node.func)
            known = public_keywords().get(called.rpartition(".")[2])
            if known is not None and called.partition(".")[0] not in foreign:
                named = {keyword.arg for keyword in node.keywords if keyword.arg}
                yield from (f"{called}({name}=)" for name in sorted(named - known))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_documented_calls_name_only_keywords_that_exist(page: Path) -> None:
    """A reader who copies a call gets no TypeError for a keyword that was renamed."""
    snippets = list(snippets_of(page.read_text(encoding="utf-8")))

    assert [unknown for code in snippets for unknown in unknown_keywords(code)] == []


@pytest.mark.parametrize(
    ("code", "unknown"),
    [
        ("approvals.request([script], caller=ctx.caller, most=50)", ["approvals.request(most=)"]),
        ("approvals.request([script], caller=ctx.caller, max_waiting=50)", []),
        ("pack.tool(approval=True)", []),
        ("pack.tool(needs_approval=True)", ["pack.tool(needs_approval=)"]),
        ("app = FastAPI()\napp.get('/', operation_id='root')", []),
        ("def run(limit): ...\nrun(limit=1)", []),
    ],
)
def test_only_keywords_of_public_names_are_unknown(code: str, unknown: list[str]) -> None:
    """Options of a decorator count as keywords; what a snippet defines is not compared."""
    assert list(unknown_keywords(code)) == unknown


def test_calls_of_the_pages_are_found() -> None:
    """The pages have calls with keywords in blocks and in sentences."""
    tools = (ROOT / "docs/tools.md").read_text(encoding="utf-8")

    assert any("approvals.request([script]" in code for code in snippets_of(tools))
    assert any("@pack.tool(" in code for code in snippets_of(tools))
