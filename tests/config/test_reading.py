"""A configuration is read from its file and from the environment."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gatepost.config.reading import read
from gatepost.config.settings import Config


def configuration(folder: Path) -> Path:
    """Write a configuration with one issuer."""
    path = folder / "gatepost.toml"
    path.write_text(
        'resource = "https://mcp.example.com/mcp"\n'
        'issuers = [{ issuer = "https://id.example.com", tenant = { claim = "org_id" } }]\n'
        'tools.packs = ["demo"]\n'
    )
    return path


ENVIRONMENT = [
    ("GATEPOST_LISTEN__PORT", "9000", lambda config: config.listen.port == 9000),
    ("GATEPOST_RESOURCE", "https://o.example/mcp", lambda c: c.resource == "https://o.example/mcp"),
    ("GATEPOST_LIMITS__FAILURES_PER_SECOND", "0", lambda c: c.limits.failures_per_second == 0),
    ("GATEPOST_TOOLS__PACKS", "demo, git", lambda c: c.tools.packs == ("demo", "git")),
    ("GATEPOST_TOOLS__PACKS", '["a,b"]', lambda c: c.tools.packs == ("a,b",)),
    ("GATEPOST_TOOLS__PACKS", "", lambda c: c.tools.packs == ()),
    ("GATEPOST_TENANCY__CREATE_ON_FIRST_USE", "true", lambda c: c.creates_tenants),
    ("GATEPOST_SCOPES__IMPLIED", '{"a": ["b"]}', lambda c: c.scopes.implied == {"a": ("b",)}),
    (
        "GATEPOST_ISSUERS",
        '[{"issuer": "https://two.example"}]',
        lambda c: [issuer.issuer for issuer in c.issuers] == ["https://two.example"],
    ),
    ("GATEPOST_PORT", "tcp://10.0.0.1:80", lambda c: c.listen.port == 8000),
    ("GATEPOST_SERVICE_HOST", "10.0.0.1", lambda c: c.listen.host == "127.0.0.1"),
]


@pytest.mark.parametrize(("variable", "text", "holds"), ENVIRONMENT)
def test_the_environment_overrides_the_file(
    tmp_path: Path, variable: str, text: str, holds: Callable[[Config], bool]
) -> None:
    """Every setting can be set by a variable; foreign variables with our prefix are ignored."""
    reading = read(configuration(tmp_path), {variable: text})

    assert reading.config is not None, reading.problems
    assert holds(reading.config)


BAD_ENVIRONMENT = [
    ("GATEPOST_LISTEN__PORT", "many", "whole number"),
    ("GATEPOST_LISTEN__PRT", "1", "GATEPOST_LISTEN__PORT"),
    ("GATEPOST_RESOURC", "https://x", "GATEPOST_RESOURCE"),
    ("GATEPOST_CHALLENGE__ERROR_WITHOUT_CREDENTIALS", "maybe", "true or false"),
    ("GATEPOST_SCOPES__IMPLIED", "a=b", "JSON"),
    ("GATEPOST_SCOPES__IMPLIED", '{"a": ["b"], "a": ["c"]}', "not strict JSON (duplicate member)"),
    ("GATEPOST_SCOPES__IMPLIED", f'{{"a": {"[" * 5000}}}', "not valid JSON"),
    ("GATEPOST_NOTHING__AT_ALL", "x", "did you mean"),
]


@pytest.mark.parametrize(("variable", "text", "says"), BAD_ENVIRONMENT)
def test_an_invalid_environment_variable_is_a_problem(
    tmp_path: Path, variable: str, text: str, says: str
) -> None:
    """The problem names the variable and the expected value or the nearest known name."""
    reading = read(configuration(tmp_path), {variable: text})
    (problem,) = reading.problems

    assert reading.config is None
    assert problem.id == "config.E004"
    assert variable in f"{problem.message} {problem.hint}"
    assert says in f"{problem.message} {problem.hint}"


WRONG_TYPES = [
    ('listen.trusted_proxies = "10.0.0.0/8"', 'write a list, such as ["one", "two"]'),
    ('listen.port = "8000"', "write a whole number without quotes"),
    ('audit.peers = "false"', "write true or false without quotes"),
    ("storage.database = 3", "write the value in quotes"),
    ("approvals = 3", "write a table"),
]


@pytest.mark.parametrize(("line", "says"), WRONG_TYPES)
def test_a_value_of_another_type_is_reported_with_what_to_write(
    tmp_path: Path, line: str, says: str
) -> None:
    """The reader may not know how TOML writes a list or a number."""
    path = tmp_path / "gatepost.toml"
    path.write_text(f'resource = "https://mcp.example.com/mcp"\n{line}\n')
    (problem,) = read(path, {}).problems

    assert problem.id == "config.E002"
    assert says in problem.hint


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: None, "does not exist"),
        (Path.mkdir, "is a folder"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "not UTF-8"),
        (lambda path: path.write_text("a = = b"), "not valid TOML"),
    ],
)
def test_an_unreadable_configuration_file_is_a_single_problem(
    tmp_path: Path, make: Callable[[Path], object], says: str
) -> None:
    """Settings that could not be read cause no further problems."""
    path = tmp_path / "gatepost.toml"
    make(path)
    reading = read(path, {})

    assert [problem.id for problem in reading.problems] == ["config.E003"]
    assert says in reading.problems[0].message
    assert os.fspath(path) in reading.problems[0].message
