"""Names and pages use the field's own words; docs/architecture.md and the pages read plainly."""

import ast
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.source import ROOT, contents, module_name, other_files, source_files

SAY_INSTEAD = {
    "allowance": "limit settings",
    "asking": "client requests",
    "attend": "await",
    "chore": "background task",
    "clerk": "record builder",
    "courier": "outbox",
    "crowd": "subscribers",
    "cutoff": "revocation",
    "desk": "approval service",
    "door": "client, or sign-in step",
    "ear": "listener",
    "errand": "task client",
    "feed": "pub/sub",
    "herald": "notifier",
    "job": "task, or what is done",
    "journal": "write-ahead log, or event log",
    "keeper": "refresher, or task runner",
    "keeping": "retention",
    "kit": "tool services",
    "ledger": "usage file, or task store",
    "lending": "tool services",
    "loser": "revoked caller",
    "minutes": "approval audit",
    "mistake": "validation error",
    "notice": "notification",
    "outcast": "revoked caller",
    "patience": "timeout",
    "question": "client request, or query",
    "pledge": "commit",
    "pulse": "metrics sampler",
    "reach": "address policy, or visible offers",
    "reception": "submission",
    "relay": "shared store, or pub/sub",
    "road": "remote access",
    "scraping": "metrics server",
    "seat": "admitted call",
    "sheet": "layout, or batch",
    "shelf": "cache, or stored events",
    "sight": "redacted arguments",
    "slot": "concurrency limit",
    "somebody": "the caller, or the person",
    "standing": "access",
    "surroundings": "context",
    "switchboard": "connections",
    "tally": "counts, or usage change",
    "term": "scope, limit, rule or template",
    "till": "rate limits",
    "underway": "running requests",
    "utterance": "result",
    "visit": "page request",
    "verbatim": "exact",
    "vigil": "approval wait",
    "visitor": "user",
    "whoever": "the caller, or the person",
    "withdrawal": "withdrawn approvals",
}
"""Words that named modules, classes and functions once, with what the names say now."""
SAY_IN_TESTS = SAY_INSTEAD | {
    "anybody": "a caller, or any person",
    "chatty": "with messages",
    "crew": "workers",
    "dice": "generator",
    "everybody": "all callers",
    "habit": "option",
    "hasty": "short wait, or short limit",
    "house": "upstream",
    "hurried": "short",
    "impatient": "short timeout",
    "moody": "unreliable",
    "nobody": "no caller, or no approver",
    "onward": "the path to return to",
    "somehow": "the condition",
    "stir": "wake",
    "stranger": "unknown caller, or attacker",
    "talk": "client",
    "took": "a noun with a unit",
    "town": "upstreams",
    "twisted": "badly signed",
    "went": "result",
    "whence": "origin",
    "world": "internet, or deployment",
}
SAY_IN_CODE = SAY_INSTEAD | {
    "dice": "random",
    "habit": "option",
    "hear": "receive",
    "heard": "received",
    "insist": "cancel again",
    "onward": "the path to return to",
    "said": "message, text or reason",
    "spot": "paths",
    "stir": "read again",
    "stranger": "unknown caller, or unverified issuer",
    "talk": "protocol",
    "unheard": "discarded error, or no subscribers",
    "went": "result",
}
"""Words that name no value in the packages; names of tests are sentences, and may have them."""
VAGUE = frozenset({"ALONE", "KEPT", "KNOWN", "MOST", "NOTHING", "ODD", "OURS", "OWN", "SHOWN"})
"""Constants that need a noun: the same one stood for something else in each module."""
VAGUE_IN_TESTS = re.compile(
    r"""ACCEPTED|AFTER|ALLOWED|ALSO|ASKED|ASKING|AWAY|BAD|BEFORE|BEGAN|BEGUN|CHANGED|COUNTED
        |DECLARED|DEEP|DISABLED|DONE|ENABLED|ENDED|ENDS|EVERYBODY|EVERYTHING|FAILS|FAR|FAULTY|FEW
        |FOUND|GONE|GOOD|HASTY|HEAD|HELD|HERE|HIDDEN|HOOK|HURRIED|INSIDE|KEPT|KNOWN|LEFT|LEGACY
        |LONG|LOST|MANY|MARK|MODERN|MOST|NAMED|NEW|NO|NOTHING|ODD|OLD|ONE|OPAQUE|OTHERS?|OURS|OWN
        |PIECES|PLACES|PLAIN|POOLED|RAN|READ|READY|REFUSED|SAID|SHOWN|SLOW|SMALL|STARTED|TOLD|TWO
        |UNPINNED|VARYING|WANTED|WAYS|WHO|WITHOUT|WORKS|WRITE|WRONG|YES""",
    re.VERBOSE,
)
"""Constants of tests and benchmarks that need a noun."""
VAGUE_NAMES = frozenset(
    re.findall(
        r"\w+",
        """
    one two other rest thing things it them ours theirs own mine what which who how here there
    then again still yet so most least more less many few good bad odd wrong plain told said
    asked taken got shown known held found made done came went begun let does makes takes gives
    says tells asks wants needs knows keeps goes comes stands lies far near deep long short big
    small late early soon ready about under above beside within without behind ahead apart along
    off up down places way ways front back turn
    alike alone around below
        """,
    )
)
"""Words that are no name on their own: they do not say what the value is."""
BY_SUBJECT = (
    "gatepost.check.",
    "gatepost.cli.",
    "gatepost.config.",
    "gatepost.dashboard.",
    "gatepost.doctor.",
    "gatepost.rest.management.",
    "gatepost.runtime.",
    "gatepost.storage.",
)
"""Packages that do one thing for many subjects, and whose modules have the names of these."""
ROLES = {
    "__main__": "the package as a command",
    "body": "reads the body of a request",
    "client": "the client of a call, as a protocol reaches it",
    "concurrency": "limits how many run at once",
    "connections": "opens and keeps connections",
    "credential": "signs requests to another server",
    "errors": "the errors of the package, or their texts",
    "failures": "turns errors into failures",
    "fetch": "reads documents of another server within limits",
    "front_matter": "the YAML head of a Markdown file",
    "lookup": "finds by name or query",
    "metadata": "a metadata document of OAuth",
    "methods": "serves the methods of MCP",
    "open_streams": "the streams that are open",
    "pack": "the pack itself",
    "process": "runs worker processes",
    "responses": "encodes outcomes as responses of a protocol",
    "schema": "JSON Schemas",
    "service": "what the dashboard and the commands use of the package",
    "settings": "the settings of the package",
    "stage": "a stage of the runner",
    "store": "what the package stores, by tenant",
    "tools": "the tools of a pack",
    "watch": "follows changes that other processes make",
    "worker": "the program of a confined process",
}
"""What a module of this name is in each package that has one."""
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
RIDDLES = re.compile(r"\b(?:anybody|everybody|nobody|of theirs|somebody|whoever)\b", re.IGNORECASE)
REFERENCE = re.compile(r"See [^.]{1,80}\.?")
NO_VERB = re.compile(
    r"""(?: a|all|an|any|each|every|no|none|nothing|the     # articles and quantities
          | he|his|how|it|its|she|that|their|these|they|this|those
          | what|whatever|when|where|whether|which|who|whom|whose|why
          | after|as|at|by|for|if|in|never|of|on|only|see|since|to|with
          | \W.*|\d.*                                        # a name in backquotes, a number
        )""",
    re.VERBOSE | re.IGNORECASE,
)
"""First words of a docstring that names a thing instead of saying what the function does."""


