"""iCalendar documents as other programs write them."""

ZONES = {
    # An own zone, an hour ahead of Berlin, whose clocks change a week later.
    "Own": """BEGIN:VTIMEZONE
TZID:Own
BEGIN:STANDARD
DTSTART:19701108T030000
TZOFFSETFROM:+0300
TZOFFSETTO:+0200
RRULE:FREQ=YEARLY;BYMONTH=11;BYDAY=2SU
END:STANDARD
BEGIN:DAYLIGHT
DTSTART:19700405T020000
TZOFFSETFROM:+0200
TZOFFSETTO:+0300
RRULE:FREQ=YEARLY;BYMONTH=4;BYDAY=1SU
END:DAYLIGHT
END:VTIMEZONE
""",
    # The same name with another meaning: hours that no place has.
    "Own elsewhere": """BEGIN:VTIMEZONE
TZID:Own
BEGIN:STANDARD
DTSTART:19700101T000000
TZOFFSETFROM:-0700
TZOFFSETTO:-0700
END:STANDARD
END:VTIMEZONE
""",
}


def event(*lines: str, uid: str = "one") -> str:
    """A VEVENT with these properties."""
    return "\n".join(
        ("BEGIN:VEVENT", f"UID:{uid}", "DTSTAMP:20260101T000000Z", *lines, "END:VEVENT", "")
    )


def document(*parts: str, head: str = "") -> str:
    """A VCALENDAR with these parts, its lines ended as RFC 5545 has them."""
    inside = "".join(part if part.endswith("\n") else f"{part}\n" for part in (head, *parts))
    text = f"BEGIN:VCALENDAR\nVERSION:2.0\nPRODID:-//example//EN\n{inside.lstrip()}END:VCALENDAR\n"
    return text.replace("\n", "\r\n")
