"""iCalendar documents, servers that offer them, and a Gatepost that reads them."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from tests.packs.conftest import PackServer, SecretWriter, open_server
from tests.support.issuers import AsgiServer
from tests.support.processes import Process, free_port, python_environment

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


USERS = {"ada-of-acme": "ada's first word", "ada-of-globex": "ada's other word"}
"""Both call their calendars the same."""


NAMED = """<c:mkcalendar xmlns:d="DAV:" xmlns:c="urn:ietf:params:xml:ns:caldav">
<d:set><d:prop><d:displayname>The {}</d:displayname></d:prop></d:set></c:mkcalendar>"""


class CalendarSite:
    """Answers each path with what a test put there: status, headers, body."""

    def __init__(self) -> None:
        self.pages: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.asked: list[tuple[str, str, dict[str, str]]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.asked.append((scope["method"], scope["path"], headers))
        if scope["path"] == "/slow":
            await asyncio.wait_for(receive_until_gone(receive), 20)
            return
        status, answered, body = self.pages.get(scope["path"], (404, {}, b"nothing"))
        named = [(name.encode(), value.encode()) for name, value in answered.items()]
        await send({"type": "http.response.start", "status": status, "headers": named})
        await send({"type": "http.response.body", "body": body})


async def receive_until_gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue


@contextmanager
def served(web: CalendarSite) -> Iterator[AsgiServer]:
    server = AsgiServer(web).start()
    try:
        yield server
    finally:
        server.stop()


CALENDARS = ("main", "other", "same")


class CalDavServer:
    """A CalDAV server with two users, each with some of these calendars."""

    def __init__(self, port: int, client: httpx2.Client) -> None:
        self.host, self.url = f"127.0.0.1:{port}", f"http://127.0.0.1:{port}/"
        self._client = client

    def make(self, user: str, calendar: str, **texts: str) -> None:
        """A calendar with these documents."""
        auth, at = (user, USERS[user]), f"{self.url}{user}/{calendar}/"
        named = NAMED.format(calendar.title())
        made = self._client.request("MKCALENDAR", at, content=named, auth=auth)
        assert made.status_code in (201, 405, 409)
        for name, text in texts.items():
            put = self._client.put(f"{at}{name}.ics", content=text.encode(), auth=auth)
            assert put.status_code in (201, 204), put.text

    def clear(self) -> None:
        """No calendar, as it was at the start."""
        for user, word in USERS.items():
            for calendar in CALENDARS:
                gone = self._client.delete(f"{self.url}{user}/{calendar}/", auth=(user, word))
                assert gone.status_code in (200, 204, 404), gone.text


@contextmanager
def radicale(folder: Path) -> Iterator[CalDavServer]:
    """Running on loopback, with users who sign in."""
    port = free_port()
    (folder / "users").write_text("".join(f"{name}:{word}\n" for name, word in USERS.items()))
    process = Process(
        [
            *(sys.executable, "-m", "radicale", f"--server-hosts=127.0.0.1:{port}"),
            *("--auth-type=htpasswd", f"--auth-htpasswd-filename={folder / 'users'}"),
            *("--auth-htpasswd-encryption=plain", "--auth-delay=0.01", "--logging-level=info"),
            f"--storage-filesystem-folder={folder / 'storage'}",
        ],
        env=python_environment({"RADICALE_CONFIG": ""}),
        cwd=folder,
    )
    try:
        process.wait_for(r"Radicale server ready", timeout_s=20)
        with httpx2.Client(timeout=60, trust_env=False) as client:
            yield CalDavServer(port, client)
    finally:
        process.stop()


@pytest.fixture(autouse=True)
def beginning(request: pytest.FixtureRequest) -> None:
    """No test meets the calendars that another made; there is one to begin with."""
    if "calendar_servers" in request.fixturenames:
        calendar_servers: CalendarServers = request.getfixturevalue("calendar_servers")
        calendar_servers.dav.clear()
        calendar_servers.dav.make("ada-of-acme", "main")


class CalendarServers(NamedTuple):
    """The calendar servers and the Gatepost of these tests."""

    server: PackServer
    secrets: SecretWriter
    web: CalendarSite
    web_url: str
    dav: CalDavServer


@pytest.fixture(scope="module")
def calendar_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CalendarServers]:
    """Running as long as the tests of a module do."""
    web, secrets, folder = CalendarSite(), SecretWriter(), tmp_path_factory.mktemp("calendars")
    with served(web) as site, radicale(tmp_path_factory.mktemp("radicale")) as dav:
        host = site.url.removeprefix("http://")
        signed = {"user": "secret:DAV_USER", "password": "secret:DAV_PASSWORD"}
        calendars = {
            "team": {"url": f"{site.url}/team.ics"},
            "signed": {"url": f"{site.url}/signed.ics"} | signed,
            "hidden": {"url": "secret:CALENDAR_URL"},
            "inside": {"url": "http://127.0.0.1:9999/a.ics"},
            "plans": {"path": "plans"},
            "file": {"path": "one.ics", "zone": "America/New_York"},
            "own": {"path": "one.ics", "tenants": ["elsewhere"]},
            "dav": {"caldav": dav.url} | signed,
            "main": {"caldav": f"{dav.url}ada-of-acme/main/"} | signed,
            "astray": {"caldav": f"{site.url}/dav/"} | signed,
            "bomb": {"caldav": f"{site.url}/bomb/"} | signed,
        }
        settings = {"calendars": calendars, "timeout_s": 20, "max_bytes": 200_000}
        with open_server(
            folder,
            ["calendar"],
            network={"allow_hosts": [host, dav.host]},
            packs={"calendar": settings | {"zone": "Europe/Berlin"}},
            prepare=secrets.begin,
        ) as server:
            yield CalendarServers(server, secrets, web, site.url, dav)
