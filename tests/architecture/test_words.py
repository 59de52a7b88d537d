"""Names, and the prose of the source, use the field's own words."""

import re
from collections import Counter
from pathlib import Path

from tests.architecture.source import (
    CLASS_NAME,
    ROOT,
    contents,
    module_name,
    other_files,
    prose_of,
    source_files,
)

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
    "toolbox": "loaded packs",
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
    "guard": "check, or access",
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
SAY_IN_PACKAGE = {
    "gatepost.mcp.": {"register": "session registry"},
    "gatepost.policy.idempotency.": {"claim": "lease", "once": "idempotency"},
    "gatepost.runtime.": {"register": "session registry"},
}
"""Words that are right elsewhere: a pack registers its tools, and a token has claims."""
SAY_IN_PROSE = SAY_IN_CODE.keys() - set(
    re.findall(
        r"\w+",
        """
    asking feed insist journal keeping minutes mistake notice question reach relay said sheet
    stranger talk term visit went
        """,
    )
)
"""The words that plain English does not need; the others say here what they always say."""
BANNED_IN_PROSE = re.compile(rf"\b(?:{'|'.join(sorted(SAY_IN_PROSE))})s?\b", re.IGNORECASE)
VAGUE = frozenset(
    {"ALONE", "HELD", "KEPT", "KNOWN", "MOST", "NOTHING", "ODD", "OURS", "OWN", "SHOWN"}
)
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
NO_FUNCTION_NAMES = frozenset(
    re.findall(
        r"\w+",
        """
    at to into onto from via per than as in on upon until while past by between against across
    among after with through toward without if because and or nor not but
    he she they his her their its this that these those some any every both none such
    am are be been being is was were has had have do does did could might must shall should
    will would
    aside doubt fate hear look mute pose shed sound stray teach tell tidy want
        """,
    )
)
"""Prepositions, pronouns, auxiliaries and metaphors do not say what a function does."""
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


def words_of(name: str) -> set[str]:
    """Split `RecordBuilder` or `record_builder` into words; a plural counts as its singular."""
    apart = name if name.isupper() else re.sub(r"([A-Z])", r" \1", name)
    words = re.findall(r"[a-z]+", apart.lower())
    return {*words, *(word.removesuffix("s") for word in words)}


def test_names_in_code_contain_no_banned_metaphor() -> None:
    """A path or name says what is in the file, without a metaphor."""
    found = [
        f"{path.relative_to(ROOT)}: {name}: say {SAY_IN_CODE[word]}, not {word}"
        for path in source_files()
        for name in (*names(path), *contents(path).prefixes)
        for word in sorted(words_of(name) & SAY_IN_CODE.keys())
    ]

    assert found == []


def test_names_of_a_package_contain_no_word_of_another_subject() -> None:
    """`register` was the registry of sessions, and a verb everywhere else."""
    found = [
        f"{path.relative_to(ROOT)}: {name}: say {say_instead[word]}, not {word}"
        for path in source_files()
        for package, say_instead in SAY_IN_PACKAGE.items()
        if module_name(path).startswith(package)
        for name in (*names(path), *contents(path).prefixes)
        for word in sorted(words_of(name) & say_instead.keys())
    ]

    assert found == []


def test_docstrings_and_comments_contain_no_banned_metaphor() -> None:
    """A habit, a visitor or a guard in a sentence is read twice, as in a name."""
    found = [
        f"{path.relative_to(ROOT)}: {text.strip()}"
        for path in source_files()
        if BANNED_IN_PROSE.search(path.read_text(encoding="utf-8"))  # to parse it takes longer
        for text in prose_of(path)
        if BANNED_IN_PROSE.search(text)
    ]

    assert found == []


def test_no_function_is_named_only_by_a_preposition_or_a_pronoun() -> None:
    """`to` answered a request, and `these` returned token buckets."""
    found = [
        f"{path.relative_to(ROOT)}: {function.name}"
        for path in source_files()
        for function in contents(path).functions
        if function.name.strip("_") in NO_FUNCTION_NAMES
    ]

    assert found == []


def test_imported_classes_keep_their_names() -> None:
    """A class under two names is read as two classes: an erasure was called `Record`."""
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name} as {alias}"
        for path in source_files()
        for name, alias, line in contents(path).renamed
        if name.startswith("gatepost") and CLASS_NAME.fullmatch(name.rpartition(".")[2])
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
