"""Log the standard error of a stdio server's program, bounded and redacted."""

import logging
from collections.abc import Callable
from time import monotonic

from gatepost.mcp.pipes import LineReader, LineTooLong

MAX_CHARACTERS = 1_000
MAX_BYTES = 16_384
LINES_PER_PERIOD, PERIOD_S = 50, 10.0
"""Lines that are logged in each period; the others are counted."""

log = logging.getLogger(__name__)


class StderrLog:
    """Logs lines as `upstream_stderr`."""

    def __init__(
        self,
        server: str,
        tenant: str,
        redacted: Callable[[str, str], str],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._server, self._tenant, self._redacted = server, tenant, redacted
        self._clock = clock
        self._lines = LineReader(MAX_BYTES)
        self._since, self._logged, self._dropped = clock(), 0, 0

    def take(self, part: bytes) -> None:
        """Log the lines that end in *part*."""
        for line in self._lines.split(part):
            self._line(line)

    def end(self) -> None:
        """Log an unfinished last line, and how many were left out."""
        for line in self._lines.unfinished_line():
            self._line(line)
        self._report()

    def _line(self, line: bytes | LineTooLong) -> None:
        now = self._clock()
        if now - self._since > PERIOD_S:
            self._report()
            self._since, self._logged = now, 0
        if isinstance(line, LineTooLong) or self._logged >= LINES_PER_PERIOD:
            self._dropped += 1
            return
        self._logged += 1
        # The whole line is redacted first, because a cut could leave half of a secret.
        text = self._redacted(self._tenant, line.decode(errors="replace"))
        log.info(
            "upstream_stderr",
            extra={
                "upstream": self._server,
                "tenant": self._tenant,
                "line": text[:MAX_CHARACTERS],
            },
        )

    def _report(self) -> None:
        if self._dropped:
            log.warning(
                "upstream_stderr_dropped",
                extra={"upstream": self._server, "tenant": self._tenant, "lines": self._dropped},
            )
            self._dropped = 0
