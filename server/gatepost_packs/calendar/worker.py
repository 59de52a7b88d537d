"""
Parse iCalendar documents and expand recurrences; runs in a child process (`gatepost_packs.child`).

The people who can write to a calendar choose its rules, and one line can take forever
(`FREQ=SECONDLY` since 1970, a 30th of February). Therefore each series has a share of the time and
is left out if it needs more, and so has each calendar. Time zones that a document defines stay in
this process, which reads no document of another tenant.
"""

import base64
import signal
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import recurring_ical_events  # type: ignore[import-untyped]
from icalendar import Calendar
from icalendar.timezone import tzp

SERIES_S = 0.5
"""Seconds that one series may take: some ten thousand occurrences."""
MIN_S = 0.005
MAX_NESTED = 32
"""Nesting depth of components; RFC 5545 has three."""
TEXT_CHARS = 1_000
"""Characters of a description, or of any other text, that are kept."""

SAMPLE_DOCUMENT = b"""BEGIN:VCALENDAR
BEGIN:VEVENT
UID:a
DTSTART;TZID=Europe/Paris:20260101T080000
RRULE:FREQ=DAILY;COUNT=2
SUMMARY:b
END:VEVENT
END:VCALENDAR
"""
SAMPLE = {
    "start": "2026-01-01T00:00:00+00:00",
    "end": "2026-01-03T00:00:00+00:00",
    "words": [],
    "limit": 1,
    "seconds": 1.0,
    "calendars": [
        {
            "name": "c",
            "zone": "UTC",
            "documents": [base64.b64encode(SAMPLE_DOCUMENT).decode()],
        }
    ],
}
"""A request that uses what most requests use (`start.py`)."""

SortedEvent = tuple[tuple[Any, ...], dict[str, Any]]
"""The sort key of an occurrence, and its shown form."""

# Exceptions that the libraries raise for hostile or broken documents.
LIBRARY_ERRORS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


class Overdue(BaseException):
    """Time is up. Not an Exception, so that no library swallows it."""


class NoCalendar(ValueError):
    """A text has no calendar in it; its message says so."""


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """
    Return the sorted occurrences in a period, of all documents of all calendars.

    *request* has `start` and `end` (ISO 8601 with offset), `words`, `limit`, `seconds`, and
    `calendars`, each with `name`, `zone` and `documents` (base64).
    """
    signal.signal(signal.SIGVTALRM, _overdue)
    reading = CalendarReader(request)
    for number, calendar in enumerate(request["calendars"]):
        # The calendars get equal shares of the time. A calendar passes on the time that it does not
        # use, and a hostile one hides no other.
        share = reading.left_s / (len(request["calendars"]) - number)
        reading.read(calendar, share)
    events = sorted(reading.events, key=lambda item: item[0])
    return {
        "events": [event for _, event in events[: request["limit"]]],
        "total": len(events),
        "readable": reading.readable,
        "left_out": reading.left_out,
        "unreadable": reading.unreadable,
    }


def _overdue(signum: int, frame: object) -> None:
    raise Overdue


