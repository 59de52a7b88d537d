"""Judge a URL by a robots.txt (RFC 9309); also runs in a child process (`gatepost_packs.child`)."""

import re
from typing import Any

from protego import Protego

AGENT_LINE = re.compile(
    r"^([ \t]*user[- ]?agent(?:[ \t]*:[ \t]*|[ \t]+))([a-z_-]+).*",
    re.ASCII | re.IGNORECASE | re.MULTILINE,
)
"""The line of a program, and its product token (RFC 9309 section 2.2.1)."""

SAMPLE = {"rules": "user-agent: *\nallow: /", "url": "https://example.org/a", "agent": "b"}
"""A request that uses what most requests use (`start.py`)."""


def rules_of(text: str, program: str) -> Protego:
    """Return the rules in a robots.txt for one program."""

    def own_line(line: re.Match[str]) -> str:
        # Protego would compare a version, and take "a" for every name that begins with it.
        return line[1] + program if line[2].lower() == program.lower() else line[1]

    # A line may end with CR alone (RFC 9309 section 2.2), where no line begins for the pattern.
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return Protego.parse(AGENT_LINE.sub(own_line, text))


def answer(request: dict[str, Any]) -> bool:
    """Return whether `agent` may fetch `url` by the `rules`, as a worker."""
    program = request["agent"]
    return bool(rules_of(request["rules"], program).can_fetch(request["url"], program))
