"""A real browser (Chromium, by Playwright) for the tests of pages."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
WITHIN_MS = 20_000
"""How long a page may take to show what is expected of it, on a machine that is busy."""

in_a_browser = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no Chromium at {CHROMIUM}"),
]
"""The marks of a test that needs one."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """
    The browser, until the block ends.

    A click returns before the page that it leads to is there, and whatever looks at the page at
    once (`evaluate`, `inner_text`, `is_visible`) may see the old one, the new one or none: say
    with `expect` what of the new page must be there first.
    """
    expect.set_options(timeout=WITHIN_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()
