"""Calendars are read from wherever they are, by both protocols, and failures help."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from tests.packs.calendar.test_recurrence import document, event
from tests.packs.conftest import (
    HttpServer,
    PackCaller,
    PackServer,
    RecordedRequest,
    StubResponse,
    open_server,
)
from tests.support.client import Protocol
from tests.support.measuring import each
from tests.support.processes import Process, free_port, python_environment

USERS = {"ada-of-acme": "ada's first word", "ada-of-globex": "ada's other word"}
"""Both call their calendars the same."""

MKCALENDAR_BODY = """<c:mkcalendar xmlns:d="DAV:" xmlns:c="urn:ietf:params:xml:ns:caldav">
<d:set><d:prop><d:displayname>The {}</d:displayname></d:prop></d:set></c:mkcalendar>"""


class CalDavServer:
    """A CalDAV server with two users, each with some of three calendars."""

    def __init__(self, port: int, client: httpx2.Client) -> None:
        self.host, self.url = f"127.0.0.1:{port}", f"http://127.0.0.1:{port}/"
        self._client = client

    def make(self, user: str, calendar: str, **texts: str) -> None:
        """Create a calendar with these documents."""
        auth, at = (user, USERS[user]), f"{self.url}{user}/{calendar}/"
        named = MKCALENDAR_BODY.format(calendar.title())
        response = self._client.request("MKCALENDAR", at, content=named, auth=auth)
        assert response.status_code in (201, 405, 409)
        for name, text in texts.items():
            put = self._client.put(f"{at}{name}.ics", content=text.encode(), auth=auth)
            assert put.status_code in (201, 204), put.text

    def clear(self) -> None:
        """Delete every calendar."""
        for user, word in USERS.items():
            for calendar in ("main", "other", "same"):
                gone = self._client.delete(f"{self.url}{user}/{calendar}/", auth=(user, word))
                assert gone.status_code in (200, 204, 404), gone.text


@contextmanager
def radicale(folder: Path) -> Iterator[CalDavServer]:
    """Run Radicale on loopback, with users who sign in."""
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


class CalendarServers(NamedTuple):
    """The calendar servers and the Gatepost of these tests."""

    server: PackServer
    web: HttpServer
    pages: dict[str, StubResponse]
    """What the web server answers by path."""
    dav: CalDavServer


@pytest.fixture(scope="module")
def calendar_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CalendarServers]:
    """Yield the servers, which run until the tests of a module end."""
    folder = tmp_path_factory.mktemp("calendars")
    pages: dict[str, StubResponse] = {}

    def answer(request: RecordedRequest) -> StubResponse | None:
        return None if request.path == "/slow" else pages.get(request.path, StubResponse(404, b""))

    with HttpServer(answer) as site, radicale(tmp_path_factory.mktemp("radicale")) as dav:
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
        usual = {"zone": "Europe/Berlin", "timeout_s": 20, "max_bytes": 200_000}
        packs = {"calendar": usual | {"calendars": calendars}}
        network = {"allow_hosts": [site.place, dav.host]}
        with open_server(folder, ["calendar"], network=network, packs=packs) as server:
            yield CalendarServers(server, site, pages, dav)


@pytest.fixture(autouse=True)
def beginning(calendar_servers: CalendarServers) -> None:
    """Clear the pages and calendars of earlier tests, and make one calendar."""
    calendar_servers.pages.clear()
    calendar_servers.dav.clear()
    calendar_servers.dav.make("ada-of-acme", "main")


pytestmark = pytest.mark.requirement("P7")

MARCH = {"start": "2026-03-01", "end": "2026-03-31"}


def at(day: int, summary: str) -> str:
    uid = f"{summary}@{day}"
    return event(f"DTSTART;TZID=Europe/Berlin:202603{day:02}T090000", f"SUMMARY:{summary}", uid=uid)


@pytest.fixture
def protocol() -> Protocol:
    """Return REST; a test that asks for both protocols overrides it."""
    return "rest"


both = pytest.mark.parametrize("protocol", ["mcp", "rest"])


@pytest.fixture
def agent(calendar_servers: CalendarServers, protocol: Protocol) -> PackCaller:
    """Return an agent of a tenant of its own, which signs in as Ada of Acme."""
    return calendar_servers.server.agent_with(
        protocol,
        DAV_USER="ada-of-acme",
        DAV_PASSWORD=USERS["ada-of-acme"],
        CALENDAR_URL=f"{calendar_servers.web.url}/hidden-9f2c.ics",
    )


def event_rows(value: Any) -> list[tuple[str, str, str]]:
    return [(event["calendar"], event["start"], event["summary"]) for event in value["events"]]


@both
def test_a_document_on_the_web_is_read(
    calendar_servers: CalendarServers, agent: PackCaller
) -> None:
    """The whole answer has the documented form."""
    daily = ("DTSTART;TZID=Europe/Berlin:20260328T090000", "RRULE:FREQ=DAILY", "SUMMARY:Stand-up")
    text = document(event(*daily, "DURATION:PT15M"))
    calendar_servers.pages["/team.ics"] = StubResponse(200, text.encode())

    value = agent.call("calendar_read", **MARCH, calendar="team", limit=3).value

    assert (value["start"], value["end"]) == (
        "2026-03-01T00:00:00+01:00",
        "2026-04-01T00:00:00+02:00",
    )
    assert (value["total"], value["truncated"], value["missing"]) == (4, True, [])
    assert value["events"][1] == {
        "calendar": "team",
        "summary": "Stand-up",
        "start": "2026-03-29T09:00:00+02:00",
        "end": "2026-03-29T09:15:00+02:00",
        "all_day": False,
        "zone": "Europe/Berlin",
        "recurring": True,
        "uid": "one",
        **dict.fromkeys(("status", "location", "description", "organizer", "url")),
    }


def test_a_configured_password_is_sent_with_basic_authentication(
    calendar_servers: CalendarServers, agent: PackCaller
) -> None:
    """It comes from the tenant's secrets; a whole URL may be a secret, too."""
    for path in ("/signed.ics", "/hidden-9f2c.ics"):
        calendar_servers.pages[path] = StubResponse(200, document(at(3, path)).encode())

    signed = agent.call("calendar_read", **MARCH, calendar="signed").value
    hidden = agent.call("calendar_read", **MARCH, calendar="hidden").value

    headers_by_path = {request.path: request.headers for request in calendar_servers.web.asked}
    assert headers_by_path["/signed.ics"]["authorization"].startswith("Basic ")
    assert "authorization" not in headers_by_path["/hidden-9f2c.ics"]
    assert [answer["total"] for answer in (signed, hidden)] == [1, 1]


