"""One server with every kind of calendar, and the servers that these come from."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.packs.calendar.caldav_servers import CalDavServer, CalendarSite, radicale, served
from tests.packs.servers import PackServer, SecretWriter, open_server


@pytest.fixture(autouse=True)
def beginning(request: pytest.FixtureRequest) -> None:
    """No test meets the calendars that another made; there is one to begin with."""
    if "world" in request.fixturenames:
        world: CalendarServers = request.getfixturevalue("world")
        world.dav.clear()
        world.dav.make("ada-of-acme", "main")


class CalendarServers(NamedTuple):
    """Everything there is."""

    server: PackServer
    secrets: SecretWriter
    web: CalendarSite
    web_url: str
    dav: CalDavServer


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CalendarServers]:
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
