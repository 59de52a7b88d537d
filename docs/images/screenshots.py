"""
Take the pictures of docs/dashboard.md: `python -m docs.images.screenshots [NAME …]`.

They show what tests/dashboard/test_accessibility.py looks through. After a change of a page, take
them again and look at each.
"""

import base64
import struct
import sys
import tempfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

from tests.dashboard.billing_server import BillingServer, open_billing_server
from tests.dashboard.test_accessibility import PHONE, scenes
from tests.support.programs import chromium

DARK: dict[str, Any] = {"color_scheme": "dark"}
FOLDER = Path(__file__).parent
STEADY, PALETTE = ((FOLDER / name).read_text() for name in ("steady.js", "palette.js"))
HEIGHTS, MAX_BYTES, COLOURS = (1_500, 1_000, 800), 60_000, 64

SERIES: tuple[tuple[str, dict[str, Any], frozenset[str] | None], ...] = (
    ("", {}, None),
    (
        "-phone",
        PHONE,
        frozenset(
            {
                "waiting",
                "request",
                "edit-error",
                "history",
                "audit",
                "tools",
                "usage",
                "upstreams",
                "operations",
            }
        ),
    ),
    (
        "-dark",
        DARK,
        frozenset({"waiting", "request", "file", "usage", "signin", "upstreams", "operations"}),
    ),
)
"""What is added to the names, what is different about the browser, and which scenes; None: all."""


def main(wanted: Collection[str]) -> int:
    """Take those pictures, or all; 1 when one is too large."""
    large: list[str] = []
    with chromium() as browser:
        for suffix, look, only in SERIES:
            names = {f"{name}{suffix}" for name in only} if only is not None else None
            if wanted and names is not None and not names & set(wanted):
                continue
            with (
                tempfile.TemporaryDirectory() as folder,
                open_billing_server(Path(folder)) as billing,
            ):
                large += _series(billing, browser, suffix, look, names, wanted)
    for name in large:
        sys.stdout.write(f"{name} is larger than {MAX_BYTES} bytes\n")
    return 1 if large else 0


def _series(
    billing: BillingServer,
    browser: Browser,
    suffix: str,
    look: dict[str, Any],
    names: Collection[str] | None,
    wanted: Collection[str],
) -> list[str]:
    large: list[str] = []
    for scene, page in scenes(billing, browser, **look):
        name = f"{scene}{suffix}"
        if (names is not None and name not in names) or (wanted and name not in wanted):
            continue
        picture = b""
        for height in HEIGHTS:
            picture = small(browser, taken(page, height))
            if len(picture) <= MAX_BYTES:
                break
        (FOLDER / f"dashboard-{name}.png").write_bytes(picture)
        sys.stdout.write(f"{name}: {len(picture)}\n")
        if len(picture) > MAX_BYTES:
            large.append(name)
    return large


def taken(page: Page, most: int) -> bytes:
    """The page from its top, as long as it is but for a bound."""
    page.evaluate(STEADY)
    height = int(page.evaluate("document.documentElement.scrollHeight"))
    width = int(page.evaluate("window.innerWidth"))
    clip = {"x": 0, "y": 0, "width": width, "height": min(height, most)}
    return page.screenshot(full_page=True, clip=clip, animations="disabled")  # type: ignore[arg-type]


def small(browser: Browser, picture: bytes) -> bytes:
    """The same picture with a palette (PNG, colour type 3)."""
    page = browser.new_page()
    data = base64.b64encode(picture).decode()
    width, height, palette, rows = page.evaluate(PALETTE, [data, COLOURS])
    page.close()
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    body = zlib.compress(base64.b64decode(rows), 9)
    parts = ((b"IHDR", head), (b"PLTE", bytes(palette)), (b"IDAT", body), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
