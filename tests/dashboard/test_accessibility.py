"""Every page can be used at any width, in light and dark, and with assistive technology."""

import os
from pathlib import Path

import pytest
from playwright.sync_api import Page

from docs.images.screenshots import PHONE, WIDE_SCREEN, scenes
from tests.dashboard.billing_server import open_billing_server
from tests.support import programs
from tests.support.programs import chromium, in_a_browser

AXE = Path(os.environ.get("AXE", programs.FOLDER / "node_modules" / "axe-core" / "axe.min.js"))
"""The checks that most of WCAG 2.2 AA can be made by, as far as a program can."""
RULES = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    # Whatever is right is not told: that would be megabytes for each page.
    "resultTypes": ["violations"],
}

pytestmark = [
    *in_a_browser,
    pytest.mark.slow,
    pytest.mark.skipif(not AXE.exists(), reason="axe-core is not in tests/node"),
]

SCREEN_MODES = [
    ("on a phone by night", PHONE["viewport"], "dark"),
    ("at a desk by day", WIDE_SCREEN["viewport"], "light"),
]
"""The last is what each page is opened in. Without motion a page has its new colours at once."""


def test_every_page_and_state_is_accessible(tmp_path: Path) -> None:
    """axe checks names, labels, landmarks, order and contrast; no page scrolls sideways."""
    source = AXE.read_text(encoding="utf-8")
    wrong: dict[str, list[str]] = {}
    with open_billing_server(tmp_path) as billing, chromium() as browser:
        for name, page in scenes(billing, browser, has_touch=True, reduced_motion="reduce"):
            page.evaluate(source)
            for where, size, light in SCREEN_MODES:
                page.set_viewport_size(size)
                page.emulate_media(color_scheme=light)
                if violations := faults(page):
                    wrong[f"{name} {where}"] = violations

    assert wrong == {}


def faults(page: Page) -> list[str]:
    """Return what is wrong with the page in its present state."""
    violations = page.evaluate(
        "rules => axe.run(document, rules).then(found => found.violations)", RULES
    )
    lines = [
        f"{rule['id']}: {rule['nodes'][0]['html']} {rule['nodes'][0]['failureSummary']}"
        for rule in violations
    ]
    width, room = page.evaluate(
        "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    return lines if width <= room else [*lines, f"it is {width} wide on {room}"]