def test_an_unchanged_document_is_answered_from_the_tenants_cache(
    calendar_servers: CalendarServers,
) -> None:
    """Another tenant sends no ETag from the first one's cache."""
    text = document(at(3, "kept")).encode()
    agent, other = calendar_servers.server.agent("rest"), calendar_servers.server.agent("rest")

    def ask(by: PackCaller, status: int, body: bytes) -> tuple[Any, str | None]:
        calendar_servers.pages["/team.ics"] = StubResponse(status, body, {"etag": '"v1"'})
        reply = by.call("calendar_read", **MARCH, calendar="team")
        sent = calendar_servers.web.asked[-1].headers
        return reply.value and reply.value["total"], sent.get("if-none-match")

    assert ask(agent, 200, text) == (1, None)
    assert ask(agent, 304, b"") == (1, '"v1"')
    assert ask(other, 304, b"") == (None, None)
    assert ask(agent, 200, document().encode()) == (0, '"v1"')


def test_files_of_the_workspace_are_read(agent: PackCaller) -> None:
    """A calendar is one file or a folder; times without zone are in the calendar's zone."""
    (agent.folder / "plans").mkdir(parents=True)
    for name, text in {
        "plans/a.ics": document(at(3, "one")),
        "plans/B.ICS": document(at(2, "two")),
        "plans/notes.txt": "not a calendar",
        "one.ics": document(event("DTSTART:20260305T233000", "SUMMARY:late")),
    }.items():
        (agent.folder / name).write_text(text)

    folder = agent.call("calendar_read", **MARCH, calendar="plans").value
    file = agent.call(
        "calendar_read", start="2026-03-05T23:00-05:00", end="2026-03-06T00:00", calendar="file"
    ).value

    assert [event["summary"] for event in folder["events"]] == ["two", "one"]
    assert event_rows(file) == [("file", "2026-03-05T23:30:00", "late")]
    assert file["end"] == "2026-03-06T00:00:00-05:00"


