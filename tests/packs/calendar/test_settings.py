"""`gatepost check` finds calendars that cannot be read."""

from typing import Any

import msgspec
import pytest

from gatepost_packs.calendar.settings import CalendarSettings

pytestmark = pytest.mark.requirement("P7")

CREDENTIAL_FIELDS = {"user": "ada", "password": "secret:WORD"}
VALID_SETTINGS = [
    {},
    {"zone": "Europe/Berlin", "calendars": {"a": {"url": "https://a.example/a.ics"}}},
    {"calendars": {"a": {"url": "secret:URL"}, "b.2": {"path": "x", "zone": "Asia/Tokyo"}}},
    {"calendars": {"a": {"caldav": "http://dav.corp.example:8080/"} | CREDENTIAL_FIELDS}},
]


@pytest.mark.parametrize("table", VALID_SETTINGS)
def test_valid_calendars_are_not_reported(table: dict[str, Any]) -> None:
    """Each kind is valid, with references to secrets."""
    assert list(msgspec.convert(table, CalendarSettings).faults()) == []


URL = {"url": "https://a.example/a.ics"}
REFUSED_SETTINGS = [
    ({}, "calendars.a.url", "one source, not 0"),
    (URL | {"path": "x"}, "calendars.a.path", "one source, not 2"),
    (URL | {"zone": "Mars"}, "calendars.a.zone", "'Mars' is not a time zone"),
    (URL | {"zone": "../../etc/passwd"}, "calendars.a.zone", "is not a time zone"),
    (URL | {"user": "ada"}, "calendars.a.user", "must be set together"),
    (
        URL | {"user": "ada", "password": "w0rd"},
        "calendars.a.password",
        "not a reference to a secret",
    ),
    (
        URL | {"user": "ada", "password": "secret:w0rd"},
        "calendars.a.password",
        "not a reference to a secret",
    ),
    ({"url": "secret:address"}, "calendars.a.url", "not a valid name of a secret"),
    ({"path": "x"} | CREDENTIAL_FIELDS, "calendars.a.user", "needs no user and password"),
    ({"url": "webcal://a.example/a.ics"}, "calendars.a.url", "not an http or https URL"),
    ({"url": "file:///etc/passwd"}, "calendars.a.url", "not an http or https URL"),
    ({"url": "https://[a/"}, "calendars.a.url", "it is not a URL"),
    ({"caldav": "https://ada:w0rd@a.example/"}, "calendars.a.caldav", "it contains a user name"),
]


@pytest.mark.parametrize(
    ("calendar", "setting", "expected_text"),
    REFUSED_SETTINGS,
    ids=[str(bad[0]) for bad in REFUSED_SETTINGS],
)
def test_invalid_calendars_are_reported(
    calendar: dict[str, Any], setting: str, expected_text: str
) -> None:
    """The error names the calendar and the reason, and shows no password."""
    (fault,) = msgspec.convert({"calendars": {"a": calendar}}, CalendarSettings).faults()

    assert fault.setting == setting
    assert expected_text in fault.message
    assert "w0rd" not in fault.message + fault.hint


@pytest.mark.parametrize(
    ("table", "setting"),
    [
        ({"zone": "Nowhere"}, "zone"),
        ({"max_days": 0}, "max_days"),
        ({"max_bytes": 50_000_001}, "max_bytes"),
        ({"timeout_s": 61}, "timeout_s"),
        ({"calendars": {"a b": URL}}, "calendars.a b"),
        ({"calendars": {"a/b": URL}}, "calendars.a/b"),
    ],
)
def test_other_settings_are_bounded(table: dict[str, Any], setting: str) -> None:
    """Each value outside its bounds is reported with its setting."""
    (fault,) = msgspec.convert(table, CalendarSettings).faults()

    assert fault.setting == setting