def names(path: Path) -> list[str]:
    """Return the module, its classes and functions, and all that these declare or set."""
    found = contents(path)
    return [
        module_name(path).rpartition(".")[2],
        *found.classes,
        *(function.name for function in found.functions),
        *sorted({*found.parameters, *found.variables}),
    ]


def names_of_tests(path: Path) -> list[str]:
    """Return the names of a test module, its classes, its functions and their parameters."""
    found = contents(path)
    functions = (function.name for function in found.functions)
    return [path.stem, *found.classes, *functions, *sorted({*found.parameters})]


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


def words_of(name: str) -> set[str]:
    """Split `RecordBuilder` or `record_builder` into words; a plural counts as its singular."""
    apart = name if name.isupper() else re.sub(r"([A-Z])", r" \1", name)
    words = re.findall(r"[a-z]+", apart.lower())
    return {*words, *(word.removesuffix("s") for word in words)}


def prose(path: Path) -> Iterator[str]:
    """Yield the comments and the texts of a file; a text may be a docstring or a message."""
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING):
                yield token.string


def test_names_in_code_contain_no_banned_metaphor() -> None:
    """A path or name says what is in the file, without a metaphor."""
    found = [
        f"{path.relative_to(ROOT)}: {name}: say {SAY_IN_CODE[word]}, not {word}"
        for path in source_files()
        for name in names(path)
        for word in sorted(words_of(name) & SAY_IN_CODE.keys())
    ]

    assert found == []