def test_a_caldav_server_is_read(calendar_servers: CalendarServers, agent: PackCaller) -> None:
    """A calendar by its URL, or all that the root leads to; parts by their URL or name."""
    old = at(5, "old").replace("202603", "202503")
    calendar_servers.dav.make(
        "ada-of-acme", "main", a=document(at(3, "one")), b=document(at(20, "two")), c=document(old)
    )
    calendar_servers.dav.make("ada-of-acme", "other", a=document(at(4, "three")))

    value = agent.call("calendar_read", **MARCH, calendar="main").value
    both = agent.call("calendar_read", **MARCH, calendar="dav").value
    parts = [
        agent.call("calendar_read", **MARCH, calendar=name).value
        for name in ("dav/other", "dav/The Other")
    ]

    assert [event["summary"] for event in value["events"]] == ["one", "two"]
    assert [(event["calendar"], event["summary"]) for event in both["events"]] == [
        ("dav/The Main", "one"),
        ("dav/The Other", "three"),
        ("dav/The Main", "two"),
    ]
    assert [[event["summary"] for event in part["events"]] for part in parts] == [["three"]] * 2


def test_an_unreadable_calendar_does_not_hide_the_others(
    calendar_servers: CalendarServers, agent: PackCaller
) -> None:
    """The answer lists what is missing, and why."""
    calendar_servers.pages["/team.ics"] = StubResponse(200, document(at(3, "one")).encode())
    (agent.folder / "plans").mkdir(parents=True, exist_ok=True)
    (agent.folder / "plans/bad.ics").write_text("nothing of the kind")

    value = agent.call("calendar_read", **MARCH, query="ONE").value

    reasons = [entry["reason"] for entry in value["missing"]]
    assert ("team", "2026-03-03T09:00:00+01:00", "one") in event_rows(value)
    assert any("inside cannot be read" in reason and "allow_hosts" in reason for reason in reasons)
    [whole] = [entry for entry in value["missing"] if "inside cannot be read" in entry["reason"]]
    assert (whole["calendar"], whole["summary"]) == ("inside", None)
    assert any(entry["calendar"] == "plans" for entry in value["missing"])
    assert not any("own" in reason.split() for reason in reasons)


OTHER_REF = b"""<d:multistatus xmlns:d="DAV:"><d:response><d:href>/dav/</d:href><d:propstat><d:prop>
<d:current-user-principal><d:href>http://127.0.0.1:1/ada/</d:href></d:current-user-principal>
</d:prop></d:propstat></d:response></d:multistatus>"""
ENTITY_BOMB = b"""<!DOCTYPE a [<!ENTITY b "ha"><!ENTITY c "&b;&b;&b;">]><a>&c;</a>"""

