"""Parses the times that a model writes: ISO 8601, in the call's zone if they have none."""

from datetime import date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from gatepost import ToolFailure

EARLIEST, LATEST = 1900, 2100
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
            found = datetime.combine(day + timedelta(days=int(last)), time(), zone)
        else:
            found = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError):
        message = f"`{field}` should be an ISO 8601 date or time such as {EXAMPLE}."
        raise ToolFailure("validation", message, field=field) from None
    if not EARLIEST <= found.year <= LATEST:
        message = f"`{field}` should be between the years {EARLIEST} and {LATEST}."
        raise ToolFailure("validation", message, field=field)
    return found if found.tzinfo is not None else found.replace(tzinfo=zone)