def test_constants_do_not_have_vague_names() -> None:
    """`MOST` was a number of callers, threads, bytes, characters and processes."""
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in source_files()
        for name in sorted(VAGUE.intersection(names(path)))
    ]

    assert found == []


def test_constants_of_tests_do_not_have_vague_names() -> None:
    """`ASKED` was a settings table, an input request and a list of statements."""
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in other_files()
        for name in sorted({*contents(path).variables})
        if VAGUE_IN_TESTS.fullmatch(name)
    ]

    assert found == []


def test_no_name_is_only_a_vague_word() -> None:
    """A name says what the value is: `one` was a record, a grant, a tool and a checkpoint."""
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in source_files()
        for name in names(path)[1:]  # `rest` is a module: the REST protocol
        if name.strip("_") in VAGUE_NAMES
    ]

    assert found == []


def test_names_of_tests_contain_no_banned_metaphor() -> None:
    """A test's name states its promise in the words of the code that it tests."""
    found = [
        f"{path.relative_to(ROOT)}: {name}: say {SAY_IN_TESTS[word]}, not {word}"
        for path in other_files()
        for name in names_of_tests(path)
        for word in sorted(words_of(name) & SAY_IN_TESTS.keys())
    ]

    assert found == []


def test_class_names_are_unique_in_the_project() -> None:
    """Classes of one name are told apart only by their files; an underscore is no difference."""
    files = [*source_files(), *other_files()]
    count = Counter(name.lstrip("_") for path in files for name in contents(path).classes)

    assert [name for name, times in count.items() if times > 1] == []


def test_type_alias_names_are_unique() -> None:
    """An alias reads like a class; `Kind` stood for eight things."""
    classes = {name.lstrip("_") for path in source_files() for name in contents(path).classes}
    aliases = [name.lstrip("_") for path in source_files() for name in contents(path).aliases]

    assert [name for name in aliases if name in classes or aliases.count(name) > 1] == []


def test_module_names_are_unique_except_for_listed_roles() -> None:
    """`server` was the HTTP server, a registered server, an issuer and the state of MCP methods."""
    modules = [
        (path, module_name(path).rpartition("."))
        for path in source_files()
        if path.name != "__init__.py"
    ]
    others = [
        (path, stem)
        for path, (package, _, stem) in modules
        if not f"{package}.".startswith(BY_SUBJECT)
    ]
    count = Counter(stem for _, stem in others)

    assert [stem for stem, times in count.items() if times > 1 and stem not in ROLES] == []
    assert ROLES.keys() <= {stem for _, stem in others}


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


def test_docstrings_of_functions_begin_with_a_verb() -> None:
    """`Return the name`, not `The name`: a function's docstring begins with an imperative."""
    found = [
        f"{path.relative_to(ROOT)}: {function.name}: {function.docstring}"
        for path in source_files()
        for function in contents(path).functions
        if function.docstring and NO_VERB.fullmatch(function.docstring.split()[0])
    ]

    assert found == []


def test_docstrings_and_comments_of_tests_contain_no_vague_subjects() -> None:
    """The promise of a test is one plain sentence."""
    found = [
        f"{path.relative_to(ROOT)}: {text}"
        for path in other_files()
        for text in prose_of(path)
        if RIDDLES.search(text)
    ]

    assert found == []
