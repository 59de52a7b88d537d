"""What a page of the dashboard gets and answers, and how it says where it is found."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import msgspec

from gatepost.approvals.request import Visitor

DECIDERS = frozenset({"approver", "admin"})
"""The roles of which a visitor needs one, where a page does not say otherwise."""


class Visit(msgspec.Struct, frozen=True, kw_only=True):
    """
    One request for a page by somebody who is signed in and may see it.

    The frame has checked all there is to check before a handler runs: the session, the role, for
    POST the origin and the form's token. Everything a page shows or changes is of ``tenant``, which
    comes from the session and from nowhere else.
    """

    visitor: Visitor
    """Who is signed in, as the gate itself would see a call of theirs; holds no token."""
    path: Mapping[str, str] = {}
    """What the page's path leaves open, by name; not empty, without slash, printable."""
    query: Mapping[str, str] = {}
    """The query's parameters; one that is given twice was refused."""
    form: Mapping[str, str] = {}
    """The fields of a form, without the token; empty for GET."""
    csrf: str = ""
    """The token that each form of this visit carries (templates: ``{{ token_field() }}``)."""
    base: str = ""
    """The path that the dashboard's own paths begin with, as ``/dashboard`` or ``/t/acme/…``."""
    fragment: bool = False
    """htmx asks: it wants the part of the page that changed, without the frame around it."""
    request_id: str = ""
    """By which the log tells more."""

    @property
    def tenant(self) -> str:
        """Whose dashboard this is."""
        return self.visitor.tenant_id


class Event(msgspec.Struct, frozen=True):
    """One server-sent event: ``data`` is HTML out of a template, of any number of lines."""

    name: str
    data: str


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a page answers; exactly one of ``html``, ``location``, ``events`` and ``file``.

    The frame adds every header: content type, policies, cookies.
    """

    status: int = 200
    html: str | None = None
    location: str = ""
    """A path of the dashboard below its base, as ``/approvals/7``; sent as 303."""
    events: AsyncIterator[Event] | None = None
    """Sent as they come; closed when the visitor leaves, or the session ends."""
    file: bytes | None = None
    """Something to keep, never shown in the browser."""
    file_name: str = ""
    """Of letters, digits, ``.``, ``_`` and ``-``."""
    file_type: str = "application/octet-stream"
    signs_out: bool = False
    """Ends the session everywhere, before anything is sent."""


def shown(html: str, *, status: int = 200) -> Answer:
    """A page, or a part of one, that a template has drawn."""
    return Answer(status=status, html=html)


def redirect(location: str) -> Answer:
    """The way on after a form: to *location* below the dashboard's base, by GET."""
    return Answer(status=303, location=location)


def stream(events: AsyncIterator[Event]) -> Answer:
    """Server-sent events for as long as the visitor looks."""
    return Answer(events=events)


Handler = Callable[[Visit], Awaitable[Answer]]
"""
Answers one visit. `StoreUnavailable` may pass: the frame shows that we are out of order (503);
so may `NotShown`.
"""


class NotShown(Exception):
    """There is no such thing for this visitor: answered with 404, whether it exists or not."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the dashboard's routing table."""

    path: str
    """Below the base: ``/approvals/{id}``; ``""`` is the first page."""
    get: Handler | None = None
    """Shows; changes nothing."""
    post: Handler | None = None
    """Changes something; the form's token and the origin are checked before."""
    roles: frozenset[str] = DECIDERS
    """Whoever has none of these is told so, with 403; empty: every visitor of the tenant."""
    background: bool = False
    """The page asks by itself (live parts), so a visit does not count as being active."""
