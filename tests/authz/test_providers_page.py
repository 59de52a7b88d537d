"""The provider page: one section per preset, and every table on it can be pasted."""

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from gatepost_authz.check import problems
from gatepost_authz.config import Issuer
from gatepost_authz.issuers import IssuerRegistry
from gatepost_authz.presets import PRESETS
from tests.support.measuring import each

PAGE = (Path(__file__).parents[2] / "docs/providers.md").read_text(encoding="utf-8")
SECTIONS = {
    match[1]: match[2]
    for match in re.finditer(r"^## `([\w-]+)`\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
}
TABLES = [
    pytest.param(name, block, id=f"{name}-{index}")
    for name, text in SECTIONS.items()
    for index, block in enumerate(re.findall(r"```toml\n(.*?)```", text, re.S))
    if "[[issuers]]" in block
]


def test_the_sections_of_the_page_equal_the_presets() -> None:
    """The page says how to set up each preset."""
    assert set(SECTIONS) == set(PRESETS)
    assert {param.values[0] for param in TABLES} == set(PRESETS)


def test_the_summary_has_a_row_for_every_preset() -> None:
    """Each row links to the section of the provider."""
    summary = PAGE.split("\n## At a glance\n")[1].split("\n## ")[0]
    rows = re.findall(r"\[`([\w-]+)`\]\(#([\w-]+)\)", summary)

    assert {name for name, _ in rows} == set(PRESETS)
    assert all(name == anchor for name, anchor in rows)


@each(("name", "block"), TABLES)
def test_every_settings_table_on_the_page_passes_the_check(name: str, block: str) -> None:
    """The table is valid TOML with the preset of its section."""
    settings = [msgspec.convert(table, Issuer) for table in tomllib.loads(block)["issuers"]]
    reported_problems = problems(resource="https://mcp.example.com/mcp", issuers=settings)

    assert [problem for problem in reported_problems if problem.level == "error"] == []
    assert {issuer.preset for issuer in settings} == {name}
    assert IssuerRegistry(settings).issuers


def test_the_page_has_one_sentence_per_line() -> None:
    """The diff of two versions stays readable."""
    prose = [
        line
        for line in re.sub(r"```.*?```", "", PAGE, flags=re.S).splitlines()
        if line and not line.startswith(("#", "|"))
    ]

    assert [line for line in prose if re.search(r"[a-z`)*]\. [A-Z]", line)] == []
