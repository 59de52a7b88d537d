"""Judge a URL by a robots.txt (RFC 9309); also runs in a child process (`gatepost_packs.child`)."""

import re
from typing import Any

from protego import Protego

VERSION = re.compile(r"^([ \t]*user-agent[ \t]*:[ \t]*[a-z_-]+)/.*", re.IGNORECASE | re.MULTILINE)
"""The text after a product token, which Protego would compare (RFC 9309 section 2.2.1)."""

SAMPLE = {"rules": "user-agent: *\nallow: /", "url": "https://example.org/a", "agent": "b"}
"""A request that uses what most requests use (`start.py`)."""


def rules_of(text: str) -> Protego:
    """Return the rules in a robots.txt for all programs."""
    return Protego.parse(VERSION.sub(r"\1", text))


def answer(request: dict[str, Any]) -> bool:
    """Return whether `agent` may fetch `url` by the `rules`, as a worker."""
    return bool(rules_of(request["rules"]).can_fetch(request["url"], request["agent"]))