class CalendarReader:
    """One request while its calendars are read."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.start = datetime.fromisoformat(request["start"])
        self.end = datetime.fromisoformat(request["end"])
        self.words: list[str] = request["words"]
        self.left_s: float = request["seconds"]
        self.share_s = 0.0
        self.events: list[SortedEvent] = []
        self.readable = 0
        self.left_out: list[dict[str, str]] = []
        self.unreadable: list[dict[str, str]] = []

    def read(self, calendar: dict[str, Any], share_s: float) -> None:
        """Collect the events of one calendar, expanding for at most *share_s*."""
        self.share_s = share_s
        for encoded in calendar["documents"]:
            try:
                text = _text(base64.b64decode(encoded))
                self._document(calendar["name"], ZoneInfo(calendar["zone"]), text)
                self.readable += 1
            except (*LIBRARY_ERRORS, MemoryError) as error:
                entry = {"calendar": calendar["name"], "reason": _reason(error)}
                self.unreadable.append(entry)

    def _document(self, name: str, zone: ZoneInfo, text: str) -> None:
        # Zones that a document defines are cached by name, so each document starts with none.
        tzp.use_default()
        # As bytes, because a text of one line would be taken for the path of a file and read.
        for document in Calendar.from_ical(self._shortened(text).encode(), multiple=True):
            for series in _series(document):
                self._series(name, zone, series)

    def _shortened(self, text: str) -> str:
        """
        Return the document without plain events of other times, because parsing takes longest.
        """
        head, *blocks = text.split("\nBEGIN:VEVENT")
        parts = [head]
        for block in blocks:
            event, end_line, remainder = block.partition("\nEND:VEVENT")
            is_irrelevant = end_line and not self._may_count(event.upper())
            parts.append(remainder.rstrip("\r\n") if is_irrelevant else f"\nBEGIN:VEVENT{block}")
        return "".join(parts)

    def _may_count(self, event: str) -> bool:
        if any(word in event for word in ("RRULE", "RDATE", "RECURRENCE-ID", "DURATION")):
            return True
        starts = _day(event, "DTSTART")
        ends = _day(event, "DTEND") if "\nDTEND" in event else starts
        if starts is None or ends is None:
            return True
        # Two days: zones never differ by more.
        days = timedelta(2)
        return starts <= self.end.date() + days and ends >= self.start.date() - days

    def _series(self, name: str, zone: ZoneInfo, series: Any) -> None:
        events = series.walk("VEVENT")
        if self.words and not any(_matches(event, self.words) for event in events):
            return
        if self.share_s < MIN_S:
            self._leave_out(name, events[0], "parsing the calendars took too long")
            return
        try:
            self.events += self._within_time(name, zone, series)
        except Overdue:
            self._leave_out(name, events[0], "it recurs more often than can be listed")
        except LIBRARY_ERRORS:
            self._leave_out(name, events[0], "it is not valid iCalendar")

    def _within_time(self, name: str, zone: ZoneInfo, series: Any) -> list[SortedEvent]:
        limit_s = min(SERIES_S, self.share_s / 2)  # half, so that there is always time left
        signal.setitimer(signal.ITIMER_VIRTUAL, limit_s)
        try:
            return self._expanded(name, zone, series)
        finally:
            remaining_s, _ = signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            self.share_s -= limit_s - remaining_s
            self.left_s -= limit_s - remaining_s

    def _expanded(self, name: str, zone: ZoneInfo, series: Any) -> list[SortedEvent]:
        query = recurring_ical_events.of(series)
        occurrences = query.between(self.start.astimezone(zone), self.end.astimezone(zone))
        recurring = any(event.get("RRULE") or event.get("RDATE") for event in series.walk("VEVENT"))
        events = []
        for occurrence in occurrences:
            if _matches(occurrence, self.words):
                event_fields = _event_fields(name, occurrence, recurring)
                events.append((_order(occurrence, zone, event_fields), event_fields))
        return events

    def _leave_out(self, name: str, event: Any, reason: str) -> None:
        entry = {"calendar": name, "summary": _cut(event, "SUMMARY", 200) or "", "reason": reason}
        self.left_out.append(entry)


def _text(data: bytes) -> str:
    text = data.decode("utf-8-sig", errors="replace")
    depth = 0
    for line in text.split("\n"):
        depth += line[:6].upper() == "BEGIN:"
        depth -= line[:4].upper() == "END:"
        if depth > MAX_NESTED:
            raise ValueError("nested")
    if "BEGIN:VCALENDAR" not in text:
        raise NoCalendar("there is no VCALENDAR in it")
    return text


def _reason(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "it is too large"
    return str(error) if isinstance(error, NoCalendar) else "it is not valid iCalendar"


def _series(document: Any) -> Iterator[Any]:
    """Return the components that belong together, by UID, each group as its own document."""
    series: dict[str, Any] = {}
    for number, event in enumerate(document.walk("VEVENT")):
        uid = str(event.get("UID", f"no-uid-{number}"))
        if uid not in series:
            series[uid] = Calendar()
            zone = str(document.get("X-WR-TIMEZONE", ""))
            if zone and tzp.timezone(zone) is not None:
                series[uid].add("X-WR-TIMEZONE", zone)
        series[uid].add_component(event)
    # Series that can take long come last, so that they use up no other's time.
    yield from sorted(series.values(), key=_frequency_rank)


def _frequency_rank(series: Any) -> int:
    rules = " ".join(str(event.get("RRULE", "")) for event in series.walk("VEVENT")).upper()
    ranks = [
        1 + rank for rank, word in enumerate(("HOURLY", "MINUTELY", "SECOND")) if word in rules
    ]
    return max(ranks, default=0)


def _day(event: str, field: str) -> date | None:
    """Return the day of a date property if it is plain to see."""
    _, separator, after = event.partition(f"\n{field}")
    value = after.partition("\n")[0].rpartition(":")[2][:8]
    if not separator or not value.isdigit():
        return None
    try:
        return datetime.strptime(value, "%Y%m%d").replace(tzinfo=UTC).date()
    except ValueError:
        return None


def _matches(event: Any, words: list[str]) -> bool:
    text = " ".join(str(event.get(f, "")) for f in ("SUMMARY", "DESCRIPTION", "LOCATION"))
    return all(word in text.casefold() for word in words)


def _event_fields(calendar: str, event: Any, recurring: bool) -> dict[str, Any]:
    written = event["DTSTART"].dt, event["DTEND"].dt if "DTEND" in event else event["DTSTART"].dt
    start, end = _real(written[0]), _real(written[1])
    if end <= start and written[1] > written[0]:
        # The end is in the hour that the clocks skip, so it would be before the start.
        end = (start.astimezone(UTC) + (written[1] - written[0])).astimezone(end.tzinfo)
    fields = {
        "calendar": calendar,
        "summary": _cut(event, "SUMMARY", 200) or "",
        "start": start.isoformat(),
        "end": end.isoformat(),
        "all_day": not isinstance(start, datetime),
        "zone": _zone(event, start),
        "recurring": recurring,
        "uid": _cut(event, "UID", 200),
    }
    for field in ("STATUS", "LOCATION", "DESCRIPTION", "ORGANIZER", "URL"):
        fields[field.lower()] = _cut(event, field, TEXT_CHARS)
    if fields["status"]:
        fields["status"] = fields["status"].lower()
    return fields


def _real(moment: Any) -> Any:
    """
    Return a local time that the clocks skip as the time after the change (RFC 5545 section 3.3.5).
    """
    if isinstance(moment, datetime) and moment.tzinfo is not None:
        return moment.astimezone(UTC).astimezone(moment.tzinfo)
    return moment


def _zone(event: Any, start: Any) -> str | None:
    if not isinstance(start, datetime) or start.tzinfo is None:
        return None
    zone_name = event["DTSTART"].params.get("TZID")
    return str(zone_name) if zone_name else str(start.tzname() or "UTC")


def _order(event: Any, zone: ZoneInfo, fields: dict[str, Any]) -> tuple[Any, ...]:
    start = event["DTSTART"].dt
    if not isinstance(start, datetime):
        start = datetime.combine(start, time())
    if start.tzinfo is None:
        start = start.replace(tzinfo=zone)
    return (start.timestamp(), not fields["all_day"], fields["calendar"], fields["summary"])


def _cut(event: Any, field: str, max_chars: int) -> str | None:
    value = event.get(field)
    if value is None:
        return None
    text = str(value[0] if isinstance(value, list) and value else value)
    return text if len(text) <= max_chars else f"{text[: max_chars - 6]} [cut]"
