"""Read a CalDAV server: its calendars, and their events in a period."""

import asyncio
import base64
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from urllib.parse import unquote, urljoin, urlsplit
from xml.etree.ElementTree import Element, ParseError, TreeBuilder, XMLParser

from gatepost import Outbound, OutboundReply, ToolFailure
from gatepost_authz import origin_of


class _XmlParser(TreeBuilder):
    def doctype(self, name: str, public: str | None, system: str | None) -> None:
        """Refuse a document type: it could declare entities (billion laughs, local files)."""
        raise ParseError(f"a document type {name[:40]!r}, {public!r:.40}, {system!r:.40}")


def parsed(data: bytes) -> Element:
    """Return the root of *data*; raise ParseError."""
    parser = XMLParser(target=_XmlParser())  # noqa: S314  # entities are what makes it unsafe
    try:
        parser.feed(data)
        root: Element = parser.close()
    except (LookupError, ValueError) as error:  # an unknown encoding
        raise ParseError(str(error)) from error
    return root


MAX_CALENDARS = 50
MAX_REDIRECTS = 5
ANSWER_BYTES = 1_000_000
D, C = "{DAV:}", "{urn:ietf:params:xml:ns:caldav}"

FIND = b"""<?xml version="1.0" encoding="utf-8"?>
<d:propfind xmlns:d="DAV:" xmlns:c="urn:ietf:params:xml:ns:caldav"><d:prop>
<d:resourcetype/><d:displayname/><d:current-user-principal/>
<c:calendar-home-set/><c:supported-calendar-component-set/>
</d:prop></d:propfind>"""

QUERY = """<?xml version="1.0" encoding="utf-8"?>
<c:calendar-query xmlns:d="DAV:" xmlns:c="urn:ietf:params:xml:ns:caldav">
<d:prop><c:calendar-data/></d:prop>
<c:filter><c:comp-filter name="VCALENDAR"><c:comp-filter name="VEVENT">
<c:time-range start="{start}" end="{end}"/>
</c:comp-filter></c:comp-filter></c:filter></c:calendar-query>"""


class Collection(NamedTuple):
    """One calendar of a server."""

    url: str
    name: str
    """Its display name; empty if the configured URL is the calendar itself."""

    def answers_to(self, part: str) -> bool:
        """Return whether *part* names it, by display name or by the last part of its URL."""
        return part in ("", self.name, _last(self.url))


class CalDav:
    """
    One configured URL and its credentials (RFC 4791; discovery: RFC 6764).

    The password goes only to the origin of that URL, even if the server names another. Raises
    ToolFailure.
    """

    def __init__(self, http: Outbound, url: str, *, user: str, password: str) -> None:
        self._http = http
        self._url = url
        self._headers = {"content-type": "application/xml; charset=utf-8"} | basic(user, password)

    async def collections(self) -> list[Collection]:
        """Return the calendar at the URL, or those of the principal or home there."""
        at_url = await self._resources(self._url, depth=0)
        for resource in at_url:
            if resource.is_calendar:
                return [Collection(resource.url, "")]
        home = next((resource.home for resource in at_url if resource.home), "")
        if not home:
            principal = next((resource.principal for resource in at_url if resource.principal), "")
            if principal:
                at_principal = await self._resources(principal, depth=0)
                home = next((resource.home for resource in at_principal if resource.home), "")
        members = await self._resources(home or self._url, depth=1)
        calendars = [
            Collection(resource.url, resource.name) for resource in members if resource.is_calendar
        ]
        if not calendars:
            raise ToolFailure("not_found", "there is no calendar at its URL or below it")
        return calendars[:MAX_CALENDARS]

    async def events(self, url: str, start: datetime, end: datetime, max_bytes: int) -> list[bytes]:
        """
        Return all documents of a calendar that have an event between *start* and *end*.

        The query covers a day more on both sides, because the server may read floating times in
        another zone.
        """
        day = timedelta(days=1)
        body = QUERY.format(start=_utc(start - day), end=_utc(end + day))
        reply = await self._send("REPORT", url, body.encode(), depth=1, max_bytes=max_bytes)
        root = await _parsed(reply)
        return [(data.text or "").encode() for data in root.iter(f"{C}calendar-data")]

    async def _resources(self, url: str, *, depth: int) -> "list[_CalDavResource]":
        reply = await self._send("PROPFIND", url, FIND, depth=depth, max_bytes=ANSWER_BYTES)
        root = await _parsed(reply)
        return [_CalDavResource(reply.url, response) for response in root.iter(f"{D}response")]

    async def _send(
        self, method: str, url: str, content: bytes, *, depth: int, max_bytes: int
    ) -> OutboundReply:
        for _ in range(MAX_REDIRECTS):
            if not url or origin_of(url) != origin_of(self._url):
                raise ToolFailure(
                    "denied",
                    "its server refers to another server, which must not get the password; an "
                    "administrator can configure the URL of that server",
                )
            reply = await self._http.send(
                method,
                url,
                headers=self._headers | {"depth": str(depth)},
                content=content,
                max_bytes=max_bytes,
            )
            location = reply.headers.get("location")
            if reply.status not in {301, 302, 303, 307, 308} or not location:
                return checked(reply, expected=207)
            url = _joined(url, location)
        raise ToolFailure("validation", "its server redirects endlessly")


