"""The request that a page of the dashboard receives, and the response that it returns."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import msgspec

from gatepost.policy.approvals.approval_request import SignedInApprover

DECIDERS = frozenset({"approver", "admin"})
"""The roles of which a user needs one by default."""


class PageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """
    One request for a page by a signed-in user who can see it.

    The frame has checked everything before a handler runs: the session, the role, and for POST the
    origin and the form token. ``tenant`` comes only from the session, and everything a page shows
    or changes belongs to it.
    """

    user: SignedInApprover
    """The signed-in person, as the gate would identify a caller; contains no token."""
    path: Mapping[str, str] = {}
    """The parameters of the page's path: not empty, printable, without a slash."""
    query: Mapping[str, str] = {}
    """The query's parameters; a duplicate parameter was refused."""
    form: Mapping[str, str] = {}
    """The fields of a form, without the token; empty for GET."""
    csrf: str = ""
    """The token that each form of this page carries (templates: ``{{ token_field() }}``)."""
    base: str = ""
    """The path before the dashboard's own paths: ``/dashboard`` or ``/t/acme/…``."""
    fragment: bool = False
    """Whether htmx requests only the changed part of the page."""
    request_id: str = ""
    """The request id in the log."""

    @property
    def tenant(self) -> str:
        """Return the tenant of the dashboard."""
        return self.user.tenant_id


class ServerSentEvent(msgspec.Struct, frozen=True):
    """One server-sent event: ``data`` is rendered HTML of any number of lines."""

    name: str
    data: str


class PageResponse(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a page returns: exactly one of ``html``, ``location``, ``events`` and ``file``.

    The frame adds every header: content type, policies, cookies.
    """

    status: int = 200
    html: str | None = None
    location: str = ""
    """A path of the dashboard below its base, such as ``/approvals/7``; sent as 303."""
    events: AsyncIterator[ServerSentEvent] | None = None
    """Sent as they arrive; closed when the user leaves or the session ends."""
    file: bytes | None = None
    """A file for download, never shown in the browser."""
    file_name: str = ""
    """Consists of letters, digits, ``.``, ``_`` and ``-``."""
    file_type: str = "application/octet-stream"
    signs_out: bool = False
    """Whether to end the session at all replicas before the answer is sent."""


PageHandler = Callable[[PageRequest], Awaitable[PageResponse]]
"""
Answers one request for a page. May raise `StoreUnavailable`, which the frame answers with 503, and
`NotShown`.
"""


class NotShown(Exception):
    """The page does not exist for this user: answered with 404."""


class PageRoute(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the dashboard's routing table."""

    path: str
    """Path below the base: ``/approvals/{id}``; ``""`` is the first page."""
    get: PageHandler | None = None
    """Handler that shows the page and changes nothing."""
    post: PageHandler | None = None
    """Handler that changes something, after the form token and the origin were checked."""
    roles: frozenset[str] = DECIDERS
    """The roles of which a user needs one, else 403; empty for every user of the tenant."""
    background: bool = False
    """The page requests this itself (live parts), so it does not count as activity."""
