"""Write times and amounts in words."""

from datetime import UTC, datetime


def amount(count: int, noun: str) -> str:
    """Return a count with its noun: `1 line`, `2,400 lines`, `3 entries`."""
    if count == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {plural}"


def span(seconds: float) -> str:
    """Return a remaining time: `4:59`, `2 h 05 min`, `3 days`."""
    whole_s = int(seconds)
    if whole_s <= 0:
        return "time is up"
    if whole_s < 3_600:
        return f"{whole_s // 60}:{whole_s % 60:02}"
    if whole_s < 48 * 3_600:
        return f"{whole_s // 3_600} h {whole_s % 3_600 // 60:02} min"
    return f"{whole_s // 86_400} days"


def ago(seconds: float) -> str:
    """Return an age: `just now`, `4 min ago`, `3 h ago`, `2 days ago`."""
    whole_s = int(seconds)
    if whole_s < 10:
        return "just now"
    if whole_s < 60:
        return f"{whole_s} s ago"
    if whole_s < 3_600:
        return f"{whole_s // 60} min ago"
    if whole_s < 48 * 3_600:
        return f"{whole_s // 3_600} h ago"
    return f"{whole_s // 86_400} days ago"


def iso(at: float) -> str:
    """Return a time in RFC 3339 format."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}"


def full(at: float) -> str:
    """Return a time in UTC for people."""
    return f"{datetime.fromtimestamp(at, UTC):%d %b %Y, %H:%M:%S} UTC".lstrip("0")


def rate(per_second: float) -> str:
    """Return a rate: `10 a second`, `30 a minute`."""
    if per_second >= 1 or per_second == 0:
        return f"{per_second:g} a second"
    return f"{per_second * 60:g} a minute"
