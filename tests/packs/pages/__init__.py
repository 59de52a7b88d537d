"""Each built-in tool as the page that it comes from describes it; one module per subject."""

import pkgutil
from importlib import import_module
from typing import Any, NamedTuple

MUST = object()
"""In place of a default: the argument must be given."""


class Page(NamedTuple):
    """A tool as its page has it: type and default of each parameter, hints, scopes."""

    pack: str
    parameters: dict[str, tuple[str, Any]]
    hints: str
    scope: str | None
    row: str
    """The requirement that names it."""


READS, WRITES = "TFTF", "FTTF"
"""readOnly, destructive, idempotent, openWorld."""


def all_pages() -> dict[str, Page]:
    """Every tool's page by its name."""
    found: dict[str, Page] = {}
    for module in pkgutil.iter_modules(__path__):
        found |= import_module(f"{__name__}.{module.name}").PAGES
    return found
