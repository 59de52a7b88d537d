"""What recurs is listed at each of its times, in its zone, whatever the clocks do."""

import asyncio
import base64
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from dateutil.rrule import rrulestr
from hypothesis import given, settings
from hypothesis import strategies as st

from gatepost_packs.calendar import worker
from gatepost_packs.child.process import ask

ZONE_DEFINITIONS = {
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
    """Return a VEVENT with these properties."""
    return "\n".join(
        ("BEGIN:VEVENT", f"UID:{uid}", "DTSTAMP:20260101T000000Z", *lines, "END:VEVENT", "")
    )


def document(*parts: str, head: str = "") -> str:
    """Return a VCALENDAR with these parts, its lines ended as RFC 5545 requires."""
    inside = "".join(part if part.endswith("\n") else f"{part}\n" for part in (head, *parts))
    text = f"BEGIN:VCALENDAR\nVERSION:2.0\nPRODID:-//example//EN\n{inside.lstrip()}END:VCALENDAR\n"
    return text.replace("\n", "\r\n")


pytestmark = pytest.mark.requirement("P7")

BERLIN = ZoneInfo("Europe/Berlin")
RANGE_START, RANGE_END = datetime(2026, 3, 25, tzinfo=BERLIN), datetime(2026, 4, 2, tzinfo=BERLIN)


def asked(documents: dict[str, str], *, words: list[str] | None = None, seconds: float = 6) -> Any:
    """Return the worker's answer for calendars with one document each, in Berlin."""
    request = {
        "start": RANGE_START.isoformat(),
        "end": RANGE_END.isoformat(),
        "words": words or [],
        "limit": 1000,
        "seconds": seconds,
        "calendars": [
            {
                "name": name,
                "zone": "Europe/Berlin",
                "documents": [base64.b64encode(text.encode("utf-8", "surrogateescape")).decode()],
            }
            for name, text in documents.items()
        ],
    }
    return asyncio.run(ask(Path(worker.__file__), request, timeout_s=30))


def berlin(*times: str) -> list[tuple[str, str]]:
    return [(time, "Europe/Berlin") for time in times]


DAILY_START = "DTSTART;TZID=Europe/Berlin:20260327T090000"
RECURRENCE_CASES: dict[str, tuple[str, list[tuple[str, str | None]]]] = {
    "once, in UTC": (document(event("DTSTART:20260326T090000Z")), [("26 09:00+00", "UTC")]),
    "once, in a zone": (document(event(DAILY_START)), berlin("27 09:00+01")),
    "once, floating": (document(event("DTSTART:20260326T090000")), [("26 09:00", None)]),
    "for a day": (document(event("DTSTART;VALUE=DATE:20260326")), [("26", None)]),
    "for days from before": (
        document(event("DTSTART;VALUE=DATE:20260310", "DTEND;VALUE=DATE:20260327")),
        [("10", None)],
    ),
    "ended as the time begins": (
        document(event("DTSTART;VALUE=DATE:20260324", "DTEND;VALUE=DATE:20260325")),
        [],
    ),
    "begins as the time ends": (document(event("DTSTART:20260401T220000Z")), []),
    "over midnight into the time": (
        document(
            event(
                "DTSTART;TZID=Europe/Berlin:20260324T233000",
                "DTEND;TZID=Europe/Berlin:20260325T003000",
            )
        ),
        berlin("24 23:30+01"),
    ),
    "daily over the change of clocks": (
        document(event(DAILY_START, "RRULE:FREQ=DAILY;COUNT=4")),
        berlin("27 09:00+01", "28 09:00+01", "29 09:00+02", "30 09:00+02"),
    ),
    "daily in UTC over the change of clocks elsewhere": (
        document(event("DTSTART:20260328T080000Z", "RRULE:FREQ=DAILY;COUNT=2")),
        [("28 08:00+00", "UTC"), ("29 08:00+00", "UTC")],
    ),
    "in the hour that the clocks skip": (
        document(event("DTSTART;TZID=Europe/Berlin:20260328T023000", "RRULE:FREQ=DAILY;COUNT=3")),
        berlin("28 02:30+01", "29 03:30+02", "30 02:30+02"),
    ),
    "since long ago": (
        document(event("DTSTART;TZID=Europe/Berlin:19990104T083000", "RRULE:FREQ=WEEKLY")),
        berlin("30 08:30+02"),
    ),
    "until, in UTC": (
        document(event(DAILY_START, "RRULE:FREQ=DAILY;UNTIL=20260329T070000Z")),
        berlin("27 09:00+01", "28 09:00+01", "29 09:00+02"),
    ),
    "the last weekday of a month": (
        document(
            event(
                "DTSTART;TZID=Europe/Berlin:20260130T100000",
                "RRULE:FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1",
            )
        ),
        berlin("31 10:00+02"),
    ),
    "every other week on two days": (
        document(event(DAILY_START, "RRULE:FREQ=WEEKLY;INTERVAL=2;BYDAY=FR,SA;WKST=MO")),
        berlin("27 09:00+01", "28 09:00+01"),
    ),
    "a 29th of February": (
        document(event("DTSTART;VALUE=DATE:20240229", "RRULE:FREQ=YEARLY")),
        [],
    ),
    "without some": (
        document(
            event(
                DAILY_START,
                "RRULE:FREQ=DAILY;COUNT=4",
                "EXDATE;TZID=Europe/Berlin:20260328T090000,20260329T090000",
            )
        ),
        berlin("27 09:00+01", "30 09:00+02"),
    ),
    "with some more": (
        document(event(DAILY_START, "RDATE;TZID=Europe/Berlin:20260328T150000,20260331T090000")),
        berlin("27 09:00+01", "28 15:00+01", "31 09:00+02"),
    ),
    "with a period more": (
        document(event("DTSTART:20260326T090000Z", "RDATE;VALUE=PERIOD:20260327T120000Z/PT3H")),
        [("26 09:00+00", "UTC"), ("27 12:00+00", "UTC")],
    ),
    "one moved": (
        document(
            event(DAILY_START, "RRULE:FREQ=DAILY;COUNT=3"),
            event(
                "RECURRENCE-ID;TZID=Europe/Berlin:20260328T090000",
                "DTSTART;TZID=Europe/Berlin:20260328T140000",
            ),
        ),
        berlin("27 09:00+01", "28 14:00+01", "29 09:00+02"),
    ),
    "one moved out of the time": (
        document(
            event(DAILY_START, "RRULE:FREQ=DAILY;COUNT=3"),
            event("RECURRENCE-ID:20260328T080000Z", "DTSTART:20260601T080000Z"),
        ),
        berlin("27 09:00+01", "29 09:00+02"),
    ),
    "one moved into the time": (
        document(
            event("DTSTART:20250101T080000Z", "RRULE:FREQ=YEARLY;COUNT=2"),
            event("RECURRENCE-ID:20260101T080000Z", "DTSTART:20260326T080000Z"),
        ),
        [("26 08:00+00", "UTC")],
    ),
    "that one and all after it moved": (
        document(
            event(DAILY_START, "RRULE:FREQ=DAILY;COUNT=3"),
            event(
                "RECURRENCE-ID;RANGE=THISANDFUTURE;TZID=Europe/Berlin:20260328T090000",
                "DTSTART;TZID=Europe/Berlin:20260328T110000",
            ),
        ),
        berlin("27 09:00+01", "28 11:00+01", "29 11:00+02"),
    ),
    "in a zone of its own": (
        document(ZONE_DEFINITIONS["Own"], event("DTSTART;TZID=Own:20260326T090000")),
        [("26 09:00+02", "Own")],
    ),
    "in a zone of that name elsewhere": (
        document(ZONE_DEFINITIONS["Own elsewhere"], event("DTSTART;TZID=Own:20260326T090000")),
        [("26 09:00-07", "Own")],
    ),
    "in a zone of that name that nobody explains": (
        document(event("DTSTART;TZID=Own:20260326T090000")),
        [("26 09:00", None)],
    ),
    "in a zone as Windows names it": (
        document(event('DTSTART;TZID="W. Europe Standard Time":20260326T090000')),
        berlin("26 09:00+01"),
    ),
    "in the zone of the whole calendar": (
        document(event("DTSTART:20260326T080000Z"), head="X-WR-TIMEZONE:Europe/Berlin"),
        berlin("26 09:00+01"),
    ),
    "folded and in small letters": (
        document(
            event("DTSTART;TZID=Europe/Ber\n lin:20260326T090000", "RRULE:FREQ=DAILY;COU\n NT=1")
        )
        .replace("BEGIN:VEVENT", "begin:vevent")
        .replace("END:VEVENT", "end:vevent"),
        berlin("26 09:00+01"),
    ),
    "several documents in one": (
        document(event("DTSTART:20260326T090000Z"))
        + document(event("DTSTART:20260327T090000Z", uid="two")),
        [("26 09:00+00", "UTC"), ("27 09:00+00", "UTC")],
    ),
    "a newer version of the same": (
        document(
            event("SEQUENCE:1", "DTSTART:20260326T090000Z"),
            event("SEQUENCE:2", "DTSTART:20260327T090000Z"),
        ),
        [("27 09:00+00", "UTC")],
    ),
    "without a UID": (
        document(event("DTSTART:20260326T090000Z").replace("UID:one\n", "")),
        [("26 09:00+00", "UTC")],
    ),
    "what is to be done, not when": (
        document("BEGIN:VTODO\nUID:1\nDUE:20260326T090000Z\nEND:VTODO\n"),
        [],
    ),
}


@pytest.fixture(scope="module")
def expanded_cases() -> dict[str, list[tuple[str, str | None]]]:
    """Return the events of all cases; each case is a calendar of its own."""
    answer = asked({name: text for name, (text, _) in RECURRENCE_CASES.items()})
    assert (answer["unreadable"], answer["left_out"]) == ([], [])
    events: dict[str, list[tuple[str, str | None]]] = {name: [] for name in RECURRENCE_CASES}
    for event in answer["events"]:
        events[event["calendar"]].append((brief_time(event["start"]), event["zone"]))
    return events


def brief_time(start: str) -> str:
    """Return the day, the hour and minute, and the hours of the offset."""
    day, _, time = start.partition("T")
    return day[-2:] + (f" {time[:5]}{time[8:11]}" if time else "")


@pytest.mark.parametrize("name", RECURRENCE_CASES)
def test_an_event_is_listed_at_its_times(
    expanded_cases: dict[str, list[tuple[str, str | None]]], name: str
) -> None:
    """Day, local time, offset and zone of each occurrence, in their order."""
    assert expanded_cases[name] == RECURRENCE_CASES[name][1]


def test_the_answer_has_all_fields_of_an_event() -> None:
    """It also has the changes of a single occurrence."""
    text = document(
        event(
            DAILY_START,
            "DURATION:PT90M",
            "RRULE:FREQ=DAILY;COUNT=2",
            "SUMMARY:Réunion\\, weekly",
            "LOCATION:Room 7",
            f"DESCRIPTION:{'long ' * 400}",
            "STATUS:CONFIRMED",
            "ORGANIZER;CN=Ada:mailto:ada@example.com",
            "URL:https://example.com/1",
        ),
        event(
            "RECURRENCE-ID;TZID=Europe/Berlin:20260328T090000",
            "DTSTART;TZID=Europe/Berlin:20260328T090000",
            "STATUS:CANCELLED",
            "SUMMARY:Off",
        ),
    )

    first, second = asked({"team": text})["events"]

    assert first["description"].endswith("long long [cut]")
    assert first == {
        "calendar": "team",
        "description": first["description"],
        "summary": "Réunion, weekly",
        "start": "2026-03-27T09:00:00+01:00",
        "end": "2026-03-27T10:30:00+01:00",
        "all_day": False,
        "zone": "Europe/Berlin",
        "recurring": True,
        "uid": "one",
        "status": "confirmed",
        "location": "Room 7",
        "organizer": "mailto:ada@example.com",
        "url": "https://example.com/1",
    }
    assert (second["status"], second["summary"]) == ("cancelled", "Off")


def test_an_event_must_contain_all_search_words() -> None:
    """Words may be in summary, description or location, in any case; overrides count, too."""
    text = document(
        event(DAILY_START, "SUMMARY:Stand-up", "LOCATION:Büro 7", "RRULE:FREQ=DAILY;COUNT=2"),
        event("RECURRENCE-ID:20260328T080000Z", "DTSTART:20260328T080000Z", "SUMMARY:Retro BÜRO"),
        event(DAILY_START, "SUMMARY:Other", uid="two"),
    )

    def sought(*words: str) -> list[str]:
        return [event["summary"] for event in asked({"a": text}, words=list(words))["events"]]

    assert sought("büro") == ["Stand-up", "Retro BÜRO"]
    assert sought("stand", "7") == ["Stand-up"]
    assert sought("stand", "retro") == []


RULES = st.builds(
    "DTSTART;TZID=Europe/Berlin:2026{:02d}{:02d}T{:02d}1500\nRRULE:FREQ={};INTERVAL={}{}".format,
    st.integers(1, 3),
    st.integers(1, 28),
    st.integers(4, 23),  # the change of clocks at night has cases of its own
    st.sampled_from(["DAILY", "WEEKLY", "MONTHLY"]),
    st.integers(1, 5),
    st.sampled_from(["", ";COUNT=30", ";BYDAY=MO,WE,SA", ";BYMONTH=3", ";UNTIL=20260330T120000Z"]),
)


def by_another_way(rule: str) -> list[str]:
    """Return the same times by dateutil alone, in local time."""
    start, _, recurs = rule.partition("\n")
    begins = datetime.strptime(start[-15:], "%Y%m%dT%H%M%S")
    day = timedelta(1)
    wall = rrulestr(recurs.replace("T120000Z", "T140000"), dtstart=begins).between(
        RANGE_START.replace(tzinfo=None) - day, RANGE_END.replace(tzinfo=None) + day
    )
    # The first time counts although the rule may not meet it (RFC 5545 section 3.8.5.3).
    times = {moment.replace(tzinfo=BERLIN) for moment in [*wall, begins]}
    return [moment.isoformat() for moment in sorted(times) if RANGE_START <= moment < RANGE_END]


@settings(max_examples=3, deadline=None)
@given(st.lists(RULES, min_size=10, max_size=20, unique=True))
def test_recurrence_rules_agree_with_dateutil(rules: list[str]) -> None:
    """Gatepost finds the same occurrences as dateutil."""
    answer = asked({rule: document(event(rule)) for rule in rules})
    starts: dict[str, list[str]] = {rule: [] for rule in rules}
    for recurring in answer["events"]:
        starts[recurring["calendar"]].append(recurring["start"])

    assert starts == {rule: by_another_way(rule) for rule in rules}
