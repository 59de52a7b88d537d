"""Parse git's progress lines: report them to the client, and leave them out of the answer."""

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
UNFINISHED_BYTES = 4096
"""Bytes of an unfinished line that are kept."""

ReportProgress = Callable[[float, float, str], Awaitable[None]]


class GitProgress:
    """
    Collects git's progress lines and reports the newest; older ones that were not reported are
    dropped.
    """

    def __init__(self, report: ReportProgress) -> None:
        self._report = report
        self._unfinished = ""
        self._reached = 0.0
        self._message = ""
        self._news = asyncio.Event()

    def receive(self, part: bytes) -> None:
        """Take in more of git's output."""
        lines = re.split(r"[\r\n]", self._unfinished + part.decode("utf-8", "replace"))
        self._unfinished = lines.pop()[-UNFINISHED_BYTES:]
        for line in lines:
            match = LINE.match(line)
            if match is None:
                continue
            at = 100.0 * STAGES.index(match["stage"]) + float(match["percent"] or 0)
            # The number only grows, as MCP requires, although git starts to count again for each
            # remote.
            if at > self._reached:
                self._reached, self._message = at, match[0].strip()
                self._news.set()

    async def report(self) -> None:
        """Report new progress until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            await self._report(self._reached, TOTAL, self._message)


def without_progress(text: str) -> str:
    """Return *text* without the progress lines."""
    lines = []
    for line in text.split("\n"):
        last = [part for part in line.split("\r") if part.strip()][-1:]
        if last and LINE.fullmatch(last[0].strip()):
            continue
        lines.append(last[0].rstrip() if last else "")
    return "\n".join(lines)