class _CalDavResource:
    """One resource of a PROPFIND response."""

    def __init__(self, base: str, response: Element) -> None:
        self.url = _joined(base, _href(response) or base)
        kinds = {kind.tag for element in response.iter(f"{D}resourcetype") for kind in element}
        components = {element.get("name") for element in response.iter(f"{C}comp")}
        self.is_calendar = f"{C}calendar" in kinds and (not components or "VEVENT" in components)
        self.name = (response.findtext(f".//{D}displayname") or "").strip()
        self.name = self.name or _last(self.url)
        self.home = self._referred(base, response, f"{C}calendar-home-set")
        self.principal = self._referred(base, response, f"{D}current-user-principal")

    @staticmethod
    def _referred(base: str, response: Element, prop: str) -> str:
        element = response.find(f".//{prop}")
        href = _href(element) if element is not None else ""
        return _joined(base, href) if href else ""


async def _parsed(reply: OutboundReply) -> Element:
    try:
        return await asyncio.to_thread(parsed, reply.body)  # the response may be megabytes
    except ParseError:
        raise ToolFailure("validation", "its server's answer is not XML") from None


def checked(reply: OutboundReply, *, expected: int) -> OutboundReply:
    """Return the reply if it is complete and has that status; ToolFailure otherwise."""
    if reply.status in {401, 403}:
        raise ToolFailure(
            "denied",
            f"its server refuses the credentials (HTTP {reply.status}); an administrator can "
            "check the user and the secret with the password",
        )
    if reply.status == 404:
        raise ToolFailure("not_found", "its server has nothing at that URL (HTTP 404)")
    if reply.status != expected:
        raise ToolFailure("upstream_unavailable", f"its server answered HTTP {reply.status}")
    if reply.truncated:
        raise ToolFailure(
            "validation", f"it is larger than {len(reply.body)} bytes, the most that is read"
        )
    return reply


def basic(user: str, password: str) -> dict[str, str]:
    """Return the header with the credentials (RFC 7617), or none."""
    if not user:
        return {}
    credentials = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"authorization": f"Basic {credentials}"}


def _last(url: str) -> str:
    return unquote(urlsplit(url).path.rstrip("/").rpartition("/")[2])


def _joined(base: str, href: str) -> str:
    """Return the target of *href*; empty if it is not a URL, which a server may send."""
    try:
        url = urljoin(base, href)
        origin_of(url)  # its port may be invalid
    except ValueError:
        return ""
    return url


def _href(element: Element) -> str:
    return (element.findtext(f"{D}href") or "").strip()


def _utc(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y%m%dT%H%M%SZ}"
