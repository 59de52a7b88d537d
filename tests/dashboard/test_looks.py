"""Every page and state can be used by everybody: at any width, by any light, with any aid."""

import os
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.dashboard.scenes import DARK, PHONE, scenes
from tests.dashboard.studio import studio
from tests.support import node
from tests.support.chromium import chromium, in_a_browser

AXE = Path(os.environ.get("AXE", node.FOLDER / "node_modules" / "axe-core" / "axe.min.js"))
"""The checks that most of WCAG 2.2 AA can be made by, as far as a program can."""
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}

pytestmark = [
    *in_a_browser,
    pytest.mark.slow,
    pytest.mark.skipif(not AXE.exists(), reason="axe-core is not in tests/node"),
]

LOOKS: list[tuple[str, dict[str, Any]]] = [
    ("at a desk by day", {}),
    ("on a phone by night", PHONE | DARK | {"reduced_motion": "reduce", "has_touch": True}),
]


@pytest.mark.parametrize(("where", "look"), LOOKS, ids=[one[0] for one in LOOKS])
def test_no_page_or_state_keeps_anybody_out(
    tmp_path: Path, where: str, look: dict[str, Any]
) -> None:
    """Names, labels, landmarks, order and contrast (axe), and nothing to scroll to the side for."""
    source = AXE.read_text(encoding="utf-8")
    wrong: dict[str, list[str]] = {}
    with studio(tmp_path) as company, chromium() as browser:
        for name, page in scenes(company, browser, **look):
            if found := faults(page, source):
                wrong[name] = found

    assert wrong == {}


def faults(page: Page, source: str) -> list[str]:
    """What is wrong with the page as it stands."""
    page.evaluate(source)
    found = page.evaluate("rules => axe.run(document, rules)", RULES)
    told = [
        f"{rule['id']}: {rule['nodes'][0]['html']} {rule['nodes'][0]['failureSummary']}"
        for rule in found["violations"]
    ]
    width, room = page.evaluate(
        "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    return told if width <= room else [*told, f"it is {width} wide on {room}"]
