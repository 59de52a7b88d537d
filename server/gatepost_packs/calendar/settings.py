"""`[packs.calendar]`: the calendars, and the time limit for reading them."""

from collections.abc import Iterator
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

import msgspec

from gatepost import REFERENCE_PREFIX, PackSettings, SettingFault, is_reference
from gatepost_packs.settings_names import ENTRY

LONGEST_S = 60.0
LARGEST_BYTES = 50_000_000
LONGEST_DAYS = 3_660


class Calendar(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One source of events; exactly one of url, path and caldav."""

    url: str = ""
    """URL of an iCalendar document, or `secret:NAME` if its address is the secret."""
    path: str = ""
    """An `.ics` file, or a folder of them, in the workspace of the calling tenant."""
    caldav: str = ""
    """URL of a CalDAV calendar, or of a principal or home whose calendars are all read."""
    user: str = ""
    """User name for signing in (Basic), or `secret:NAME`."""
    password: str = ""
    """`secret:NAME`: the tenant's secret that holds the password."""
    zone: str = ""
    """Time zone of whole days and of times without a zone; default: `packs.calendar.zone`."""
    tenants: tuple[str, ...] = ()
    """The only tenants that have this calendar; default: all."""

    @property
    def address(self) -> str:
        """Return the URL that it is fetched from; empty for a file of the workspace."""
        return self.url or self.caldav


class CalendarSettings(PackSettings, frozen=True):
    """The pack `calendar`."""

    calendars: dict[str, Calendar] = {}
    """The calendars, by the names that agents use."""
    zone: str = "UTC"
    """Time zone of times without a zone, in calls and in calendars."""
    max_days: int = 366
    """Longest period of one call, in days."""
    max_bytes: int = 10_000_000
    """Maximum number of bytes of the documents of one calendar."""
    timeout_s: float = 15.0
    """Seconds for fetching a calendar, and again for parsing all of them; at most 60."""

    def faults(self) -> Iterator[SettingFault]:
        """Yield problems with the values, beyond their types."""
        if not _is_zone(self.zone):
            yield _no_zone(self.zone)
        for setting, value, limit in (
            ("max_days", self.max_days, LONGEST_DAYS),
            ("max_bytes", self.max_bytes, LARGEST_BYTES),
            ("timeout_s", self.timeout_s, LONGEST_S),
        ):
            if not 0 < value <= limit:
                yield SettingFault(setting, f"it must be more than 0 and at most {limit:g}")
        for name, calendar in self.calendars.items():
            if not ENTRY.fullmatch(name):
                yield SettingFault(
                    f"calendars.{name}",
                    f"{name!r} is not a name for a calendar",
                    "letters, digits, `_`, `-` and `.`, at most 64 characters",
                )
            for fault in _faults(calendar):
                yield SettingFault(f"calendars.{name}.{fault.setting}", fault.message, fault.hint)


def _faults(calendar: Calendar) -> Iterator[SettingFault]:
    locations = [field for field in ("url", "path", "caldav") if getattr(calendar, field)]
    if len(locations) != 1:
        yield SettingFault(
            locations[1] if locations else "url",
            f"a calendar has one source, not {len(locations)}",
            "set one of url, path and caldav",
        )
    if calendar.zone and not _is_zone(calendar.zone):
        yield _no_zone(calendar.zone)
    if calendar.password and not is_reference(calendar.password):
        # The value is not shown: it may be the password itself.
        yield SettingFault("password", "it is not a reference to a secret", "write secret:NAME")
    if bool(calendar.user) != bool(calendar.password):
        yield SettingFault(
            "user", "`user` and `password` must be set together", "set both, or neither"
        )
    if calendar.path and calendar.user:
        yield SettingFault(
            "user", "a file of the workspace needs no user and password", "leave it out"
        )
    for field in ("url", "caldav"):
        if fault := _address_fault(field, getattr(calendar, field)):
            yield fault


def _address_fault(field: str, address: str) -> SettingFault | None:
    if not address or is_reference(address):
        return None
    if address.startswith(REFERENCE_PREFIX):
        return SettingFault(
            field, "it is not a valid name of a secret", "write secret:CALENDAR_URL"
        )
    try:
        parts = urlsplit(address)
    except ValueError:
        return SettingFault(field, "it is not a URL")
    if parts.scheme not in {"https", "http"} or not parts.hostname:
        return SettingFault(field, "it is not an http or https URL", "webcal:// means https://")
    if "@" in parts.netloc:
        return SettingFault(
            field, "it contains a user name", 'set user and password = "secret:NAME"'
        )
    return None


def _is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        return False
    return True


def _no_zone(name: str) -> SettingFault:
    hint = "a name of the IANA database, for example Europe/Berlin"
    return SettingFault("zone", f"{name!r} is not a time zone", hint)
