"""Configure the log: one line per event on standard error, as JSON or for people."""

import logging
import re
import sys
import time
import traceback
from contextlib import suppress
from functools import lru_cache
from types import TracebackType

import msgspec

from gatepost.config.telemetry import LogFormat, LogLevel
from gatepost.redaction.redactor import cleaned_for_log
from gatepost.telemetry.trace import CURRENT_SPAN

# A JWT, or the text after "Bearer": exception messages and headers can quote what a client sent.
_SECRETS = re.compile(
    r"eyJ[\w-]{4,}\.[\w-]+(?:\.[\w-]*)?"
    r"|(?i:(?<=bearer )[\w.~+/-]{8,}=*)"
    # A value that is already the name of its secret stays.
    r"|(?i:(?<=secret=)|(?<=token=)|(?<=password=))(?!\[REDACTED:)[^&\s\"']+"
)
_ENCODER = msgspec.json.Encoder()

OWN_LOGGERS = ("gatepost", "gatepost_authz", "gatepost_keys")
"""The loggers that log below `info`."""

INVISIBLE = re.compile(
    "[\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)
"""
Characters that JSON does not escape: C1 controls, direction marks, line separators and invisible
characters. Terminals read logs, and so do programs that have their own line separators.
"""


class TrustedText(str):
    """The server's own text, such as a signature; it is not searched for secrets."""

    __slots__ = ()


def scrub(text: str, tenant: str = "") -> str:
    """Return a text about *tenant* (empty: any) without its secrets and without credentials."""
    return _SECRETS.sub("[REDACTED]", cleaned_for_log(text, tenant))


def printable(text: str, *, limit: int = 1000) -> str:
    """Return the text on one line, so that clients cannot forge log lines."""
    escaped = text if text.isprintable() else text.encode("unicode_escape").decode("ascii")
    return escaped if len(escaped) <= limit else f"{escaped[:limit]}…"


@lru_cache(maxsize=8)
def _second(second: int) -> str:
    """Return the formatted second; cached, because most lines share it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


def timestamp(seconds: float) -> str:
    """Format seconds since the epoch as RFC 3339 in UTC, with milliseconds."""
    second, millisecond = divmod(int(seconds * 1000), 1000)
    return f"{_second(second)}.{millisecond:03d}Z"


def frames(
    error: tuple[type[BaseException] | None, BaseException | None, TracebackType | None],
) -> str:
    """Return a traceback without credentials."""
    return scrub("".join(traceback.format_exception(error[1])))


_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def details(record: logging.LogRecord) -> dict[str, object]:
    """Return the event's members in addition to its message."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def _tenant_of(record: logging.LogRecord) -> str:
    """Return the tenant that an event is about: to search for the secrets of all takes long."""
    tenant = getattr(record, "tenant", "")
    is_own = record.name.partition(".")[0] in OWN_LOGGERS
    return tenant if is_own and isinstance(tenant, str) else ""


def _unredacted(value: object, tenant: str) -> str:
    if isinstance(value, TrustedText):
        return str(value)
    if isinstance(value, dict | list | tuple):
        # As JSON, so that a secret is also found if it is split over members.
        with suppress(TypeError, ValueError, RecursionError):
            return scrub(_ENCODER.encode(value).decode(), tenant)
    return scrub(value if isinstance(value, str) else repr(value), tenant)


def _encoded(event: dict[str, object]) -> str:
    try:
        return _ENCODER.encode(event).decode()
    except UnicodeEncodeError:
        # Half a character, for example in a file name, must not lose the event.
        encodable = {
            name: value.encode("utf-8", "backslashreplace").decode()
            if isinstance(value, str)
            else value
            for name, value in event.items()
        }
        return _ENCODER.encode(encodable).decode()


class JsonFormatter(logging.Formatter):
    """Formats each event as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        tenant = _tenant_of(record)
        event: dict[str, object] = {
            "time": timestamp(record.created),
            "level": record.levelname.lower(),
            "event": scrub(record.getMessage(), tenant),
            "logger": record.name,
        }
        if (span := CURRENT_SPAN.get()) is not None:
            event |= {"trace_id": span.trace_id, "span_id": span.span_id}
        for name, value in details(record).items():
            text = _unredacted(value, tenant)
            event[name] = value if isinstance(value, int | float) and text == repr(value) else text
        if record.exc_info:
            event["traceback"] = frames(record.exc_info)
        return in_json(_encoded(event))


class ConsoleFormatter(logging.Formatter):
    """Formats each event as one line for people; a traceback follows on further lines."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        tenant = _tenant_of(record)
        line = f"{at} {record.levelname.lower():<7} {printable(scrub(record.getMessage(), tenant))}"
        for name, value in details(record).items():
            line += f" {name}={printable(str(_unredacted(value, tenant)))}"
        if (span := CURRENT_SPAN.get()) is not None:
            line += f" trace_id={span.trace_id}"
        if record.exc_info:
            line += f"\n{escaped_lines(frames(record.exc_info).rstrip())}"
        return line


def configure(*, level: LogLevel, form: LogFormat) -> None:
    """Send the events of all loggers to standard error in one format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else ConsoleFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    # At debug, database drivers log every statement with its parameters, and HTTP clients log every
    # header. Both contain data of tenants.
    root.setLevel("INFO" if level == "debug" else level.upper())
    for name in OWN_LOGGERS:
        logging.getLogger(name).setLevel(level.upper())
    # The HTTP client logs every request line, which may contain data of others. Alembic logs its
    # plugins when it creates a file.
    for name in ("httpx2", "httpcore2", "httpx", "httpcore", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)


def in_json(text: str) -> str:
    """Return the JSON text with such characters as `\\uXXXX`; its values do not change."""
    if text.isascii() and "\x7f" not in text:
        return text
    return INVISIBLE.sub(_escape, text)


def escaped_line(text: str) -> str:
    """Return the text on one line, with unprintable characters except tabs as escapes."""
    if text.isprintable():
        return text
    return "".join(
        char
        if char.isprintable() or char == "\t"
        else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def escaped_lines(text: str) -> str:
    """Return a text of several lines, such as a traceback, with such escapes in each line."""
    return "\n".join(escaped_line(line) for line in text.split("\n"))


def _escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
