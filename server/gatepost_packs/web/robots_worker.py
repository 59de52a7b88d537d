"""Judge a URL by a robots.txt (RFC 9309); runs in a child process (`gatepost_packs.child`)."""

import re
from typing import Any

from protego import Protego

VERSION = re.compile(r"^(\s*user-agent\s*:\s*[a-z_-]+)/.*", re.IGNORECASE | re.MULTILINE)
"""The text after a product token, which Protego would compare (RFC 9309 section 2.2.1)."""


def answer(request: dict[str, Any]) -> bool:
    """Return whether `agent` may fetch `url` by the `rules`."""
    rules = Protego.parse(VERSION.sub(r"\1", request["rules"]))
    return bool(rules.can_fetch(request["url"], request["agent"]))
