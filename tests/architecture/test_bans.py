"""Calls and imports that have bitten others, and keys that must never be tracked."""

import ast
import logging
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.architecture.source import (
    ROOT,
    calls_of,
    contents,
    dotted,
    module_name,
    source_files,
    wrong,
)

JWT_LIBRARY = {"gatepost_authz.signature"}
EXPORTERS = {"gatepost.telemetry.otlp_http"}
"""The OpenTelemetry SDK's exporters use `requests`, in threads of the SDK."""
BLOCKING = ("time.sleep", "requests", "urllib.request", "http.client")
BANNED = {"time.sleep", "datetime.utcnow", "eval", "exec", "pickle.loads", "os.system"}
BROAD_EXCEPTIONS = {"Exception", "BaseException"}
LAST_RESORTS = {"gatepost.http.edge", "gatepost.tools.calls.runner", "gatepost.execution.threads"}
PRIVATE_KEY = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/=]{20}|\"d\"\s*:\s*\"[\w-]{20,}\"", re.ASCII
)


def test_only_the_signature_module_imports_the_jwt_library() -> None:
    """A second module that decodes tokens could forget to check them."""
    others = [path for path in source_files() if module_name(path) not in JWT_LIBRARY]

    def rule(path: Path) -> list[tuple[str, int]]:
        return [
            imported for imported in contents(path).imports if imported[0].split(".")[0] == "jwt"
        ]

    assert wrong(others, rule) == []


def test_blocking_modules_are_imported_only_by_the_exporters() -> None:
    """Blocking sleep and blocking HTTP clients are allowed in the exporters' threads only."""
    others = [path for path in source_files() if module_name(path) not in EXPORTERS]

    def rule(path: Path) -> list[tuple[str, int]]:
        return [imported for imported in contents(path).imports if imported[0].startswith(BLOCKING)]

    assert wrong(others, rule) == []


def test_eval_exec_pickle_shell_sleep_and_utcnow_are_never_called() -> None:
    """The source calls no function of the list `BANNED`, by its full name."""

    def rule(path: Path) -> list[tuple[str, int]]:
        return [(call.name, call.line) for call in contents(path).calls if call.name in BANNED]

    assert wrong(source_files(), rule) == []


def test_broad_excepts_are_allowed_in_three_modules_only() -> None:
    """Only the edge, the runner and the thread around an author's code catch `Exception`."""
    others = [path for path in source_files() if module_name(path) not in LAST_RESORTS]

    def rule(path: Path) -> list[tuple[str, int]]:
        return [handler for handler in contents(path).excepts if handler[0] in BROAD_EXCEPTIONS]

    assert wrong(others, rule) == []


def test_log_fields_do_not_use_attribute_names_of_log_records() -> None:
    """`logging` raises KeyError for a log event whose extra field is called `name`."""
    taken = {*vars(logging.makeLogRecord({})), "message", "asctime"}
    events = [
        word for path in source_files() for call in contents(path).calls for word in call.extra
    ]

    def rule(path: Path) -> list[tuple[str, int]]:
        calls = contents(path).calls
        return [(word, call.line) for call in calls for word in call.extra if word in taken]

    assert len(events) > 100
    assert wrong(source_files(), rule) == []


UVICORN_LOGGER = "self.logger"
"""The logger of uvicorn's protocol classes, which writes sentences."""


def test_log_events_have_names_instead_of_sentences() -> None:
    """
    Operators search the log for `reload_refused`, and find the line of the source that wrote it.

    An event is a constant, or stands in a table of constants: an f-string could not be searched
    for. `gatepost_authz` writes sentences, because the formatter of another program shows no
    fields.
    """
    server = [path for path in source_files() if path.is_relative_to(ROOT / "server")]
    events = [
        call.args[0]
        for call in calls_of({"debug", "info", "warning", "error", "critical"}, server)
        if "log" in (logger := dotted(call.func).rpartition(".")[0]).lower()
        and logger != UVICORN_LOGGER
        and call.args
    ]
    texts = [event.value for event in events if isinstance(event, ast.Constant)]
    tables = {dotted(event.value) for event in events if isinstance(event, ast.Subscript)}
    built = [event for event in events if not isinstance(event, ast.Constant | ast.Subscript)]
    named = {table: values_of(table, server) for table in tables}
    texts += [text for values in named.values() for text in values]

    assert [ast.unparse(event) for event in built] == []
    assert len(texts) > 100
    assert all(named.values())
    assert [text for text in texts if not re.fullmatch(r"[a-z][a-z0-9_]*", str(text))] == []


def values_of(table: str, files: Iterable[Path]) -> list[Any]:
    """Return the values that a dictionary of this name spells out; None for any other value."""
    assignment = f"\n{table}: "
    return [
        getattr(value, "value", None)
        for path in files
        if assignment in (text := path.read_text(encoding="utf-8"))
        for node in ast.parse(text).body
        if isinstance(node, ast.AnnAssign) and dotted(node.target) == table
        for value in getattr(node.value, "values", [node.value])
    ]


def test_no_tracked_file_holds_a_private_key() -> None:
    """A tracked development key becomes a production key in some installation."""
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
    ).stdout.split(b"\0")
    files = [
        name.decode()
        for name in names
        if name
        and (ROOT / name.decode()).is_file()
        and PRIVATE_KEY.search((ROOT / name.decode()).read_bytes())
    ]

    assert files == []


SEPARATE_LOCK_FILES = (
    "tests/providers/requirements.lock",
    "tests/deploy/requirements.lock",
    "deploy/requirements.lock",
    ".github/release.lock",
)
"""What tests start in environments of their own, and what image and release install."""


def test_locks_carry_hashes_and_no_index_address() -> None:
    """A lock file with a registry URL breaks on machines that cannot reach that registry."""
    for name in ("requirements.lock", "requirements-dev.lock", *SEPARATE_LOCK_FILES):
        text = (ROOT / name).read_text(encoding="utf-8")
        pins = re.findall(r"^[\w.-]+==", text, re.MULTILINE)

        assert pins
        assert text.count("--hash=sha256:") >= len(pins)
        assert "://" not in text
