"""A person who may write into a calendar can neither stop the server nor hide other events."""

from pathlib import Path

import pytest

from gatepost import ToolFailure
from gatepost_packs.calendar import tools
from tests.packs.calendar.test_recurrence import document, event, worker_answer
from tests.support.measuring import each

pytestmark = pytest.mark.requirement("P7")

EVENT_START = "DTSTART:20260326T090000Z"
TOO_MANY_RECURRENCES = "it recurs more often than can be listed"
INVALID_CALENDAR = "it is not valid iCalendar"

# Left out with what reason; None: it may be listed or not, but is not worth a word.
EVENTS: dict[str, tuple[str, str | None]] = {
    "every second since 1970": (
        event("DTSTART:19700101T000000Z", "RRULE:FREQ=SECONDLY"),
        TOO_MANY_RECURRENCES,
    ),
    "every second of a day that never comes": (
        event("DTSTART:19700101T000000Z", "RRULE:FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30"),
        TOO_MANY_RECURRENCES,
    ),
    "every second now": (event(EVENT_START, "RRULE:FREQ=SECONDLY"), TOO_MANY_RECURRENCES),
    "every minute for a thousand years": (
        event("DTSTART:10260326T090000Z", "RRULE:FREQ=MINUTELY;UNTIL=30260326T090000Z"),
        TOO_MANY_RECURRENCES,
    ),
    "so often that no number holds it": (
        event(EVENT_START, f"RRULE:FREQ=DAILY;COUNT={9**99}"),
        INVALID_CALENDAR,
    ),
    "so seldom that no number holds it": (
        event(EVENT_START, f"RRULE:FREQ=DAILY;INTERVAL={9**99}"),
        INVALID_CALENDAR,
    ),
    "never": (event(EVENT_START, "RRULE:FREQ=DAILY;INTERVAL=0"), None),
    "by a rule that is none": (event(EVENT_START, "RRULE:FREQ=NEVER"), INVALID_CALENDAR),
    "by a rule with two ends": (
        event(EVENT_START, "RRULE:FREQ=DAILY;UNTIL=20260401;UNTIL=20260402"),
        None,
    ),
    "at no time": (event("DTSTART:soon"), INVALID_CALENDAR),
    "without a time": (event("SUMMARY:when?"), None),
    "in the year 0": (event("DTSTART:00000101T000000Z", "RRULE:FREQ=DAILY"), INVALID_CALENDAR),
    "to the end of time": (event("DTSTART:00010101T000000Z", "DTEND:99991231T235959Z"), None),
    "of a duration that no number holds": (
        event(EVENT_START, f"DURATION:P{9**40}D"),
        INVALID_CALENDAR,
    ),
    "ended before it began": (event(EVENT_START, "DTEND:20260320T090000Z"), None),
    "a day, ended by a time": (
        event("DTSTART;VALUE=DATE:20260326", "DTEND:20260326T100000Z"),
        None,
    ),
    "in a zone that is a path": (event("DTSTART;TZID=../../../etc/passwd:20260326T090000"), None),
    "with half a character": (event(EVENT_START, "SUMMARY:\udcff\udcfe"), None),
}

GOOD_EVENT = event("DTSTART:20260327T090000Z", "SUMMARY:seen", uid="good")


def test_an_event_that_cannot_be_read_hides_no_other() -> None:
    """The answer names the event and the reason, and has the other events of the calendar."""
    answer = worker_answer(
        {name: document(text, GOOD_EVENT) for name, (text, _) in EVENTS.items()}, seconds=2
    )

    seen = [event["calendar"] for event in answer["events"] if event["summary"] == "seen"]
    reasons = {entry["calendar"]: entry["reason"] for entry in answer["left_out"]}
    assert (sorted(seen), answer["unreadable"]) == (sorted(EVENTS), [])
    assert {name: reason for name, (_, reason) in EVENTS.items() if reason}.items() <= (
        reasons.items()
    )


DOCUMENTS = {
    "nothing": "",
    "a page": "<html><body>Please sign in</body></html>",
    "the name of a file": "/etc/passwd",
    "the name of a file after the word": "BEGIN:VCALENDAR/../../../../../etc/hostname",
    "no end": "BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\n",
    "components in components": document("BEGIN:VEVENT\n" * 50_000),
    "components in components, in small letters": document(
        "begin:x-a\n" * 50_000 + "end:x-a\n" * 50_000
    ),
    "ends alone": document("END:VEVENT\n" * 1_000),
    "zeros": "BEGIN:VCALENDAR\r\n" + "\0" * 10_000,
    "another calendar": document(event(EVENT_START), head="CALSCALE:CHINESE"),
    "a zone without end": document(
        "BEGIN:VTIMEZONE\nTZID:X\nBEGIN:STANDARD\nDTSTART:19700101T000000\nTZOFFSETFROM:+0000\n"
        "TZOFFSETTO:+0100\nRRULE:FREQ=SECONDLY\nEND:STANDARD\nEND:VTIMEZONE\n",
        event("DTSTART;TZID=X:20260326T090000"),
    ),
}


def test_a_document_that_cannot_be_read_hides_no_other() -> None:
    """For any document, the answer has no content of the machine's files."""
    answer = worker_answer(DOCUMENTS | {"good": document(GOOD_EVENT)})

    assert "seen" in [event["summary"] for event in answer["events"]]
    assert "root:" not in str(answer)


def test_hundreds_of_hostile_events_leave_time_for_another_calendar() -> None:
    """Each calendar has its share of the time."""
    bad = "".join(
        event("DTSTART:19700101T000000Z", "RRULE:FREQ=SECONDLY", uid=str(number))
        for number in range(150)
    )

    answer = worker_answer({"bad": document(bad), "good": document(GOOD_EVENT)}, seconds=0.5)

    assert [event["summary"] for event in answer["events"]] == ["seen"]
    assert len(answer["left_out"]) == 150


@each("result", ["['x']", "None", "{}", "{'events': [{}]}"])
async def test_a_worker_that_answers_a_value_of_another_type_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: str
) -> None:
    """A calendar may have broken a library."""
    program = tmp_path / "worker.py"
    program.write_text(f"def answer(request):\n    return {result}\n", encoding="utf-8")
    with monkeypatch.context() as patched:
        patched.setattr(tools, "WORKER", program)
        with pytest.raises(ToolFailure, match="too much memory or time to parse"):
            await tools._read({}, 20)
