"""What git says about how far it is: told to the client, and left out of what is answered."""

import asyncio
import re
from collections.abc import Awaitable, Callable

STAGES = (
    *("Enumerating", "Counting", "Compressing", "Receiving", "Writing", "Resolving", "Unpacking"),
    *("Updating", "Checking", "Filtering"),
)
LINE = re.compile(
    rf"(?:remote: )?(?P<stage>{'|'.join(STAGES)})\b[\w ]*:\s+(?:(?P<percent>\d{{1,3}})%|\d+)[^\n]*"
)
TOTAL = float(100 * len(STAGES))
MOST = 4096
"""Of a line that does not end."""

Tell = Callable[[float, float, str], Awaitable[None]]


class Progress:
    """Collects git's lines and hands on the newest; older ones that were not told are nobody's."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._rest = ""
        self._reached = 0.0
        self._said = ""
        self._news = asyncio.Event()

    def hear(self, part: bytes) -> None:
        """Take in more of what git writes."""
        lines = re.split(r"[\r\n]", self._rest + part.decode("utf-8", "replace"))
        self._rest = lines.pop()[-MOST:]
        for line in lines:
            found = LINE.match(line)
            if found is None:
                continue
            at = 100.0 * STAGES.index(found["stage"]) + float(found["percent"] or 0)
            # It only ever grows, as MCP wants it: counting may begin again for each remote.
            if at > self._reached:
                self._reached, self._said = at, found[0].strip()
                self._news.set()

    async def report(self) -> None:
        """Tell what is new, until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            await self._tell(self._reached, TOTAL, self._said)


def without(text: str) -> str:
    """*text* without the lines that say how far git is."""
    kept = []
    for line in text.split("\n"):
        last = [part for part in line.split("\r") if part.strip()][-1:]
        if last and LINE.fullmatch(last[0].strip()):
            continue
        kept.append(last[0].rstrip() if last else "")
    return "\n".join(kept)