FAILING_CALLS: list[tuple[dict[str, Any], str, str]] = [
    ({"start": "soon"}, "validation", "`start` should be an ISO 8601 date or time such as"),
    ({"end": "2026-13-01"}, "validation", "`end` should be an ISO 8601"),
    ({"end": "2026-02-01"}, "validation", "`end` .* should be after `start`"),
    (
        {"end": "2027-03-31"},
        "validation",
        "at most 366 days; this is 396. Ask for a shorter period",
    ),
    ({"start": "0001-01-01"}, "validation", "`start` should be between the years 1900"),
    ({"limit": 0}, "validation", "limit"),
    ({"limit": 1001}, "validation", "limit"),
    ({"calendar": "taem"}, "not_found", "no calendar 'taem'. There are: team, signed"),
    ({"calendar": "own"}, "not_found", "There is no calendar 'own'"),
    ({"calendar": "team/x"}, "not_found", "no calendar team/x. There are: team alone"),
    ({"calendar": "dav/none"}, "not_found", "no calendar dav/none. There are: dav/"),
    ({"calendar": "inside"}, "denied", "inside cannot be read: .*allow_hosts"),
    ({"calendar": "file"}, "not_found", "file cannot be read: .*one.ics does not exist"),
    ({"calendar": "team"}, "not_found", "at that URL .HTTP 404"),
    ({"calendar": "hidden"}, "validation", "hidden cannot be read: there is no VCALENDAR in it"),
    (
        {"calendar": "signed"},
        "denied",
        "refuses the credentials .HTTP 401.* secret with the password",
    ),
    ({"calendar": "astray"}, "denied", "another server, which must not get the password"),
    ({"calendar": "bomb"}, "validation", "answer is not XML"),
    ({"calendar": "plans"}, "validation", "large.ics is larger than the 200000 bytes"),
]


@both
@each(("arguments", "kind", "reason"), FAILING_CALLS, ids=[str(fail[0]) for fail in FAILING_CALLS])
def test_a_failure_names_the_argument_or_calendar_and_the_reason(
    calendar_servers: CalendarServers,
    agent: PackCaller,
    arguments: dict[str, Any],
    kind: str,
    reason: str,
) -> None:
    """It shows no password and no secret address."""
    pages = {
        "/signed.ics": StubResponse(401, b""),
        "/hidden-9f2c.ics": StubResponse(200, b"<p>Sign in</p>"),
        "/dav/": StubResponse(207, OTHER_REF),
        "/bomb/": StubResponse(207, ENTITY_BOMB),
    }
    calendar_servers.pages.update(pages)
    (agent.folder / "plans").mkdir(parents=True, exist_ok=True)
    (agent.folder / "plans/large.ics").write_text("BEGIN:VCALENDAR" + "x" * 200_000)

    reply = agent.call("calendar_read", **(MARCH | arguments))

    assert reply.failure is not None
    assert re.search(reason, reply.failure), reply.failure
    assert reply.kind in (None, kind)
    assert "9f2c" not in reply.failure
    assert USERS["ada-of-acme"] not in reply.failure


def test_a_server_that_does_not_answer_times_out(
    calendar_servers: CalendarServers, tmp_path: Path
) -> None:
    """The call gives it up after the configured timeout, and still reads the other calendars."""
    slow = {"slow": {"url": f"{calendar_servers.web.url}/slow"}}
    with open_server(
        tmp_path,
        ["calendar"],
        network={"allow_hosts": [calendar_servers.web.place]},
        packs={"calendar": {"calendars": slow, "timeout_s": 0.3}},
    ) as server:
        reply = server.agent("rest").call("calendar_read", **MARCH)

    assert reply.kind == "timeout"
    assert "slow cannot be read: its server did not answer within 0.3 s" in (reply.failure or "")


def test_a_missing_secret_is_named(calendar_servers: CalendarServers) -> None:
    """The failure also says how an operator sets it."""
    reply = calendar_servers.server.agent("rest").call("calendar_read", **MARCH, calendar="main")

    assert reply.kind == "not_found"
    assert "no secret DAV_USER" in (reply.failure or "")


def test_tenants_with_the_same_calendar_names_are_isolated(
    calendar_servers: CalendarServers,
) -> None:
    """Each has its own account and files under one configuration."""
    workers = {}
    for user, word in USERS.items():
        mine = document(at(9, f"only for {user[-4:]}"))
        calendar_servers.dav.make(user, "same", a=mine)
        agent = calendar_servers.server.agent_with("rest", DAV_USER=user, DAV_PASSWORD=word)
        (agent.folder / "plans").mkdir(parents=True)
        (agent.folder / "plans/a.ics").write_text(mine)
        workers[user] = agent

    for user, agent in workers.items():
        for name in ("dav/same", "plans"):
            value = agent.call("calendar_read", **MARCH, calendar=name).value
            assert [event["summary"] for event in value["events"]] == [f"only for {user[-4:]}"]
