"""How the server logs: one line per event on standard error, as JSON or for a person."""

import logging
import re
import sys
import time
import traceback
from functools import lru_cache
from types import TracebackType
from typing import Literal

import msgspec
import structlog

from gatepost.redaction import place
from gatepost.telemetry.trace import CURRENT

LogFormat = Literal["json", "console"]
LogLevel = Literal["debug", "info", "warning", "error"]

# A JWT, or whatever follows "Bearer": exception messages and headers can quote what a client sent.
_SECRETS = re.compile(
    r"eyJ[\w-]{4,}\.[\w-]+(?:\.[\w-]*)?"
    r"|(?i:(?<=bearer )[\w.~+/-]{8,}=*)"
    # A value that has its name already keeps it.
    r"|(?i:(?<=secret=)|(?<=token=)|(?<=password=))(?!\[REDACTED:)[^&\s\"']+"
)
_ENCODER = msgspec.json.Encoder()


def scrub(text: str) -> str:
    """The text without the tenant's secrets, and without anything that looks like a credential."""
    return _SECRETS.sub("[REDACTED]", place.cleaned(text))


def printable(text: str, *, limit: int = 1000) -> str:
    """The text on one line: what a client chose must not forge a second line of a console log."""
    shown = text if text.isprintable() else text.encode("unicode_escape").decode("ascii")
    return shown if len(shown) <= limit else f"{shown[:limit]}…"


@lru_cache(maxsize=8)
def _second(whole: int) -> str:
    """Formatting a date costs more than the rest of a line, and most lines share their second."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))


def timestamp(seconds: float) -> str:
    """Seconds since the epoch as RFC 3339 in UTC, with milliseconds."""
    whole, rest = divmod(int(seconds * 1000), 1000)
    return f"{_second(whole)}.{rest:03d}Z"


def frames(
    error: tuple[type[BaseException] | None, BaseException | None, TracebackType | None],
) -> str:
    """A traceback without credentials; source lines are ours, messages may quote a client."""
    return scrub("".join(traceback.format_exception(error[1])))


_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def details(record: logging.LogRecord) -> dict[str, object]:
    """What the event says beside its sentence."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def _plain(value: object) -> object:
    return scrub(value) if isinstance(value, str) else scrub(repr(value))


class JsonFormatter(logging.Formatter):
    """One JSON object per event."""

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, object] = {
            "time": timestamp(record.created),
            "level": record.levelname.lower(),
            "event": scrub(record.getMessage()),
            "logger": record.name,
        }
        if (mark := CURRENT.get()) is not None:
            event |= {"trace_id": mark.trace_id, "span_id": mark.span_id}
        for name, value in details(record).items():
            shown = _plain(value)
            event[name] = (
                value if isinstance(value, int | float) and shown == repr(value) else shown
            )
        if record.exc_info:
            event["traceback"] = frames(record.exc_info)
        return _ENCODER.encode(event).decode()


class ConsoleFormatter(logging.Formatter):
    """One line per event for a person; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = f"{at} {record.levelname.lower():<7} {printable(scrub(record.getMessage()))}"
        for name, value in details(record).items():
            line += f" {name}={printable(str(_plain(value)))}"
        if (mark := CURRENT.get()) is not None:
            line += f" trace_id={mark.trace_id}"
        if record.exc_info:
            line += f"\n{frames(record.exc_info).rstrip()}"
        return line


def configure(*, level: LogLevel, form: LogFormat) -> None:
    """Send every logger's events to standard error in one form, replacing what was set before."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else ConsoleFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, structlog.stdlib.render_to_log_kwargs],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    # The HTTP client logs every request line, which may carry what belongs to others; Alembic tells
    # a new file's owner of its plugins.
    for name in ("httpx2", "httpcore2", "httpx", "httpcore", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
