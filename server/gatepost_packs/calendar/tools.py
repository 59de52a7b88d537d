"""Read events from all calendars of the tenant (`calendar_read`)."""

import asyncio
import base64
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import recurring_ical_events  # type: ignore[import-untyped]  # noqa: F401  # or it is left out
from pydantic import BaseModel, Field, TypeAdapter

from gatepost import CallContext, Pack, ToolFailure
from gatepost_packs.calendar.calendar_source import CalendarDocuments, CalendarSource
from gatepost_packs.calendar.settings import CalendarSettings
from gatepost_packs.child.process import WorkerFailed, ask

FIRST_YEAR, LAST_YEAR = 1900, 2100
EXAMPLE = "2026-03-01, 2026-03-01T09:00 or 2026-03-01T09:00:00+01:00"


def window(start: str, end: str, zone: ZoneInfo, *, max_days: int) -> tuple[datetime, datetime]:
    """
    Return the period from *start* up to *end*; a date as *end* includes that whole day.

    ToolFailure names the invalid argument, or says why both together are invalid.
    """
    begins = _moment("start", start, zone, last=False)
    ends = _moment("end", end, zone, last=True)
    if ends <= begins:
        message = f"`end` ({end}) should be after `start` ({start})."
        raise ToolFailure("validation", message, field="end")
    if ends - begins > timedelta(days=max_days, hours=2):
        message = (
            f"From `start` to `end` may be at most {max_days} days; this is "
            f"{(ends - begins).days}. Ask for a shorter period."
        )
        raise ToolFailure("validation", message, field="end")
    return begins, ends


def _moment(field: str, text: str, zone: ZoneInfo, *, last: bool) -> datetime:
    try:
        if len(text.strip()) <= 10:
            day = date.fromisoformat(text.strip())
            moment = datetime.combine(day + timedelta(days=int(last)), time(), zone)
        else:
            moment = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError):
        message = f"`{field}` should be an ISO 8601 date or time such as {EXAMPLE}."
        raise ToolFailure("validation", message, field=field) from None
    if not FIRST_YEAR <= moment.year <= LAST_YEAR:
        message = f"`{field}` should be between the years {FIRST_YEAR} and {LAST_YEAR}."
        raise ToolFailure("validation", message, field=field)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)


pack = Pack("calendar")

WORKER = Path(__file__).with_name("worker.py")
WORK_SHARE = 0.6
"""The share of the reading time for expanding recurrences; the rest is for parsing."""
MAX_GAPS = 20
MAX_VALUES = 400_000
"""The maximum number of values that a worker answers: of 1,000 events, and of all left out."""


class CalendarEvent(BaseModel):
    """One occurrence of an event; a recurring event is one event for each occurrence."""

    calendar: str
    summary: str
    start: str
    """With offset; only a day for whole days; without offset if it names no zone."""
    end: str
    """The end as a time or, for whole days, as the first day after it."""
    all_day: bool
    zone: str | None
    """
    The time zone of `start`: a name of the IANA database, or the calendar's own; null for none.
    """
    recurring: bool
    uid: str | None
    status: str | None
    """`confirmed`, `tentative`, `cancelled`: a cancelled event does not take place."""
    location: str | None
    description: str | None
    organizer: str | None
    url: str | None


class UnreadEntry(BaseModel):
    """A calendar or an event that could not be read."""

    reason: str
    calendar: str | None = None
    summary: str | None = None
    """The start of the missing event; null for a whole calendar, or a document of it."""


class ReadCalendars(BaseModel):
    """The result of the worker."""

    events: list[CalendarEvent]
    total: int
    readable: int
    left_out: list[UnreadEntry]
    unreadable: list[UnreadEntry]


READ_CALENDARS = TypeAdapter(ReadCalendars)


class Agenda(BaseModel):
    """The events in a period."""

    start: str
    end: str
    events: list[CalendarEvent]
    """Sorted by their start."""
    total: int
    """The number of all events; more than are listed if `truncated`."""
    truncated: bool
    missing: list[UnreadEntry]


