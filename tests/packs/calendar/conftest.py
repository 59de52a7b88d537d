"""One server with every kind of calendar, and the servers that these come from."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.packs.calendar.world import Dav, Web, radicale, served
from tests.packs.keeping import Keeping
from tests.packs.office import Office, open_office


@pytest.fixture(autouse=True)
def beginning(request: pytest.FixtureRequest) -> None:
    """No test meets the calendars that another made; there is one to begin with."""
    if "world" in request.fixturenames:
        world: World = request.getfixturevalue("world")
        world.dav.clear()
        world.dav.make("ada-of-acme", "main")


class World(NamedTuple):
    """Everything there is."""

    office: Office
    keeping: Keeping
    web: Web
    web_url: str
    dav: Dav


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Running as long as the tests of a module do."""
    web, keeping, folder = Web(), Keeping(), tmp_path_factory.mktemp("calendars")
    with served(web) as server, radicale(tmp_path_factory.mktemp("radicale")) as dav:
        host = server.url.removeprefix("http://")
        signed = {"user": "secret:DAV_USER", "password": "secret:DAV_PASSWORD"}
        calendars = {
            "team": {"url": f"{server.url}/team.ics"},
            "signed": {"url": f"{server.url}/signed.ics"} | signed,
            "hidden": {"url": "secret:CALENDAR_URL"},
            "inside": {"url": "http://127.0.0.1:9999/a.ics"},
            "plans": {"path": "plans"},
            "file": {"path": "one.ics", "zone": "America/New_York"},
            "own": {"path": "one.ics", "tenants": ["elsewhere"]},
            "dav": {"caldav": dav.url} | signed,
            "main": {"caldav": f"{dav.url}ada-of-acme/main/"} | signed,
            "astray": {"caldav": f"{server.url}/dav/"} | signed,
            "bomb": {"caldav": f"{server.url}/bomb/"} | signed,
        }
        settings = {"calendars": calendars, "timeout_s": 20, "max_bytes": 200_000}
        with open_office(
            folder,
            ["calendar"],
            network={"allow_hosts": [host, dav.host]},
            packs={"calendar": settings | {"zone": "Europe/Berlin"}},
            prepare=keeping.begin,
        ) as office:
            yield World(office, keeping, web, server.url, dav)
