"""Pages, docstrings, comments and messages read plainly."""

import builtins
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.source import ROOT, contents, other_files, prose_of, source_files

PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
RIDDLES = re.compile(r"\b(?:anybody|everybody|nobody|of theirs|somebody|whoever)\b", re.IGNORECASE)
REFERENCE = re.compile(r"See [^.]{1,80}\.?")
RAISED = re.compile(r"\b[Rr]aises? ([A-Z]\w*[a-z]\w*)")
NO_VERB = re.compile(
    r"""(?: a|all|an|another|any|both|each|every|everything|many|most|no|none|nothing|one
          | several|some|something|the|three|two              # articles and quantities
          | he|his|how|it|its|she|that|their|these|they|this|those
          | what|whatever|when|where|whether|which|who|whom|whose|why
          | after|as|at|by|for|if|in|never|of|on|only|see|since|so|to|with
          | \W.*|\d.*                                        # a name in backquotes, a number
        )""",
    re.VERBOSE | re.IGNORECASE,
)
"""First words of a docstring that names a thing instead of saying what the function does."""


def prose(path: Path) -> Iterator[str]:
    """Yield the comments and the texts of a file; a text may be a docstring or a message."""
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING):
                yield token.string


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_contain_no_vague_subjects(page: Path) -> None:
    """A sentence without a named subject has to be read twice."""
    lines = page.read_text(encoding="utf-8").splitlines()

    assert [line for line in lines if RIDDLES.search(line)] == []


def test_comments_and_messages_contain_no_vague_subjects() -> None:
    """The rule for pages also holds for comments and messages in the source."""
    found = [
        f"{path.relative_to(ROOT)}: {text.strip()}"
        for path in source_files()
        if RIDDLES.search(path.read_text(encoding="utf-8"))  # to read it as tokens takes longer
        for text in prose(path)
        if RIDDLES.search(text)
    ]

    assert found == []


def test_no_docstring_is_only_a_reference() -> None:
    """A docstring says what a class does and not only where that is written."""
    found = [
        f"{path.relative_to(ROOT)}: {text}"
        for path in source_files()
        for text in (
            *contents(path).docstrings,
            *(function.docstring for function in contents(path).functions),
        )
        if REFERENCE.fullmatch(text)
    ]

    assert found == []


def test_exceptions_that_docstrings_name_exist() -> None:
    """A docstring names an exception as the code does."""
    named, known = set[tuple[str, str]](), {*vars(builtins)}
    for path in source_files():
        file = contents(path)
        code = (*file.excepts, *file.imports, *((call.name, call.line) for call in file.calls))
        known |= {*file.classes, *(name.rpartition(".")[2] for name, _ in code)}
        for text in (*file.docstrings, *(function.docstring for function in file.functions)):
            named |= {(name, str(path.relative_to(ROOT))) for name in RAISED.findall(text)}

    assert {name: where for name, where in named if name not in known} == {}


def test_docstrings_of_functions_begin_with_a_verb() -> None:
    """`Return the name`, not `The name`: a function's docstring begins with an imperative."""
    found = [
        f"{path.relative_to(ROOT)}: {function.name}: {function.docstring}"
        for path in (*source_files(), *other_files())
        for function in contents(path).functions
        if function.docstring and NO_VERB.fullmatch(function.docstring.split()[0])
        # The docstring of a test is its promise.
        if not (path.name.startswith("test_") and function.name.startswith("test_"))
    ]

    assert found == []


def test_docstrings_and_comments_of_tests_contain_no_vague_subjects() -> None:
    """The promise of a test is one plain sentence."""
    found = [
        f"{path.relative_to(ROOT)}: {text}"
        for path in other_files()
        if RIDDLES.search(path.read_text(encoding="utf-8"))
        for text in prose_of(path)
        if RIDDLES.search(text)
    ]

    assert found == []
