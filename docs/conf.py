"""Settings of Sphinx for the documentation site; `make site` builds it into build/site."""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("server", "authz", "keys")]

project = "Gatepost"
author = "The Gatepost authors"
project_copyright = "The Gatepost authors, Apache-2.0"
version = release = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "version"
]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_click"]
default_role = "literal"  # docstrings write code in single backticks, as pages do
smartquotes = False  # it makes one dash of `--option`
autodoc_default_options = {"members": True}
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
myst_heading_anchors = 4

html_theme = "furo"
html_title = f"Gatepost {version}"
html_show_sourcelink = False
html_copy_source = False
html_show_sphinx = False

INCLUDED = {"](../examples/tickets/README.md": "](guides/tickets.md"}
"""Links to pages outside this folder that are pages of the site too."""


def link_included_pages(app: Any, name: str, text: list[str]) -> None:
    """Lead links to the site's own copy of a page."""
    for there, here in INCLUDED.items():
        text[0] = text[0].replace(there, here)


def escape_underscores(app: Any, context: click.Context, lines: list[str]) -> None:
    """Keep reStructuredText from reading `GATEPOST_...` as a link."""
    lines[:] = [re.sub(r"(?<=\w)_(?!\w)", r"\\_", line) for line in lines]


def show_paths(app: Any, context: click.Context, lines: list[str]) -> None:
    """Write default paths as a user types them."""
    lines[:] = [line.replace("PosixPath('", "'").replace("')``", "'``") for line in lines]


def hide_nameless(app: Any, context: click.Context, lines: list[str]) -> None:
    """Leave out arguments that the command hides, because it only refuses them."""
    for place in [number for number, line in enumerate(lines) if line == ".. option:: "]:
        del lines[place : place + 4]


def setup(app: Any) -> None:
    """Register what this file defines."""
    app.connect("source-read", link_included_pages)
    app.connect("sphinx-click-process-description", escape_underscores)
    app.connect("sphinx-click-process-options", escape_underscores)
    app.connect("sphinx-click-process-options", show_paths)
    app.connect("sphinx-click-process-arguments", hide_nameless)