@pack.tool(
    title="Read calendars",
    scopes={"calendar:read"},
    read_only=True,
    destructive=False,
    idempotent=True,
    open_world=True,
    timeout_s=130,
    untrusted="calendar",
)
async def calendar_read(
    ctx: CallContext,
    start: Annotated[
        str, Field(description="ISO 8601 date or time, for example 2026-03-01 or 2026-03-01T09:00")
    ],
    end: Annotated[
        str, Field(description="ISO 8601 date (that whole day) or time (until before it)")
    ],
    calendar: Annotated[
        str | None, Field(description="Name of a calendar; leave it out for all of them")
    ] = None,
    query: Annotated[
        str | None,
        Field(description="Words that summary, description or location hold, all of them"),
    ] = None,
    limit: Annotated[int, Field(description="Events at most", ge=1, le=1000)] = 100,
) -> Agenda:
    """Read calendar events in a time range; recurring events are listed once for each time."""
    settings = ctx.settings(CalendarSettings)
    sources, part = _selected_calendars(ctx, settings, calendar)
    zone = ZoneInfo(sources[0].zone if len(sources) == 1 else settings.zone)
    begins, ends = window(start, end, zone, max_days=settings.max_days)
    fetched = await asyncio.gather(*(_fetched(source, begins, ends, part) for source in sources))
    await ctx.progress(1, 2, "The calendars are fetched.")
    if all(isinstance(result, ToolFailure) for result in fetched):
        raise next(result for result in fetched if isinstance(result, ToolFailure))
    gaps = [
        UnreadEntry(calendar=source.name, reason=result.failure.message)
        for source, result in zip(sources, fetched, strict=True)
        if isinstance(result, ToolFailure)
    ]
    documents = [document for result in fetched if isinstance(result, list) for document in result]
    request = {
        "start": begins.isoformat(),
        "end": ends.isoformat(),
        "words": (query or "").casefold().split(),
        "limit": limit,
        "seconds": settings.timeout_s * WORK_SHARE,
        "calendars": [_request_of(document) for document in documents],
    }
    read = await _read(request, settings.timeout_s)
    return _agenda(begins, ends, read, gaps)


def _selected_calendars(
    ctx: CallContext, settings: CalendarSettings, calendar: str | None
) -> tuple[list[CalendarSource], str]:
    """Return the tenant's calendars, or the one of that name and its selected part."""
    tenant = ctx.caller.tenant_id
    own_calendars = {
        name: calendar
        for name, calendar in settings.calendars.items()
        if not calendar.tenants or tenant in calendar.tenants
    }
    if not own_calendars:
        message = (
            "No calendar is set up for you. "
            "An administrator names them in [packs.calendar.calendars]."
        )
        raise ToolFailure("not_found", message)
    if calendar is None:
        return [
            CalendarSource(ctx, name, calendar, settings)
            for name, calendar in own_calendars.items()
        ], ""
    name, _, part = calendar.partition("/")
    if name not in own_calendars:
        message = f"There is no calendar {calendar!r}. There are: {', '.join(own_calendars)}."
        raise ToolFailure("not_found", message, field="calendar")
    return [CalendarSource(ctx, name, own_calendars[name], settings)], part


async def _fetched(
    source: CalendarSource, begins: datetime, ends: datetime, part: str
) -> list[CalendarDocuments] | ToolFailure:
    """
    Return the calendar's documents, or a gap: an unreadable calendar must not hide the others.
    """
    try:
        return await source.fetch(begins, ends, part)
    except ToolFailure as error:
        if error.failure.field == "calendar":
            return error
        reason = error.failure.message.rstrip(".")
        message = f"The calendar {source.name} cannot be read: {reason}."
        return ToolFailure(error.failure.kind, message)


def _request_of(documents: CalendarDocuments) -> dict[str, Any]:
    return {
        "name": documents.name,
        "zone": documents.zone,
        "documents": [base64.b64encode(content).decode() for content in documents.data],
    }


async def _read(request: dict[str, Any], timeout_s: float) -> ReadCalendars:
    narrower = "Ask for one calendar, or for a shorter period."
    try:
        read: ReadCalendars = await ask(
            WORKER,
            request,
            timeout_s=timeout_s,
            max_values=MAX_VALUES,
            result_type=READ_CALENDARS,
        )
    except TimeoutError:
        message = (
            f"The calendars were fetched, but could not be parsed within {timeout_s:g} s. "
            f"{narrower}"
        )
        raise ToolFailure("timeout", message) from None
    except WorkerFailed:
        message = f"The calendars take too much memory or time to parse. {narrower}"
        raise ToolFailure("timeout", message) from None
    return read


def _agenda(
    begins: datetime, ends: datetime, read: ReadCalendars, gaps: list[UnreadEntry]
) -> Agenda:
    unreadable = read.unreadable
    if unreadable and not read.readable and not gaps:
        calendar_name, reason = unreadable[0].calendar, unreadable[0].reason
        message = f"The calendar {calendar_name} cannot be read: {reason}."
        raise ToolFailure("validation", message)
    gaps += [*unreadable, *read.left_out]
    if len(gaps) > MAX_GAPS:
        summary = UnreadEntry(reason=f"{len(gaps) - MAX_GAPS} more are missing as well")
        gaps = [*gaps[:MAX_GAPS], summary]
    return Agenda(
        start=begins.isoformat(),
        end=ends.isoformat(),
        events=read.events,
        total=read.total,
        truncated=read.total > len(read.events),
        missing=gaps,
    )
