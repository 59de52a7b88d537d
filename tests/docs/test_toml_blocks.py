"""Each configuration in the documentation consists of settings that exist."""

import re
from pathlib import Path

import pytest

from gatepost.config.reading import read
from tests.architecture.source import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
HEADS = ("", "[[issuers]]\nissuer = 'https://id.example.com'\n")
"""What comes before a block: nothing, or the table that a block continues."""
UNKNOWN, WRONG_TYPE = "config.E001", "config.E002"


def blocks() -> list[tuple[str, str]]:
    """Return the page and the text of each block of TOML, without those of pyproject.toml."""
    return [
        (str(page.relative_to(ROOT)), block)
        for page in PAGES
        for block in re.findall(r"^```toml\n(.*?)^```$", page.read_text("utf-8"), re.M | re.DOTALL)
        if not block.startswith("[project")
    ]


def refused_settings(path: Path, block: str, head: str) -> list[str]:
    """Return what is wrong with the names and types of a block's settings."""
    resource = "" if re.search("^resource =", block, re.M) else "resource = 'https://a.example/'\n"
    path.write_text(resource + head + block, encoding="utf-8")
    return [
        f"{problem.id} {problem.message}"
        for problem in read(path, {}).problems
        if problem.id in {UNKNOWN, WRONG_TYPE, "config.E003"}
    ]


@pytest.mark.parametrize(("page", "block"), blocks())
def test_a_configuration_in_the_documentation_has_only_known_settings(
    page: str, block: str, tmp_path: Path
) -> None:
    """A reader who pastes the block gets no `config.E001`."""
    refused = [refused_settings(tmp_path / "gatepost.toml", block, head) for head in HEADS]

    assert [] in refused, f"{page}: {refused[0]}\n{block}"


def test_a_wrong_block_is_found(tmp_path: Path) -> None:
    """The check sees a misspelt setting in a table of the configuration."""
    block = "[workspace]\nshared = true\n"

    assert all(refused_settings(tmp_path / "gatepost.toml", block, head) for head in HEADS)
