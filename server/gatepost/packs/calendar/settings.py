"""`[packs.calendar]`: which calendars there are, and how long reading them may take."""

from collections.abc import Iterator
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

import msgspec

from gatepost.packs.table import ENTRY, REFERENCE, Fault, PackSettings, is_reference

LONGEST_S = 60.0
LARGEST_BYTES = 50_000_000
LONGEST_DAYS = 3_660


class Calendar(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One source of events; exactly one of url, path and caldav."""

    url: str = ""
    """An iCalendar document on the web, or `secret:NAME` where its address is the secret."""
    path: str = ""
    """An `.ics` file, or a folder of them, in the workspace of the tenant that asks."""
    caldav: str = ""
    """A CalDAV calendar, or a principal or home whose calendars are all read."""
    user: str = ""
    """Who signs in (Basic): a name, or `secret:NAME`."""
    password: str = ""
    """`secret:NAME`: the tenant's secret that it signs in with."""
    zone: str = ""
    """Time zone of times that name none and of whole days; default: `packs.calendar.zone`."""
    tenants: tuple[str, ...] = ()
    """The only tenants that have this calendar; default: all."""

    @property
    def address(self) -> str:
        """Where it is fetched from; empty for a file of the workspace."""
        return self.url or self.caldav


class CalendarSettings(PackSettings, frozen=True):
    """The pack `calendar`."""

    calendars: dict[str, Calendar] = {}
    """Each calendar by the name that agents give."""
    zone: str = "UTC"
    """Time zone of times that name none, in questions and in calendars."""
    max_days: int = 366
    """How long a time one question may ask about."""
    max_bytes: int = 10_000_000
    """How large the documents of one calendar may be together."""
    timeout_s: float = 15.0
    """How long fetching a calendar, and then reading all of them, may take each; at most 60."""

    def faults(self) -> Iterator[Fault]:
        """What is wrong with the values, beyond their types."""
        if not _is_zone(self.zone):
            yield _no_zone("zone", self.zone)
        for setting, value, most in (
            ("max_days", self.max_days, LONGEST_DAYS),
            ("max_bytes", self.max_bytes, LARGEST_BYTES),
            ("timeout_s", self.timeout_s, LONGEST_S),
        ):
            if not 0 < value <= most:
                yield Fault(setting, f"it must be more than 0 and at most {most:g}")
        for name, calendar in self.calendars.items():
            if not ENTRY.fullmatch(name):
                yield Fault(
                    f"calendars.{name}",
                    f"{name!r} is not a name for a calendar",
                    "letters, digits, `_`, `-` and `.`, at most 64 characters",
                )
            for fault in _faults(calendar):
                yield Fault(f"calendars.{name}.{fault.setting}", fault.message, fault.hint)


def _faults(calendar: Calendar) -> Iterator[Fault]:
    given = [field for field in ("url", "path", "caldav") if getattr(calendar, field)]
    if len(given) != 1:
        yield Fault(
            given[1] if given else "url",
            f"a calendar has one source, not {len(given)}",
            "set one of url, path and caldav",
        )
    if calendar.zone and not _is_zone(calendar.zone):
        yield _no_zone("zone", calendar.zone)
    if calendar.password and not is_reference(calendar.password):
        # The value is not shown: somebody may have put the password itself here.
        yield Fault("password", "it is no reference to a secret", "write secret:NAME")
    if bool(calendar.user) != bool(calendar.password):
        yield Fault("user", "`user` and `password` come together", "set both, or neither")
    if calendar.path and calendar.user:
        yield Fault("user", "a file of the workspace needs nobody to sign in", "leave it out")
    for field in ("url", "caldav"):
        if fault := _address_fault(field, getattr(calendar, field)):
            yield fault


def _address_fault(field: str, address: str) -> Fault | None:
    if not address or is_reference(address):
        return None
    if address.startswith(REFERENCE):
        return Fault(field, "that is no name of a secret", "write secret:CALENDAR_URL")
    try:
        parts = urlsplit(address)
    except ValueError:
        return Fault(field, "it is not a URL")
    if parts.scheme not in {"https", "http"} or not parts.hostname:
        return Fault(field, "it is not an http or https URL", "webcal:// is https:// in truth")
    if "@" in parts.netloc:
        return Fault(field, "it holds a user name", 'set user and password = "secret:NAME"')
    return None


def _is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        return False
    return True


def _no_zone(setting: str, name: str) -> Fault:
    hint = "a name of the IANA database, for example Europe/Berlin"
    return Fault(setting, f"{name!r} is not a time zone", hint)
