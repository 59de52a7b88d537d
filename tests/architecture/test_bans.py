"""Calls and imports that have bitten others, and keys that must never be tracked."""

import ast
import logging
import re
import subprocess
from pathlib import Path

import pytest

from tests.architecture.source import ROOT, imported_names, module_name, source_files

JWT_LIBRARY = {"gatepost_authz.signature"}
LOGGED = {f"log.{level}" for level in ("debug", "info", "warning", "error", "critical")}
BLOCKING = {"time.sleep", "requests", "urllib.request", "http.client"}
PRIVATE_KEY = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/=]{20}|\"d\"\s*:\s*\"[\w-]{20,}\"", re.ASCII
)


def tree_of(path: Path) -> ast.AST:
    return ast.parse(path.read_text(encoding="utf-8"))


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize("path", source_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_only_one_file_touches_the_jwt_library(path: Path) -> None:
    """A second place that decodes tokens is a second place that can forget to check them."""
    names = {name.split(".")[0] for name, _ in imported_names(tree_of(path))}

    assert "jwt" not in names or module_name(path) in JWT_LIBRARY


@pytest.mark.parametrize("path", source_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_blocks_the_loop_or_uses_naive_time(path: Path) -> None:
    """No blocking sleep or HTTP client, no utcnow, no eval, no pickle, no shell."""
    tree = tree_of(path)
    imports = {name for name, _ in imported_names(tree)}
    calls = {dotted(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    banned_calls = {"time.sleep", "datetime.utcnow", "eval", "exec", "pickle.loads", "os.system"}

    assert not {name for name in imports if any(name.startswith(b) for b in BLOCKING)}
    assert not calls & banned_calls


@pytest.mark.parametrize("path", source_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_broad_excepts_stand_in_three_places_only(path: Path) -> None:
    """The edge's last resort, the runner and the thread around an author's code; no other."""
    if module_name(path) in {
        "gatepost.edge.edge",
        "gatepost.tools.runner",
        "gatepost.tools.thread",
    }:
        return
    broad = [
        node.lineno
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or dotted(node.type) in {"Exception", "BaseException"})
    ]

    assert broad == []


@pytest.mark.parametrize("path", source_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_event_takes_a_word_of_logging_itself(path: Path) -> None:
    """`logging` raises for an event with a `name` of its own, and tests that capture it do not."""
    taken = {*vars(logging.makeLogRecord({})), "message", "asctime"} - {"exc_info"}
    words = {
        word.arg
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and dotted(node.func) in LOGGED
        for word in node.keywords
    }

    assert not words & taken


def test_no_tracked_file_holds_a_private_key() -> None:
    """A development key that is tracked is a production key somewhere a year later."""
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
    ).stdout.split(b"\0")
    held = [
        name.decode()
        for name in names
        if name
        and (ROOT / name.decode()).is_file()
        and PRIVATE_KEY.search((ROOT / name.decode()).read_bytes())
    ]

    assert held == []


def test_locks_carry_hashes_and_no_index_address() -> None:
    """A lock that names a registry installs from there on a machine that cannot reach it."""
    for name in ("requirements.lock", "requirements-dev.lock"):
        text = (ROOT / name).read_text(encoding="utf-8")
        pins = re.findall(r"^[\w.-]+==", text, re.MULTILINE)

        assert pins
        assert text.count("--hash=sha256:") >= len(pins)
        assert "://" not in text
